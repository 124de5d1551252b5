"""What the preprocessors of texts and of pairs share: their files, and padding."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import tensorflow as tf

from tfde.config.backbones import from_mapping
from tfde.errors import ConfigError, require
from tfde.storage.json_file import read_json_file
from tfde.text.read_tokenizer import load_tokenizer
from tfde.text.tokenizer import Tokenizer

PREPROCESSOR_FILE = "preprocessor.json"
# Which tfde 0.1.0 did not have.
LATER_FIELDS = ("query_mark", "document_mark", "query_fill")


class BatchPreprocessor(tf.Module):
    """Base of the preprocessors: a tokenizer and a description of what is done with its ids.

    Args:
        tokenizer: Gives the token ids.
        text_config: The description, a dataclass of the kind `config_class` with `buckets`.
        name: Name of the module.

    Raises:
        ConfigError: a bucket is not a positive integer.
    """

    config_class: ClassVar[type]

    def __init__(self, tokenizer: Tokenizer, text_config: Any, *, name: str) -> None:
        super().__init__(name=name)
        for bucket in text_config.buckets:
            holds = isinstance(bucket, int) and bucket >= 1
            require(holds, "buckets", "positive integers", bucket)
        self.tokenizer = tokenizer
        self.text_config = text_config

    def save(self, directory: str | Path) -> None:
        """Writes the tokenizer and `preprocessor.json` into a directory, which may exist."""
        self.tokenizer.save_assets(directory)
        path = Path(directory) / PREPROCESSOR_FILE
        path.write_text(self._description() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
            ConfigError: a file is missing or is not what `save` writes.
        """
        path = Path(directory) / PREPROCESSOR_FILE
        try:
            value = read_json_file(path)
            value["buckets"] = tuple(value["buckets"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: must be written by {cls.__name__}.save."
                f" Received: {type(error).__name__} ({error})"
            ) from error
        text_config = from_mapping(cls.config_class, value, str(path))
        return cls(load_tokenizer(directory), text_config)  # type: ignore[call-arg]

    def fingerprint_bytes(self) -> bytes:
        """Returns bytes that are equal exactly when two preprocessors are: for hashing."""
        return self._description().encode() + b"\n" + self.tokenizer.fingerprint_bytes()

    def _description(self) -> str:
        value = dataclasses.asdict(self.text_config)
        # Named only where they are given, so that fingerprints of older models stay.
        value = {name: x for name, x in value.items() if x != "" or name not in LATER_FIELDS}
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)

    def _pack(
        self, tokens: tf.RaggedTensor, lengths: tf.Tensor, limit: int, fill_id: int | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns token ids and padding mask, (B, L) int32, with the start and the end token.

        L is the smallest bucket that holds the longest row, at most `limit`, which no row exceeds.

        Args:
            tokens: (B, None) int32.
            lengths: How many tokens of each row are kept, (B,), at most its own.
            limit: Longest row, special tokens included.
            fill_id: Stands in place of padding, in rows that are all as long as `limit`.
        """
        pad_id, start_id = self.tokenizer.pad_id, self.tokenizer.start_id
        ends = tf.cast(lengths, tf.int32)[:, None]
        shorter = [b for b in self.text_config.buckets if b < limit]
        if fill_id is not None:
            pad_id, shorter = fill_id, []
        buckets = tf.constant([*shorter, limit], tf.int32)
        longest = tf.reduce_max(tf.concat([ends[:, 0], [0]], 0)) + 1 + (start_id is not None)
        length = buckets[tf.searchsorted(buckets, longest[None])[0]]
        places = tf.range(length)[None]
        token_ids = tf.where(places < ends, tokens.to_tensor(pad_id, shape=[-1, length]), pad_id)
        if start_id is not None:
            token_ids = tf.pad(token_ids[:, :-1], [[0, 0], [1, 0]], constant_values=start_id)
            ends += 1
        token_ids = tf.where(places == ends, self.tokenizer.end_id, token_ids)
        return token_ids, tf.cast(places <= ends, tf.int32)


def cut_rows(tokens: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Returns the first tokens of each row: `lengths` (B,) int64 of them, at most its own."""
    starts = tokens.row_starts()
    places = tf.ragged.range(starts, starts + lengths)
    return places.with_values(tf.gather(tokens.values, places.values))


def side_by_side(groups: tf.RaggedTensor, order: Sequence[int]) -> tf.RaggedTensor:
    """Joins the rows of several groups: first row to first row, second to second.

    Args:
        groups: The B rows of the first group, then those of the second, ..., (G x B, None).
        order: How the groups follow each other in a row: each of their G numbers once.
    """
    count = len(order)
    rows = tf.gather(tf.reshape(tf.range(groups.nrows()), [count, -1]), order)
    parts = tf.gather(groups, tf.reshape(tf.transpose(rows), [-1]))
    return tf.RaggedTensor.from_row_splits(parts.values, parts.row_splits[::count], validate=False)


def fill_template(template: str, fields: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the template with texts put in for its `{names}`, shape (B,), string.

    Blanks of the template that an empty text leaves at an end are dropped. Blanks of the texts
    themselves stay: to some tokenizers they mean something.

    Args:
        template: With names of `fields`, each perhaps.
        fields: Name -> texts, (B,) string.
    """
    rows = tf.shape(next(iter(fields.values())))
    values = {f"{{{name}}}": texts for name, texts in fields.items()}
    pattern = "(" + "|".join(map(re.escape, values)) + ")"

    def fill(kept: str, names: list[str]) -> tf.Tensor:
        """Fills in what is left of a template; each of `names` may be empty in some rows."""
        if names:
            name, *others = names
            absent = fill(kept.replace(name, ""), others)
            return tf.where(values[name] == "", absent, fill(kept, others))
        parts = [
            values[part] if part in values else tf.fill(rows, part)
            for part in re.split(pattern, kept.strip())
            if part
        ]
        return tf.strings.join(parts) if parts else tf.fill(rows, "")

    return fill(template, [name for name in values if name in template])
