"""ScaNN's ops in TensorFlow, for SavedModels that hold a ScaNN index."""

from __future__ import annotations


def load_scann_ops() -> bool:
    """Loads the ops; returns whether this machine has them."""
    try:
        import scann.scann_ops.py.scann_ops  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
