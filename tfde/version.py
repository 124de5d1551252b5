"""The version of tfde."""

__version__ = "0.1.0"
