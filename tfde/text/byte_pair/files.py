"""The files of byte-level BPE: `vocab.json`, `merges.txt` and Hugging Face's `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, shorten
from tfde.storage.json_file import read_binary_file, read_json_file
from tfde.text.byte_pair.merges import byte_characters


def checked_model(
    value: Mapping[str, Any], where: Path
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Returns the model and the settings in a `tokenizer.json` of a byte-level BPE.

    Raises:
        ConfigError: something in it is not as RoBERTa's and GPT-2's tokenizers do it.
    """
    model, pre_tokenizer = value.get("model") or {}, value.get("pre_tokenizer") or {}
    for name, received, wanted in (
        ("model.type", model.get("type", "BPE"), ("BPE",)),
        ("normalizer", value.get("normalizer"), (None,)),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), ("ByteLevel",)),
        ("pre_tokenizer.use_regex", pre_tokenizer.get("use_regex", True), (True,)),
        ("model.dropout", model.get("dropout"), (None, 0.0)),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), (None, "")),
        ("model.end_of_word_suffix", model.get("end_of_word_suffix"), (None, "")),
        ("model.byte_fallback", model.get("byte_fallback", False), (False,)),
        ("model.ignore_merges", model.get("ignore_merges", False), (False,)),
    ):
        if received not in wanted:
            raise ConfigError(
                f"{where}: `{name}` must be {wanted[0]!r}. Received: {shorten(received)}"
            )
    for name, kind in (("vocab", dict), ("merges", list)):
        if not isinstance(model.get(name), kind):
            raise ConfigError(
                f"{where}: `model.{name}` must be a {kind.__name__}."
                f" Received: {shorten(model.get(name))}"
            )
    unknown = model.get("unk_token")
    complete = all(character in model["vocab"] for character in byte_characters())
    if model.get("fuse_unk") and unknown is not None and not complete:
        raise ConfigError(
            f"{where}: `model.fuse_unk` must be false where bytes are missing from the vocabulary."
            " Received: true"
        )
    return model, {
        "add_prefix_space": bool(pre_tokenizer.get("add_prefix_space", True)),
        "unknown_token": None if complete else unknown,
    }


def read_vocabulary(path: Path) -> dict[str, int]:
    """Returns token -> id of a `vocab.json`, in the order of the ids.

    Raises:
        ConfigError: the file cannot be read or is no such object.
    """
    try:
        value = read_json_file(path)
        return dict(sorted(value.items(), key=lambda item: int(item[1])))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: must be a JSON object of token and id."
            f" Received: {type(error).__name__} ({shorten(str(error))})"
        ) from error


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Returns the pairs in a `merges.txt`.

    Raises:
        ConfigError: the file cannot be read, or a line is no pair.
    """
    try:
        lines = read_binary_file(path).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: must be readable merges. Received: {error}") from error
    return [
        read_pair(line.removesuffix("\r"), f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.startswith("#version")
    ]


def read_pair(merge: Any, where: str | Path) -> tuple[str, str]:
    """Returns the two tokens of `"a b"` or `["a", "b"]`.

    Raises:
        ConfigError: there are not two, or one is not written in byte-level characters.
    """
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not (isinstance(parts, list) and len(parts) == 2 and all(map(_is_bytes, parts))):
        raise ConfigError(
            f"{where}: a merge must be two tokens of byte-level characters."
            f" Received: {shorten(merge)}"
        )
    return parts[0], parts[1]


_BYTE_CHARACTERS = frozenset(byte_characters())


def _is_bytes(token: Any) -> bool:
    return isinstance(token, str) and token != "" and _BYTE_CHARACTERS.issuperset(token)
