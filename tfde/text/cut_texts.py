"""How many texts were too long for a model, and how much of them it did not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class CutTexts:
    """Counts of texts of one kind that were cut at one length.

    Args:
        kind: What they are, in the plural: queries, documents.
        max_length_tokens: The longest text, special tokens included.
        texts: How many were read.
        cut: How many of them were cut.
        tokens: How many tokens those that were cut had.
        lost: How many of these were cut off.
    """

    kind: str
    max_length_tokens: int
    texts: int = 0
    cut: int = 0
    tokens: int = 0
    lost: int = 0

    def add(self, counts: Sequence[Any]) -> None:
        """Adds what `TextPreprocessor.cut_counts` counted in a batch, (4,)."""
        texts, cut, tokens, lost = map(int, counts)
        self.texts += texts
        self.cut += cut
        self.tokens += tokens
        self.lost += lost

    def __str__(self) -> str:
        if not self.cut:
            return f"none of {self.texts:,} {self.kind} cut at {self.max_length_tokens} tokens"
        return (
            f"{self.cut:,} of {self.texts:,} {self.kind} ({self.cut / self.texts:.1%}) cut at"
            f" {self.max_length_tokens} tokens, which lost {self.lost / self.tokens:.1%} of theirs"
        )


def cut_line(counts: Sequence[CutTexts]) -> str:
    """Returns one line about several kinds of texts; empty where there are none."""
    return "; ".join(str(part) for part in counts if part.texts)
