"""Pages of anybody's corpus, and the pairs that a dual encoder is pre-trained on."""
