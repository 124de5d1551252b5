"""A tower in another engine: written from its weights, compared with TensorFlow's, measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tfde.backbones.portable_ops import portable_ops
from tfde.config.engines import ENGINES, Use
from tfde.engines.tower_engine import (
    TowerFacts,
    TowerRunner,
    is_installed,
    open_tower,
    require_engine,
    write_tower,
)
from tfde.errors import ConfigError, MismatchError, MissingExtraError, shorten
from tfde.text.preprocessor import TextPreprocessor

# Embeddings in float32 may differ by so much of the longest one, or of 1.
MAX_DIFFERENCE = 1e-5
_QUERY_CALLS, _DOCUMENT_CALLS = 30, 3
_TOKENS = ("token_ids", "padding_mask")
_SAMPLES = (
    "",
    "a",
    "Who wrote the play about a prince of Denmark?",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "Ein Haus, zwei Häuser; 3.14 & café. " * 10,
)

# (B, L) int32 token ids and mask to (B, D) float32.
RunTower = Callable[[np.ndarray, np.ndarray], np.ndarray]


class EngineTimes(NamedTuple):
    """The shortest calls in milliseconds, without tokenization: one short text, ten of any length.

    `tensorflow_...` are those of TensorFlow.
    """

    query_ms: float
    document_ms: float
    tensorflow_query_ms: float
    tensorflow_document_ms: float

    def of(self, use: Use) -> tuple[float, float]:
        """Returns the engine's time and TensorFlow's, of what the tower is for."""
        if use == "query":
            return self.query_ms, self.tensorflow_query_ms
        return self.document_ms, self.tensorflow_document_ms


def write_engine(engine: str, tower: keras.Model, directory: str | Path) -> None:
    """Writes a tower for an engine, as `write_tower` says; the tower is one of `build_towers`.

    Raises:
        ConfigError: the tower has an op or a dtype that the engine does not know.
        MissingExtraError: the engine is not installed.
    """
    require_engine(engine, writes=True)
    graph = _portable_graph(tower)
    facts = TowerFacts(precision_of(tower), tower.vocabulary_size, tower.max_length)
    try:
        write_tower(engine, graph, directory, facts)
    except ConfigError:
        raise
    except Exception as error:  # whatever a converter raises
        reason = shorten(" ".join(str(error).split()), 200)
        raise ConfigError(
            f"`engine`: {engine} cannot read this tower. Received: {reason}"
        ) from error


def tower_in(
    engine: str,
    tower: keras.Model,
    preprocessor: TextPreprocessor,
    run: RunTower,
    *,
    use: Use,
) -> TowerRunner | None:
    """Returns a tower in an engine, once it has shown that it gives the same embeddings.

    Args:
        engine: Which one; `auto`: the first that is installed, gives the same and is faster.
        tower: The tower, with the weights of now.
        preprocessor: Texts to token ids.
        run: The tower in TensorFlow.
        use: What it is for.

    Returns:
        The tower; `None` where TensorFlow is to run it.

    Raises:
        ConfigError: the engine is unknown, or does not know an op of the tower or its dtype.
        MismatchError: it gives other embeddings.
        MissingExtraError: it is not installed.
    """
    require_engine(engine)
    if engine == "tensorflow":
        return None
    names = [name for name in ENGINES if is_installed(name)] if engine == "auto" else [engine]
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            try:
                write_engine(name, tower, directory)
                check_engine(name, directory, tower, preprocessor, run)
                runner = open_tower(name, directory)
            except (ConfigError, MismatchError, MissingExtraError):
                if engine == "auto":
                    continue
                raise
            if engine != "auto":
                return runner
            ms, tensorflow_ms = time_engine(name, directory, preprocessor, run).of(use)
            if ms < tensorflow_ms:
                return runner
    return None


def check_engine(
    engine: str,
    directory: str | Path,
    tower: keras.Model,
    preprocessor: TextPreprocessor,
    run: RunTower,
) -> float:
    """Compares what `write_engine` wrote with the tower in TensorFlow.

    Args:
        engine: Which one.
        directory: Where it is.
        tower: The tower.
        preprocessor: Texts to token ids.
        run: The tower in TensorFlow, as it is used.

    Returns:
        The largest difference of two numbers in float32, as a share of the longest embedding, or
        of 1.

    Raises:
        MismatchError: it is more than `MAX_DIFFERENCE`.
    """
    runner = open_tower(engine, directory, exact=True)
    if precision_of(tower) != "float32":
        run = _portable_run(tower)
    difference = 0.0
    for texts in (*([text] for text in _SAMPLES), _SAMPLES * 2):
        tokens = _tokens(preprocessor, texts)
        expected = run(*tokens)
        longest = max(1.0, float(np.linalg.norm(expected, axis=-1).max()))
        difference = max(difference, float(np.abs(runner(*tokens) - expected).max()) / longest)
    if not difference <= MAX_DIFFERENCE:
        raise MismatchError(
            f"`engine`: embeddings of {engine} must be those of TensorFlow within"
            f" {MAX_DIFFERENCE:g}. Received: a difference of {difference:.2g}"
        )
    return difference


def time_engine(
    engine: str, directory: str | Path, preprocessor: TextPreprocessor, run: RunTower
) -> EngineTimes:
    """Measures what `write_engine` wrote beside TensorFlow; the arguments are `check_engine`'s."""
    runner, found = open_tower(engine, directory), []
    for texts, calls in (([_SAMPLES[2]], _QUERY_CALLS), (_SAMPLES * 2, _DOCUMENT_CALLS)):
        tokens = _tokens(preprocessor, texts)
        found.append([_shortest_ms(each, tokens, calls=calls) for each in (runner, run)])
    (query, tensorflow_query), (document, tensorflow_document) = found
    return EngineTimes(query, document, tensorflow_query, tensorflow_document)


def precision_of(tower: keras.Model) -> str:
    """Returns what a tower's layers compute in: `bfloat16` where any does, else their dtype."""
    dtypes = {str(layer.compute_dtype) for layer in tower.layers if layer.weights}
    return "float32" if dtypes <= {"float32"} else min(dtypes - {"float32"})


def _portable_run(tower: keras.Model) -> RunTower:
    """Returns the tower in TensorFlow, in float32 whatever it computes in else."""
    function = _portable_function(tower)

    def run(token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
        found = function(tf.constant(token_ids), tf.constant(padding_mask))
        embeddings: np.ndarray = found["embeddings"].numpy()
        return embeddings

    return run


def _portable_graph(tower: keras.Model) -> tf.Graph:
    """Returns the tower's graph as `write_tower` takes it."""
    return convert_variables_to_constants_v2(_portable_function(tower)).graph


def _portable_function(tower: keras.Model) -> Any:
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in _TOKENS]

    @tf.function(input_signature=specs, autograph=False)
    def encode_tokens(token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
        embeddings = tf.cast(tower(tokens, training=False), tf.float32)
        return {"embeddings": tf.identity(embeddings, name="embeddings")}

    with portable_ops():
        return encode_tokens.get_concrete_function()


def _tokens(preprocessor: TextPreprocessor, texts: Sequence[str]) -> list[np.ndarray]:
    columns = {name: tf.fill([len(texts)], "") for name in preprocessor.text_config.document_fields}
    columns["text"] = tf.constant(list(texts))
    return [part.numpy() for part in preprocessor.documents(*columns.values())]


def _shortest_ms(run: RunTower, tokens: Sequence[np.ndarray], *, calls: int) -> float:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        run(*tokens)
        seconds.append(time.perf_counter() - started)
    return round(min(seconds) * 1e3, 3)
