"""Losses of pairs (TFRS' retrieval task and what wraps it), gradient cache, replicas."""
