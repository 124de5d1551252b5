"""The whole road on this machine's own documentation."""
