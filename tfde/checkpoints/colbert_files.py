"""ColBERT's own checkpoints: what stands beside the transformer in its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.safetensors_arrays import SafetensorsArrays
from tfde.config.model import TextConfig
from tfde.errors import DataError, naming, require

_METADATA = "artifact.metadata"
_KERNEL = "linear.weight"
# What its program takes where the file does not say.
_DEFAULTS = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_maxlen": 32,
    "doc_maxlen": 220,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
    "similarity": "cosine",
}


@dataclass(frozen=True)
class ColbertHead:
    """What a ColBERT has beside its BERT.

    Args:
        kernel: The projection, (H, D) float32.
        text: Lengths, marks, and what fills queries.
        skip_punctuation: Whether documents' punctuation has no vectors.
    """

    kernel: np.ndarray
    text: TextConfig
    skip_punctuation: bool


def read_colbert(checkpoint: str | Path, hidden_dim: int) -> ColbertHead | None:
    """Returns what a directory of ColBERT's own program holds; `None` if it is another's.

    Args:
        checkpoint: A checkpoint with one BERT, which exists.
        hidden_dim: H, of that BERT.

    Raises:
        ConfigError: it was trained in a way that we do not have: queries' [MASK]s are attended to,
            or another similarity than the cosine.
        DataError: the projection is missing or has another shape.

    Source: Khattab and Zaharia 2020, sections 3.2 and 3.3.
    """
    files = CheckpointFiles(checkpoint)
    if files.json_or_empty("config.json").get("architectures") != ["HF_ColBERT"]:
        return None
    said = {**_DEFAULTS, **files.json_or_empty(_METADATA)}
    with naming(f"{files}/{_METADATA}"):
        attended, similarity = said["attend_to_mask_tokens"], said["similarity"]
        require(attended is False, "attend_to_mask_tokens", "false", attended)
        require(similarity == "cosine", "similarity", "cosine", similarity)
        text = TextConfig(
            query_max_length_tokens=said["query_maxlen"],
            document_max_length_tokens=said["doc_maxlen"],
            query_mark=said["query_token_id"],
            document_mark=said["doc_token_id"],
            query_fill="[MASK]",
        )
    arrays = SafetensorsArrays(files)
    shape = arrays.shape(_KERNEL)
    if len(shape) != 2:
        raise DataError(str(files), None, f"the array {_KERNEL} must be a matrix.", shape)
    if shape[1] != hidden_dim:
        rule = f"the array {_KERNEL} must have {hidden_dim} columns."
        raise DataError(str(files), None, rule, shape)
    kernel = arrays.read(_KERNEL).astype(np.float32).T
    return ColbertHead(kernel, text, bool(said["mask_punctuation"]))
