"""An index that changes while it is searched."""
