"""Training: recipes, optimizers, validation by retrieval, checkpoints of a whole run."""
