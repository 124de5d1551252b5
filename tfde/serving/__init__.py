"""A model server that speaks TensorFlow Serving's protocol, and a client for either."""

from tfde.environment import require_extra

require_extra("serve", "serving, and asking a server,")
