"""Measures and the tables that show them."""
