"""Attention between the two texts of a pair, to look at: a teacher's, and its students'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfde.errors import ConfigError, require
from tfde.evaluation.report_charts import plain_text
from tfde.matching.attention_maps import CrossMaps, cross_maps
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.matcher import Matcher
from tfde.matching.pair_model import PairScorer
from tfde.matching.pair_states import TextTokens
from tfde.storage.atomic import atomic_file


class PairAttention(NamedTuple):
    """Attention between the texts of one pair, in one layer.

    Args:
        first: Tokens of the first text, X of them, without special ones.
        second: Tokens of the second, Y.
        to_second: (X, Y) float32, the weights of the second's tokens; a row sums to 1.
        to_first: (Y, X) float32.
        layer: The layer's name.
    """

    first: list[str]
    second: list[str]
    to_second: np.ndarray
    to_first: np.ndarray
    layer: str


def pair_attention(
    model: PairScorer, first: str, second: str, *, layer: int = -1, head: int | None = None
) -> PairAttention:
    """Returns a cross-encoder's attention between two texts, or what a matcher's would be.

    Args:
        model: A `CrossEncoder` or a `Matcher`.
        first: The first text.
        second: The second.
        layer: Number of the layer, from 0; negative ones from the last (of those that see the
            texts apart).
        head: Number of the head; `None` for the mean over all.

    Raises:
        ConfigError: there is no such layer or head; a text has no tokens; another kind of model.
    """
    if not isinstance(model, CrossEncoder | Matcher):
        raise ConfigError(
            f"`model` must be a CrossEncoder or a Matcher. Received: {type(model).__name__}"
        )
    texts = tf.constant([first]), tf.constant([""]), tf.constant([second])
    inputs, places = model.prepare_tokens(*texts)
    _, states = model.call_with_states(inputs, places, training=False)
    number = _number("layer", layer, len(states.first["queries"]))
    maps = cross_maps(states, number, (places[0].count, places[1].count))
    ids = [
        _token_ids(inputs.get(f"{side}_token_ids", inputs.get("token_ids")), place)
        for side, place in zip(("first", "second"), places, strict=True)
    ]
    encoder, _ = model.encoder_and_apart()
    for name, found, text in zip(("first", "second"), ids, (first, second), strict=True):
        require(len(found) > 0, name, "a text with tokens", text)
    tokenizer = model.preprocessor.tokenizer
    tokens = [[tokenizer.id_to_token(token_id) for token_id in found] for found in ids]
    to_second, to_first = _of_head(maps, head)
    name = encoder.transformer_layers[number].name
    return PairAttention(tokens[0], tokens[1], to_second, to_first, name)


def draw_attention(found: Mapping[str, PairAttention], path: str | Path, *, title: str) -> None:
    """Draws a row for each model: the first text's attention over the second, and the other way.

    All panels have one scale of colours.

    Args:
        found: Name of a model -> its attention; all of the same pair.
        path: PNG to write.
        title: What stands above.
    """
    from matplotlib.figure import Figure

    widest = max(len(one.first) + len(one.second) for one in found.values())
    width = min(max(8.0, 0.45 * widest), 24.0)
    tallest = max(max(len(one.first), len(one.second)) for one in found.values())
    height = min(0.22 * tallest + 1.5, 12.0)
    canvas = Figure(figsize=(width, height * len(found)), layout="constrained")
    rows = canvas.subplots(len(found), 2, squeeze=False)
    highest = max(float(part.max()) for one in found.values() for part in one[2:4])
    for axes, (name, one) in zip(rows, found.items(), strict=True):
        for panel, weights, down, across in (
            (axes[0], one.to_second, one.first, one.second),
            (axes[1], one.to_first, one.second, one.first),
        ):
            image = panel.imshow(weights, cmap="viridis", vmin=0.0, vmax=highest, aspect="auto")
            panel.set_xticks(
                range(len(across)), map(plain_text, across), rotation=60, ha="right", fontsize=7
            )
            panel.set_yticks(range(len(down)), map(plain_text, down), fontsize=7)
        head = plain_text(f"{name}, {one.layer}: first over second")
        axes[0].set_title(head, fontsize="medium")
        axes[1].set_title("second over first", fontsize="medium")
    canvas.colorbar(image, ax=rows, fraction=0.04)
    canvas.suptitle(plain_text(title), fontsize="medium")
    with atomic_file(path) as temporary:
        canvas.savefig(temporary, dpi=130)


def _of_head(maps: CrossMaps, head: int | None) -> list[np.ndarray]:
    heads = int(maps.to_second.shape[1])
    if head is None:
        return [part.numpy()[0].mean(axis=0) for part in maps]
    number = _number("head", head, heads)
    return [part.numpy()[0, number] for part in maps]


def _token_ids(token_ids: tf.Tensor, place: TextTokens) -> Sequence[int]:
    start, count = int(place.start[0]), int(place.count[0])
    return [int(number) for number in token_ids[0, start : start + count]]


def _number(name: str, value: int, count: int) -> int:
    require(-count <= value < count, name, f"in [{-count}, {count - 1}]", value)
    return value % count
