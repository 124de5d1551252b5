"""What, beside a SentencePiece model, decides the ids of a Hugging Face tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from tfde.config.backbones import from_mapping
from tfde.errors import ConfigError, shorten
from tfde.text.hugging_face_directory import AddedToken

Words = Literal["white_space", "blanks", "marks"]
# As a `tokenizer.json` has them: the step of the model's character map, and the pre-tokenizers
# that go before Metaspace.
PRECOMPILED = {"type": "Precompiled"}
_BLANKS = {"pattern": {"String": " "}, "behavior": "Removed", "invert": False}
SPLITS: dict[Words, list[dict[str, Any]]] = {
    "white_space": [{"type": "WhitespaceSplit"}],
    "blanks": [{"type": "Split", **_BLANKS}],
    "marks": [],
}


@dataclasses.dataclass(frozen=True)
class UnigramRules:
    """How Hugging Face's tokenizers use a Unigram vocabulary.

    Attributes:
        normalizer: Steps as in a `tokenizer.json`; `Precompiled` is the model's character map.
        words: What parts words: `white_space` or `blanks`, of which none is kept; `marks`: each
            blank becomes a `▁`, and each `▁` begins a word.
        special_tokens: Recognised where texts spell them out; each with its id.
        pad_token: Fills rows up to the batch's length.
        start_token: Goes before every text, or `None`.
        end_token: Goes after every text and between segments.
        pair_separators: Stand between the two texts of a pair.
    """

    normalizer: tuple[Mapping[str, Any], ...]
    words: Words
    special_tokens: tuple[AddedToken, ...]
    pad_token: str
    start_token: str | None
    end_token: str
    pair_separators: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values that `from_json` reads."""
        tokens = [
            {k: v for k, v in token._asdict().items() if k == "id" or v}
            for token in self.special_tokens
        ]
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "normalizer": [dict(step) for step in self.normalizer],
            "special_tokens": tokens,
            "pair_separators": list(self.pair_separators),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnigramRules:
        """Returns the rules that `to_json` described.

        Raises:
            ConfigError: the value does not describe rules.
        """
        try:
            if value["words"] not in get_args(Words):
                raise TypeError(f"words={value['words']!r}")
            return from_mapping(
                cls,
                {
                    **value,
                    "normalizer": tuple(value["normalizer"]),
                    "special_tokens": tuple(map(AddedToken.from_json, value["special_tokens"])),
                    "pair_separators": tuple(value["pair_separators"]),
                },
                "rules",
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                "`rules` must be what `UnigramRules.to_json` gives."
                f" Received: {type(error).__name__} ({shorten(str(error))})"
            ) from error
