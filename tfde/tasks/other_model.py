"""What a second model says of the texts of a batch: as a guide, or as what not to drift from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Protocol

import keras
import tensorflow as tf

from tfde.tasks.gradient_cache import embed_in_chunks
from tfde.tasks.task import candidate_texts
from tfde.text.preprocessor import TextPreprocessor

_TOKENS = ("token_ids", "padding_mask")


class OtherModel(Protocol):
    """A model of two towers that does not train, such as `tfde.DualEncoder`."""

    query_tower: keras.Model
    document_tower: keras.Model
    preprocessor: TextPreprocessor


OTHER_MODEL_RULE = "a model of two towers, such as tfde.DualEncoder.load(PATH)"


def read_as(model: OtherModel, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns a batch's texts as a model cuts them, for `embed_as` (graph ops).

    Args:
        model: The other model, of any vocabulary.
        batch: As `PairBatches` says.
    """
    read = model.preprocessor
    texts = [candidate_texts(batch, name) for name in read.text_config.document_fields]
    sides = {"query": read.queries(batch["query"]), "document": read.documents(*texts)}
    return {
        f"other_{side}_{name}": part
        for side, parts in sides.items()
        for name, part in zip(_TOKENS, parts, strict=True)
    }


def embed_as(
    model: OtherModel, prepared: Mapping[str, tf.Tensor], *, chunk_size: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a model's embeddings of queries (B, D) and candidates (C, D); no gradient flows.

    Args:
        model: The other model.
        prepared: What `read_as` returned, among other things.
        chunk_size: How many texts a tower works on at once; `None` for all.
    """
    found = []
    for side, tower in (("query", model.query_tower), ("document", model.document_tower)):
        tokens = {name: prepared[f"other_{side}_{name}"] for name in _TOKENS}
        embed = functools.partial(tower, training=False)
        embeddings = embed_in_chunks(embed, tokens, chunk_size=chunk_size)
        if chunk_size is not None:  # chunks forget it
            embeddings = tf.ensure_shape(embeddings, [None, tower.output_shape[-1]])
        found.append(tf.stop_gradient(embeddings))
    return found[0], found[1]
