"""What a bundle's manifest says of the towers and their texts."""

from __future__ import annotations

from typing import Any

from tfde.export.saved_encoder import SavedEncoder
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.engines import precision_of
from tfde.types import CONTEXT


def about_towers(model: DualEncoder | SavedEncoder) -> dict[str, Any]:
    """Returns what a bundle's manifest has of them.

    These are `trained_dims`, `compute_dtype`, `text`, and `needs_context`: whether a document
    without one is refused.
    """
    needs_context = CONTEXT in model.document_fields and model.needs_context
    if isinstance(model, SavedEncoder):
        return {
            "trained_dims": [],
            "compute_dtype": "float32",
            "text": None,
            "needs_context": needs_context,
        }
    return {
        "trained_dims": list(model.config.trained_dims),
        "compute_dtype": precision_of(model.query_tower),
        "text": _text_of(model),
        "needs_context": needs_context,
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
