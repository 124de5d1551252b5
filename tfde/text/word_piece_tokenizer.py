"""BERT's WordPiece as graph ops, with the ids of Hugging Face's tokenizer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tensorflow as tf
import tensorflow_text as tft

from tfde.errors import ConfigError, shorten
from tfde.text.bert_normalizer import PLACEHOLDERS, BertNormalizer, rename
from tfde.text.tokenizer import TOKENIZER_FILE, Tokenizer, read_settings

VOCABULARY_FILE = "vocab.txt"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS_PER_WORD = 100
_NO_TEXT_HAS_THIS = "\U0010fffd"  # private use: the normalizer drops it


class WordPieceTokenizer(Tokenizer):
    """Turns texts into the token ids that Hugging Face's BERT tokenizer gives.

    Clean, split off Chinese characters, decompose, strip accents, lowercase, split on white
    space and punctuation, then longest-match-first word pieces; a word of more than 100
    characters is unknown; special tokens spelled out in the raw text are recognised. Bytes that
    are not UTF-8 are dropped (as U+FFFD is, which Python's `decode(errors="replace")` puts
    there).

    Args:
        vocabulary: The tokens in the order of their ids.
        lowercase: Whether the vocabulary is of lower-case words.
        strip_accents: Whether accents are removed. `None`: when `lowercase`.
        special_tokens: Tokens that texts may spell out; those not in `vocabulary` are left out.
        pad_token: Its id fills rows up to the batch's length.
        unknown_token: Its id stands for words that no pieces make up.
        start_token: Goes before every text.
        end_token: Goes after every text and between segments.

    Raises:
        ConfigError: the vocabulary lacks one of the tokens above, repeats a token, or holds an
            empty token or one with a line break.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        pad_token: str = "[PAD]",
        unknown_token: str = "[UNK]",
        start_token: str = "[CLS]",
        end_token: str = "[SEP]",
    ) -> None:
        super().__init__(name="word_piece_tokenizer")
        self._vocabulary = tuple(vocabulary)
        ids = _numbered(self._vocabulary)
        self._settings: dict[str, Any] = {
            "lowercase": bool(lowercase),
            "strip_accents": bool(lowercase if strip_accents is None else strip_accents),
            "special_tokens": tuple(t for t in special_tokens if t in ids),
            "pad_token": pad_token,
            "unknown_token": unknown_token,
            "start_token": start_token,
            "end_token": end_token,
        }
        for name in ("pad_token", "unknown_token", "start_token", "end_token"):
            if self._settings[name] not in ids:
                raise ConfigError(
                    f"`vocabulary` must hold the `{name}`. Received: {len(ids)} tokens"
                    f" without {shorten(self._settings[name])}"
                )
        self.vocabulary_size = len(self._vocabulary)
        self.pad_id = ids[pad_token]
        self.start_id = ids[start_token]
        self.end_id = self.separator_id = ids[end_token]
        self.pair_separator_ids = (self.end_id,)
        self._normalizer = BertNormalizer(
            lowercase=self._settings["lowercase"],
            strip_accents=self._settings["strip_accents"],
            special_tokens=self._settings["special_tokens"],
            max_characters_per_word=MAX_CHARACTERS_PER_WORD,
        )
        self._word_pieces = tft.FastWordpieceTokenizer(
            self._vocabulary_of_op(),
            max_bytes_per_word=4 * MAX_CHARACTERS_PER_WORD,
            unknown_token=unknown_token,
            token_out_type=tf.int32,
        )

    @classmethod
    def from_vocabulary_file(
        cls, path: str | Path, *, lowercase: bool = True, strip_accents: bool | None = None
    ) -> Self:
        """Reads a `vocab.txt`: one token a line.

        Raises:
            ConfigError: the file is missing or not UTF-8, or the vocabulary breaks a rule.
        """
        settings = {"lowercase": lowercase, "strip_accents": strip_accents}
        return cls._from_file(Path(path), settings)

    @classmethod
    def from_hugging_face(cls, directory: str | Path) -> Self:
        """Reads a BERT tokenizer from a Hugging Face or sentence-transformers directory.

        `tokenizer.json` goes before `vocab.txt`; `tokenizer_config.json` has the last word on
        letter case and accents, as in transformers.

        Raises:
            ConfigError: neither file is there, or the tokenizer does what BERT's does not.
        """
        directory = Path(directory)
        options = _read_json(directory / "tokenizer_config.json")
        if (directory / "tokenizer.json").is_file():
            path = directory / "tokenizer.json"
            vocabulary, settings = _from_tokenizers(path, _read_json(path))
        elif (directory / VOCABULARY_FILE).is_file():
            path, vocabulary, settings = directory / VOCABULARY_FILE, None, {}
        else:
            raise ConfigError(
                f"{directory}: must hold tokenizer.json or vocab.txt. Received: neither"
            )
        if not options.get("tokenize_chinese_chars", True):
            raise ConfigError(
                f"{directory}: `tokenize_chinese_chars` must be true. Received: false"
            )
        for ours, theirs in (("lowercase", "do_lower_case"), ("strip_accents", "strip_accents")):
            if theirs in options:
                settings[ours] = options[theirs]
        for ours, theirs in (
            ("pad_token", "pad_token"),
            ("unknown_token", "unk_token"),
            ("start_token", "cls_token"),
            ("end_token", "sep_token"),
        ):
            value = options.get(theirs)
            if value is not None:
                settings[ours] = value["content"] if isinstance(value, Mapping) else value
        if vocabulary is None:
            return cls._from_file(path, settings)
        return cls(vocabulary, **settings)

    @classmethod
    def from_assets(cls, directory: str | Path) -> Self:  # noqa: D102
        _, settings = read_settings(directory, cls.__name__)
        known = inspect.signature(cls).parameters
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{Path(directory) / TOKENIZER_FILE}: has no setting {shorten(name)}"
                    f" (it has {', '.join(list(known)[1:])})."
                )
        return cls._from_file(Path(directory) / VOCABULARY_FILE, settings)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:  # noqa: D102
        return self._word_pieces.tokenize(self._normalizer(texts))

    def id_to_token(self, token_id: int) -> str:  # noqa: D102
        return self._vocabulary[self._check_id(token_id)]

    def assets(self) -> dict[str, bytes]:  # noqa: D102
        return {VOCABULARY_FILE: "".join(f"{t}\n" for t in self._vocabulary).encode()}

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {**self._settings, "special_tokens": list(self._settings["special_tokens"])}

    @classmethod
    def _from_file(cls, path: Path, settings: Mapping[str, Any]) -> Self:
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path}: must be a readable vocabulary. Received: {error.strerror}"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: must be UTF-8. Received: {error}") from error
        # Not splitlines(): U+2028 and U+0085 can be tokens.
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        try:
            return cls(lines, **settings)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def _vocabulary_of_op(self) -> list[str]:
        """Returns the vocabulary in the characters that the normalizer emits."""
        places = dict(zip(self._settings["special_tokens"], PLACEHOLDERS, strict=False))
        unknown = self._settings["unknown_token"]
        result = []
        for index, token in enumerate(self._vocabulary):
            if token == unknown:
                result.append(token)
            elif token in places:
                result.append(chr(places[token]))
            elif any(ord(c) >= 0xF0000 for c in token):
                # No text can have it once normalized; but placeholders are private use too.
                result.append(f"{_NO_TEXT_HAS_THIS}{index}")
            else:
                result.append("".join(map(rename, token)))
        return result


def _numbered(vocabulary: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for index, token in enumerate(vocabulary):
        if not token or "\n" in token or "\r" in token:
            rule = "must hold no empty token and no line break"
        elif token in ids:
            rule = "must hold each token once"
        else:
            ids[token] = index
            continue
        raise ConfigError(f"`vocabulary` {rule}. Received: {shorten(token)} as id {index}")
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: must be a JSON object. Received: {error}") from error


def _from_tokenizers(path: Path, value: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns vocabulary and settings of a `tokenizer.json` of Hugging Face's `tokenizers`."""
    model = value.get("model") or {}
    normalizer = value.get("normalizer") or {}
    pre_tokenizer = value.get("pre_tokenizer") or {}
    for name, received, wanted in (
        ("model.type", model.get("type"), "WordPiece"),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), "##"),
        (
            "model.max_input_chars_per_word",
            model.get("max_input_chars_per_word"),
            MAX_CHARACTERS_PER_WORD,
        ),
        ("normalizer.type", normalizer.get("type"), "BertNormalizer"),
        ("normalizer.clean_text", normalizer.get("clean_text"), True),
        ("normalizer.handle_chinese_chars", normalizer.get("handle_chinese_chars"), True),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), "BertPreTokenizer"),
    ):
        if received != wanted:
            raise ConfigError(f"{path}: `{name}` must be {wanted!r}. Received: {received!r}")
    by_id = {index: token for token, index in model["vocab"].items()}
    special = []
    for token in value.get("added_tokens", ()):
        name = token["content"]
        plain = not any(token.get(k) for k in ("single_word", "lstrip", "rstrip", "normalized"))
        if not plain:
            raise ConfigError(
                f"{path}: added tokens must be matched as they are spelled (no single_word,"
                f" lstrip, rstrip, normalized). Received: {shorten(name)}"
            )
        by_id[token["id"]] = name
        special.append(name)
    if sorted(by_id) != list(range(len(by_id))):
        raise ConfigError(
            f"{path}: ids must be 0, 1, 2 ... without a gap."
            f" Received: {len(by_id)} ids up to {max(by_id, default=-1)}"
        )
    settings = {
        "lowercase": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "special_tokens": special,
        "unknown_token": model.get("unk_token", "[UNK]"),
    }
    return [by_id[index] for index in range(len(by_id))], settings
