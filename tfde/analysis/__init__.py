"""Studies: grids of training runs, their results and their tables."""
