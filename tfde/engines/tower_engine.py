"""Towers as files of other engines: from padded token ids to embeddings, without TensorFlow.

Whatever tokenizes hands over token ids. An engine's module is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import json
from abc import abstractmethod
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.config.engines import ENGINE_CHOICES, ENGINES
from tfde.environment import DISTRIBUTION, missing_packages, require_extra
from tfde.errors import CorruptError, require, shorten

# Rows of like length that are run together.
_ROWS = 4


class _Kind(NamedTuple):
    """Where an engine's parts are: its extra, module and class here; the file of a tower."""

    extra: str
    module: str
    file: str


_KINDS: dict[str, _Kind] = {
    "openvino": _Kind("openvino", "tfde.engines.openvino_tower", "openvino/encode_tokens.xml"),
    "onnxruntime": _Kind("onnx", "tfde.engines.onnx_tower", "onnx/encode_tokens.onnx"),
}


class TowerFacts(NamedTuple):
    """What else is known of a tower; it lies beside the engine's file as JSON.

    Args:
        precision: What it computes in.
        vocabulary_size: Token ids are below it.
        max_length: The most tokens of a text; `None` for no limit.
        ms: The shortest call where it was exported, of what the tower is for; 0: not measured.
        tensorflow_ms: That of TensorFlow.
    """

    precision: str
    vocabulary_size: int
    max_length: int | None
    ms: float = 0.0
    tensorflow_ms: float = 0.0


class TowerRunner:
    """A tower in another engine; safe to call from many threads."""

    def __init__(self, facts: TowerFacts) -> None:
        self._facts = facts

    def __call__(self, token_ids: np.ndarray, padding_mask: np.ndarray) -> np.ndarray:
        """Returns the embeddings, (B, D) float32.

        Rows of like length are run together, and nothing behind the longest of them.

        Args:
            token_ids: (B, L) int32.
            padding_mask: (B, L) int32, 1 = real token.

        Raises:
            ValueError: another shape, more tokens than the tower has positions, or a token id
                outside of its vocabulary.
        """
        self._check(token_ids, padding_mask)
        if not token_ids.shape[1]:  # as texts of padding alone
            token_ids = padding_mask = np.zeros((len(token_ids), 1), np.int32)
        if len(token_ids) <= 1:
            return self.run([_cut(token_ids, padding_mask)])[0]
        lengths = lengths_of(padding_mask)
        order = np.argsort(-lengths, kind="stable")
        parts = [order[start : start + _ROWS] for start in range(0, len(order), _ROWS)]
        found = self.run([_cut(token_ids[rows], padding_mask[rows]) for rows in parts])
        embeddings = np.empty((len(order), found[0].shape[-1]), np.float32)
        embeddings[order] = np.concatenate(found)
        return embeddings

    @abstractmethod
    def run(self, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Returns the embeddings of each batch of token ids and mask, in their order."""

    def _check(self, token_ids: np.ndarray, padding_mask: np.ndarray) -> None:
        """Refuses here what an engine would read past its tables for, or not recover from."""
        shapes = token_ids.shape, padding_mask.shape
        if token_ids.ndim != 2 or shapes[0] != shapes[1]:
            raise ValueError(
                "`token_ids` and `padding_mask` must have one shape (B, L)."
                f" Received: {shapes[0]} and {shapes[1]}"
            )
        limit = self._facts.max_length
        if limit is not None and token_ids.shape[1] > limit:
            raise ValueError(
                f"`token_ids` must have at most {limit} tokens a row. Received: {shapes[0]}"
            )
        size = self._facts.vocabulary_size
        outside = token_ids[(token_ids < 0) | (token_ids >= size)]
        if len(outside):
            raise ValueError(f"`token_ids` must be in [0, {size}). Received: {outside[0]}")


def lengths_of(padding_mask: np.ndarray) -> np.ndarray:
    """Returns the place after the last real token of each row, (B,) int, at least 1."""
    reversed_mask = padding_mask[:, ::-1] > 0
    behind = np.where(reversed_mask.any(1), reversed_mask.argmax(1), padding_mask.shape[1])
    return np.maximum(padding_mask.shape[1] - behind, 1)


def _cut(token_ids: np.ndarray, padding_mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = int(lengths_of(padding_mask).max(initial=1))
    parts = (token_ids[:, :length], padding_mask[:, :length])
    return np.ascontiguousarray(parts[0]), np.ascontiguousarray(parts[1])


def is_installed(engine: str) -> bool:
    """Whether an engine's own package is here, which runs towers; TensorFlow is."""
    return engine == "tensorflow" or (
        engine not in missing_packages(DISTRIBUTION, _KINDS[engine].extra)
        and find_spec(engine) is not None
    )


def require_engine(engine: str, *, writes: bool = False) -> None:
    """Refuses an engine that is unknown or not installed.

    Args:
        engine: Which one; `auto` and `tensorflow` are here.
        writes: Whether towers are to be written for it, which needs all of its extra.

    Raises:
        ConfigError: it is none of `ENGINE_CHOICES`.
        MissingExtraError: its extra is not installed.
    """
    require(engine in ENGINE_CHOICES, "engine", f"one of {', '.join(ENGINE_CHOICES)}", engine)
    if engine in _KINDS and (writes or not is_installed(engine)):
        require_extra(_KINDS[engine].extra, f"engine {engine}")


def engine_version(engine: str) -> str:
    """Returns the version of an engine's package."""
    return version(engine)


def tower_file(engine: str, directory: str | Path) -> Path:
    """Returns where in a directory an engine's tower lies, whether it is there or not."""
    return Path(directory) / _KINDS[engine].file


def note_times(engine: str, directory: str | Path, *, ms: float, tensorflow_ms: float) -> None:
    """Adds to the facts of a tower how long a call takes, which `fastest_engine` goes by."""
    path = tower_file(engine, directory)
    _write_facts(path, read_facts(path)._replace(ms=ms, tensorflow_ms=tensorflow_ms))


def fastest_engine(directory: str | Path) -> str:
    """Returns what was fastest of the engines that are installed and have a tower in a directory.

    Raises:
        CorruptError: what is known of a tower cannot be read.
    """
    times: dict[str, float] = {}
    for engine in ENGINES:
        path = tower_file(engine, directory)
        if path.is_file() and is_installed(engine):
            facts = read_facts(path)
            if facts.ms:  # else it was not measured
                times[engine] = facts.ms
                times.setdefault("tensorflow", facts.tensorflow_ms)
    return min(times, key=lambda name: times[name], default="tensorflow")


def write_tower(engine: str, graph: Any, directory: str | Path, facts: TowerFacts) -> None:
    """Writes a tower's graph for an engine.

    Args:
        engine: Which one.
        graph: Frozen `tf.Graph` with the placeholders `token_ids` and `padding_mask`, (B, L) int32,
            and the output `embeddings`, (B, D) float32.
        directory: Where `tower_file` will be.
        facts: Of the tower. It is to compute in `float32`, or in `bfloat16` where the engine has
            it (a processor that has not computes in float32).

    Raises:
        ConfigError: another precision.
    """
    require_engine(engine, writes=True)
    path = tower_file(engine, directory)
    path.parent.mkdir(parents=True)
    importlib.import_module(_KINDS[engine].module).write(graph, path, facts.precision)
    _write_facts(path, facts)


def open_tower(engine: str, directory: str | Path, *, exact: bool = False) -> TowerRunner:
    """Loads what `write_tower` wrote.

    Args:
        engine: Which one.
        directory: As given to `write_tower`.
        exact: Whether to compute in float32, whatever the file says.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptError: it cannot be read.
    """
    require_engine(engine)
    path = tower_file(engine, directory)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; `tfde export --format` writes it.")
    facts = read_facts(path)
    if exact:
        facts = facts._replace(precision="float32")
    try:
        runner: TowerRunner = importlib.import_module(_KINDS[engine].module).Tower(path, facts)
    except Exception as error:  # whatever the engine raises
        reason = shorten(" ".join(str(error).split()), 200)
        raise CorruptError(f"{path}: {engine} cannot read it. Received: {reason}") from error
    return runner


def read_facts(path: Path) -> TowerFacts:
    """Returns what is known of a tower, given its `tower_file`.

    Raises:
        CorruptError: it cannot be read.
    """
    path = path.with_suffix(".json")
    try:
        return TowerFacts(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CorruptError(
            f"{path}: does not say what the tower takes. Received: {error}"
        ) from error


def _write_facts(path: Path, facts: TowerFacts) -> None:
    path.with_suffix(".json").write_text(json.dumps(facts._asdict()), "utf-8")
