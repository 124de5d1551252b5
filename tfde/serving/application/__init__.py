"""The retrieval application beside the model server: search, embeddings, the page."""
