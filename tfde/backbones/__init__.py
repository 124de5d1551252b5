"""Encoders behind one interface: T5, BERT, bag of words, and Keras models as they are."""
