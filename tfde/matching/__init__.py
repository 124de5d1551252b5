"""Models that read a pair of texts together."""
