"""Training pairs: read, shuffled, mixed, cut into batches."""
