"""Hard negatives: candidates from a retriever, what is no negative thrown out, a choice of some."""
