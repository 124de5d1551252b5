"""What stands around texts, as the `post_processor` of a `tokenizer.json` says it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfde.errors import ConfigError, shorten


class Frame(NamedTuple):
    """What a post-processor puts around texts.

    Attributes:
        start: The token before a text, or `None`.
        end: The token after it, or `None`.
        pair_separators: The tokens between two texts.
    """

    start: str | None
    end: str | None
    pair_separators: tuple[str, ...]


def read_frame(value: Mapping[str, Any] | None, where: Path) -> Frame:
    """Returns what the `post_processor` of a `tokenizer.json` puts around texts.

    Raises:
        ConfigError: it is of a kind, or does something, that tfde does not do.
    """
    value = value or {"type": "ByteLevel"}
    kind = value.get("type")
    if kind == "Sequence":
        parts = [p for p in value["processors"] if p.get("type") != "ByteLevel"]
        if len(parts) < 2:
            return read_frame(parts[0] if parts else None, where)
    elif kind == "ByteLevel":
        return Frame(None, None, ())
    elif kind in ("BertProcessing", "RobertaProcessing"):
        end = value["sep"][0]
        separators = (end,) if kind == "BertProcessing" else (end, end)
        return Frame(value["cls"][0], end, separators)
    elif kind == "TemplateProcessing":
        start, end = _around(value["single"], "A")
        before, behind = _around(value["pair"], "A")
        between, after = _around(behind, "B")
        names = [[next(iter(p.values()))["id"] for p in x] for x in (start, end, between)]
        if before == [*start] and len(start) <= 1 and len(end) <= 1 and len(after) <= len(end):
            return Frame(next(iter(names[0]), None), next(iter(names[1]), None), tuple(names[2]))
    raise ConfigError(
        f"{where}: `post_processor` must be BertProcessing, RobertaProcessing, ByteLevel, or a"
        " TemplateProcessing with at most one token before and one after a text."
        f" Received: {shorten(kind)}"
    )


def template(frame: Frame, ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the post-processor that puts `frame` around texts.

    Args:
        frame: The tokens.
        ids: Their ids.
    """

    def piece(token: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    start = [piece(frame.start, 0)] if frame.start else []
    first = [*start, {"Sequence": {"id": "A", "type_id": 0}}]
    between = [piece(token, 0) for token in frame.pair_separators]
    second = [{"Sequence": {"id": "B", "type_id": 1}}]
    ends = [[piece(frame.end, type_id)] if frame.end else [] for type_id in (0, 1)]
    tokens = {token for token in (frame.start, frame.end, *frame.pair_separators) if token}
    return {
        "type": "TemplateProcessing",
        "single": [*first, *ends[0]],
        "pair": [*first, *between, *second, *ends[1]],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in sorted(tokens)
        },
    }


def _around(pieces: list[Any], sequence: str) -> tuple[list[Any], list[Any]]:
    """Returns a template's pieces before and after a sequence; type ids do not count."""
    for place, piece in enumerate(pieces):
        if piece.get("Sequence", {}).get("id") == sequence:
            return pieces[:place], pieces[place + 1 :]
    return pieces, []
