"""A model server that speaks TensorFlow Serving's protocol, and a client for either."""
