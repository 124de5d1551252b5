"""The files of WordPiece tokenizers: `vocab.txt`, and Hugging Face's `tokenizer.json`."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, shorten
from tfde.storage.json_file import read_binary_file
from tfde.text.hugging_face_reader import AddedToken, HuggingFaceDirectory

MAX_CHARACTERS_PER_WORD = 100


def numbered(vocabulary: Sequence[str]) -> dict[str, int]:
    """Returns token -> id.

    Raises:
        ConfigError: a token is there twice, is empty or holds a line break.
    """
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


def read_lines(path: Path) -> list[str]:
    """Returns the tokens in a `vocab.txt`.

    Raises:
        ConfigError: the file cannot be read or is not UTF-8.
    """
    try:
        text = read_binary_file(path).decode("utf-8")
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
    return lines


def checked_model(
    value: Mapping[str, Any], where: Path, *, normalizer_counts: bool
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Returns the model and the settings in a `tokenizer.json` of `tokenizers`.

    Args:
        value: The content of the file.
        where: The file, for the error's message.
        normalizer_counts: Whether the file's normalizer is used, not one that a class builds.

    Raises:
        ConfigError: something in it is not as BERT's tokenizer does it.
    """
    model = value.get("model") or {}
    normalizer = value.get("normalizer") or {}
    pre_tokenizer = value.get("pre_tokenizer") or {}
    rules: list[tuple[str, Any, Any]] = [
        ("model.type", model.get("type", "WordPiece"), "WordPiece"),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), "##"),
        (
            "model.max_input_chars_per_word",
            model.get("max_input_chars_per_word"),
            MAX_CHARACTERS_PER_WORD,
        ),
        ("normalizer.type", normalizer.get("type"), "BertNormalizer"),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), "BertPreTokenizer"),
    ]
    if normalizer_counts:
        rules += [
            ("normalizer.clean_text", normalizer.get("clean_text"), True),
            ("normalizer.handle_chinese_chars", normalizer.get("handle_chinese_chars"), True),
        ]
    for name, received, wanted in rules:
        if received != wanted:
            raise ConfigError(
                f"{where}: `{name}` must be {wanted!r}. Received: {shorten(received)}"
            )
    if not isinstance(model.get("vocab"), Mapping):
        raise ConfigError(
            f"{where}: `model.vocab` must be an object. Received: {shorten(model.get('vocab'))}"
        )
    return model, {
        "lowercase": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "unknown_token": model.get("unk_token"),
    }


def options_of_class(files: HuggingFaceDirectory) -> dict[str, Any]:
    """Returns what a class such as BertTokenizer takes from its options.

    Raises:
        ConfigError: Chinese characters are not split.
    """
    options = files.options
    if not options.get("tokenize_chinese_chars", True):
        raise ConfigError(f"{files.path}: `tokenize_chinese_chars` must be true. Received: false")
    if files.kind:
        options = {"do_lower_case": True, "strip_accents": None, **options}
    names = (("lowercase", "do_lower_case"), ("strip_accents", "strip_accents"))
    return {ours: options[theirs] for ours, theirs in names if theirs in options}


def check_added(added: Sequence[AddedToken], ids: Mapping[str, int], where: Path) -> None:
    """Raises a ConfigError where an added token is not looked for as tfde does it."""
    marks = set(string.punctuation)
    for token in added:
        text = token.content
        if token.single_word:
            rule = "must not be `single_word`"
        elif token.normalized and not (
            text.isascii() and text.isprintable() and text == text.strip()
        ):
            rule = "that are `normalized` must be printable ASCII without blanks at the ends"
        elif not token.normalized and text in ids and not marks.intersection(text):
            # "FAMILY" becomes the word "family" that it was not as a token.
            rule = "that are not `normalized` must hold punctuation or not be in `model.vocab`"
        else:
            continue
        raise ConfigError(f"{where}: added tokens {rule}. Received: {shorten(text)}")


def read_vocabulary(path: Path) -> dict[str, int]:
    """Returns token -> id of a `vocab.txt`.

    Raises:
        ConfigError: as `read_lines` and `numbered` do.
    """
    try:
        return numbered(read_lines(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
