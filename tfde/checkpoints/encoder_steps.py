"""What a checkpoint says about the way from its transformer's output to the embedding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfde.config.model import DenseConfig, Pooling


@dataclass(frozen=True)
class EncoderSteps:
    """The steps after the transformer; a plain language model says nothing of them.

    Args:
        pooling: How token vectors become one; `None` where the checkpoint does not say, and then
            nothing else here is known.
        pool_prompts: Whether a prompt's tokens count in pooling.
        projection: Linear layers after pooling.
        projection_weights: Kernel (in, out) and, if it has one, bias of each, one after the other.
        normalize: Whether vectors are compared by cosine, that is as unit vectors.
        query_prompt: What stands before every query.
        document_prompt: What stands before every document.
        document_template: How title and text become one string, where the checkpoint was trained
            with a form of its own.
    """

    pooling: tuple[Pooling, ...] | None = None
    pool_prompts: bool = True
    projection: tuple[DenseConfig, ...] = ()
    projection_weights: tuple[np.ndarray, ...] = ()
    normalize: bool | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    document_template: str | None = None
