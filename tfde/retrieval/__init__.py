"""Encoding a corpus, exact and approximate search, BM25, runs."""
