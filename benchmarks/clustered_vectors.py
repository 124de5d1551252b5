"""Vectors like those of texts: many points around some thousands of centres."""

import numpy as np

SEED = 0
CLUSTERS = 2000
QUERIES = 1000


def clustered(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors and held-out queries around the same centres, unit length."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((CLUSTERS, dim)).astype(np.float32)
    points = centres[rng.integers(0, CLUSTERS, rows + QUERIES)]
    points = points + 0.7 * rng.standard_normal(points.shape, dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points[:rows], points[rows:]
