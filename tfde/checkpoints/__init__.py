"""Models of others: keras-hub, Hugging Face, sentence-transformers; files, or Keras objects."""
