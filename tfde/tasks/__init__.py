"""The TFRS retrieval task inside a Keras 3 model."""
