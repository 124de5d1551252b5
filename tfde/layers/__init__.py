"""Layers above the backbone: pooling, projection, unit norm."""
