"""The whole road on this machine's own documentation."""

from tfde.environment import require_extra

require_extra("demo", "the demo")
