"""Encoders behind one interface: T5, BERT and bag of words."""
