"""Towers, what they share, and the dual encoder."""
