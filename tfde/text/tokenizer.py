"""What every tokenizer offers; it is traced once for all that do the same."""

from __future__ import annotations

import json
import string
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import tensorflow as tf

from tfde.errors import ConfigError, shorten
from tfde.storage.json_file import read_json_file
from tfde.text.graph_function import graph_function

TOKENIZER_FILE = "tokenizer.json"
_T = TypeVar("_T")
_FUNCTIONS: weakref.WeakValueDictionary[tuple[str, bytes], Any] = weakref.WeakValueDictionary()


class Tokenizer(tf.Module):
    """Base of the tokenizers: strings to token ids with TensorFlow ops only.

    An instance can be tracked by any `tf.Module` or Keras model and is saved with it.

    Attributes:
        vocabulary_size: Number of ids; every id is in [0, vocabulary_size).
        pad_id: Fills rows up to the length of the batch.
        start_id: Goes before the text, or `None`.
        end_id: Goes after the text.
        separator_id: Goes between two segments, such as title and text.
        pair_separator_ids: Stand between the two texts that one sequence of a model for pairs
            holds: `([SEP],)` for BERT, `(</s>, </s>)` for RoBERTa.
        is_equal_in_ascii: Whether what Hugging Face makes of `hugging_face_files` gives the same
            ids for every text of printable ASCII.
    """

    is_equal_in_ascii: ClassVar[bool] = True

    vocabulary_size: int
    pad_id: int
    start_id: int | None
    end_id: int
    separator_id: int
    pair_separator_ids: tuple[int, ...]

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self._traced: Untracked[Any] = Untracked(None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocabulary_size:,} tokens)"

    def tokenize(self, texts: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of texts, without start, end or padding.

        Args:
            texts: UTF-8 strings, shape (B,), string.

        Returns:
            Token ids, shape (B, None), int32.
        """
        texts = tf.convert_to_tensor(texts, tf.string)
        if tf.executing_eagerly():
            return self._tokenize(texts)
        if self._traced.value is None:  # a function of its own in every graph: it is large
            content = self.fingerprint_bytes()
            self._traced.value = traced(self._tokenize, strings=1, content=content)
        return self._traced.value(texts)

    def length(self, text: str) -> int:
        """Returns how many tokens a text has, without start and end."""
        return int(self.tokenize([text]).row_lengths()[0])

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token, spelled as in the vocabulary; `None`: it has none."""
        ids = range(self.vocabulary_size)
        return next((i for i in ids if self.id_to_token(i) == token), None)

    def punctuation_ids(self) -> list[int]:
        """Returns the ids of tokens that are one of ASCII's punctuation marks and nothing else."""
        ids = range(self.vocabulary_size)
        return [token_id for token_id in ids if _is_punctuation(self.id_to_token(token_id))]

    @abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Does what `tokenize` says, in a graph."""

    @abstractmethod
    def id_to_token(self, token_id: int) -> str:
        """Returns the token with this id.

        Raises:
            ValueError: the id is not in [0, vocabulary_size).
        """

    @abstractmethod
    def assets(self) -> dict[str, bytes]:
        """Returns the content of the tokenizer's files by file name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Returns what, beside the assets, decides the token ids, as JSON values."""

    @abstractmethod
    def hugging_face_files(self, *, max_length_tokens: int | None) -> dict[str, bytes]:
        """Returns the files from which `transformers.AutoTokenizer` makes an equal tokenizer.

        Args:
            max_length_tokens: Its `model_max_length`, special tokens included; `None`: no limit.

        Returns:
            File name -> content: `tokenizer.json` (Hugging Face's), `tokenizer_config.json` and
            `special_tokens_map.json`.
        """

    @classmethod
    @abstractmethod
    def from_assets(cls, directory: str | Path) -> Self:
        """Reads what `save_assets` wrote.

        Raises:
            ConfigError: `tokenizer.json` is missing or names another class.
        """

    def save_assets(self, directory: str | Path) -> None:
        """Writes the assets and `tokenizer.json` into a directory, which may exist."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self.assets().items():
            (directory / name).write_bytes(content)
        (directory / TOKENIZER_FILE).write_text(self._description() + "\n", encoding="utf-8")

    def fingerprint_bytes(self) -> bytes:
        """Returns bytes that are equal exactly when two tokenizers are: for hashing."""
        files = b"".join(
            b"%s %d\n%s" % (name.encode(), len(content), content)
            for name, content in sorted(self.assets().items())
        )
        return self._description().encode() + b"\n" + files

    def _description(self) -> str:
        description = {"class_name": type(self).__name__, "config": self.settings()}
        return json.dumps(description, indent=2, sort_keys=True, ensure_ascii=False)

    def _check_id(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocabulary_size:
            raise ValueError(
                f"`token_id` must be in [0, {self.vocabulary_size})."
                f" Received: token_id={shorten(token_id)}"
            )
        return int(token_id)


def _is_punctuation(token: str) -> bool:
    # The list of Khattab and Zaharia 2020; the marks say where words begin or go on.
    for mark in ("##", "\u2581", "\u0120"):
        token = token.removeprefix(mark)
    return len(token) == 1 and token in string.punctuation


class Untracked(Generic[_T]):
    """Holds a value that `tf.Module` is not to track: long lists cost it seconds."""

    def __init__(self, value: _T) -> None:
        self.value = value


def read_settings(directory: str | Path, class_name: str | None = None) -> tuple[str, dict]:
    """Returns class name and settings from the `tokenizer.json` in a directory.

    Raises:
        ConfigError: the file is missing, is not of tfde, or names another class.
    """
    path = Path(directory) / TOKENIZER_FILE
    rule = f"{path}: must be a tokenizer description written by tfde."
    if not path.is_file():
        raise ConfigError(f"{rule} Received: no such file")
    try:
        value = read_json_file(path)
        name, settings = value["class_name"], dict(value["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{rule} Received: {type(error).__name__} ({shorten(str(error))})"
        ) from error
    if class_name is not None and name != class_name:
        raise ConfigError(f"{path}: must describe a {class_name}. Received: {shorten(name)}")
    return name, settings


def traced(method: Callable[..., Any], *, strings: int, content: bytes) -> Any:
    """Returns a `tf.function` of strings that does what `method` does.

    Two towers, a model that is loaded again, a stage of training: all have the same tokenization,
    and tracing it takes longer than anything else that a small model does.

    Args:
        method: Bound method of a tokenizer or preprocessor, on tensors of strings, (B,) each.
        strings: How many tensors it takes.
        content: Equal for objects whose methods do the same.
    """
    key = f"{method.__module__}.{method.__qualname__}", content
    function = _FUNCTIONS.get(key)
    if function is None:
        # Holds its object. A decorated method would hold it weakly, so that
        # `TextPreprocessor.load(directory).queries(texts)` would fail.
        signature = [tf.TensorSpec([None], tf.string)] * strings
        function = graph_function(method, input_signature=signature)
        _FUNCTIONS[key] = function
    return function
