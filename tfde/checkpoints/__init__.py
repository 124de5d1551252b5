"""Files of others: keras-hub presets, Hugging Face and sentence-transformers directories."""
