"""The embedded model server: serves any SavedModel, knows nothing of retrieval."""
