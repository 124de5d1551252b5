"""Phrases of passages, found by the vectors of their first and last tokens."""
