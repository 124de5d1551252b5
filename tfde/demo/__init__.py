"""The whole road on this machine's own documentation."""

from tfde.extras import require_extra

require_extra("demo", "the demo")
