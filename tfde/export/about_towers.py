"""What a bundle's manifest says of the towers and their texts."""

from __future__ import annotations

from typing import Any

from tfde.export.saved_encoder import SavedEncoder
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.engines import precision_of


def about_towers(model: DualEncoder | SavedEncoder) -> dict[str, Any]:
    """Returns `trained_dims`, `compute_dtype` and `text`, as a bundle's manifest has them."""
    if isinstance(model, SavedEncoder):
        return {"trained_dims": [], "compute_dtype": "float32", "text": None}
    return {
        "trained_dims": list(model.config.trained_dims),
        "compute_dtype": precision_of(model.query_tower),
        "text": _text_of(model),
    }


def _text_of(model: DualEncoder) -> dict[str, Any]:
    config = model.preprocessor.text_config
    return {
        "query_max_length_tokens": config.query_max_length_tokens,
        "document_max_length_tokens": config.document_max_length_tokens,
        "document_template": config.document_template,
        "query_prompt": config.query_prompt,
        "document_prompt": config.document_prompt,
    }
