"""Grids of runs, their tables and figures, and probes into models."""
