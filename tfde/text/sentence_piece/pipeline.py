"""What Hugging Face's tokenizers do around a Unigram vocabulary, as graph ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import tensorflow as tf

from tfde.config.backbones import from_mapping
from tfde.errors import ConfigError, shorten
from tfde.text.hugging_face_reader import AddedToken
from tfde.text.sentence_piece.normalizer import CharsmapNormalizer
from tfde.text.sentence_piece.words import UnigramWords
from tfde.text.special_tokens import SPACE, SpecialToken, SpecialTokens, escaped

_PREFIX = "▁"
_RUN_OF_BLANKS = " {2,}"
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


class UnigramPipeline(tf.Module):
    """Finds special tokens, normalizes what is between, and cuts it into words and pieces.

    Args:
        pieces: The vocabulary: pieces and their log probabilities in the order of their ids.
        unknown_id: The piece for characters that no piece has.
        charsmap: The character map that the step `Precompiled` applies.
        normalizer: Steps, each as in a `tokenizer.json`: `Precompiled` (without its map),
            `Strip`, `Replace` of a string or of two or more blanks.
        words: What parts words: `white_space` or `blanks`, of which none is kept; `marks`: each
            blank becomes a `▁`, and each `▁` begins a word.
        special_tokens: Recognised where texts spell them out.

    Raises:
        ConfigError: the vocabulary or the map is unsound, or a step is of another kind.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        *,
        unknown_id: int,
        charsmap: bytes,
        normalizer: Sequence[Mapping[str, Any]],
        words: Words,
        special_tokens: Sequence[AddedToken],
    ) -> None:
        super().__init__(name="unigram_pipeline")
        self._words = UnigramWords(pieces, unknown_id=unknown_id)
        self._charsmap = CharsmapNormalizer(charsmap)
        self._space = {"white_space": SPACE, "blanks": " ", "marks": None}[words]
        self._substitutions = [_substitution(step) for step in normalizer]
        self._in_raw, self._in_normalized = (
            SpecialTokens(
                {
                    self._spelling(t): SpecialToken(t.id or 0, t.lstrip, t.rstrip, t.single_word)
                    for t in special_tokens
                    if t.normalized is normalized
                }
            )
            for normalized in (False, True)
        )

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the token ids of texts, shape (B, None), int32.

        Args:
            texts: UTF-8 strings, shape (B,), string.
        """
        return self._in_raw.tokenize(
            texts,
            lambda chunks: self._in_normalized.tokenize(
                self._normalized(chunks), self._tokenize_normalized
            ),
        )

    def _spelling(self, token: AddedToken) -> str:
        """Returns what is looked for: in normalized text, what the token becomes there."""
        if not token.normalized:
            return token.content
        with tf.init_scope():
            return self._normalized(tf.constant([token.content]))[0].numpy().decode()

    def _normalized(self, texts: tf.Tensor) -> tf.Tensor:
        # As Python decodes; the character map does it, too.
        if not self._substitutions or self._substitutions[0] is not None:
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        for substitution in self._substitutions:
            if substitution is None:
                texts = self._charsmap(texts)
            else:
                texts = tf.strings.regex_replace(texts, *substitution)
        return texts

    def _tokenize_normalized(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._space is None:
            texts = tf.strings.regex_replace(texts, " ", _PREFIX)
        else:
            texts = tf.strings.regex_replace(texts, f"^{self._space}+|{self._space}+$", "")
            texts = tf.strings.regex_replace(texts, f"{self._space}+{_PREFIX}?", _PREFIX)
        # Each `▁` begins a word, and so does the text; those words, without the `▁`:
        words = tf.strings.split(tf.strings.regex_replace(texts, f"^{_PREFIX}", ""), _PREFIX)
        lengths = tf.where(texts == "", tf.zeros_like(words.row_lengths()), words.row_lengths())
        some = tf.repeat(texts != "", words.row_lengths())
        flat = tf.strings.join([_PREFIX, tf.boolean_mask(words.values, some)])
        # A word that stands in a batch many times is cut once.
        distinct, places = tf.unique(flat)
        tokens = tf.gather(self._words(distinct), places)
        splits = tf.gather(tokens.row_splits, tf.concat([[0], tf.cumsum(lengths)], 0))
        return tf.RaggedTensor.from_row_splits(tokens.values, splits, validate=False)


def _substitution(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns pattern and rewrite of a step for RE2; `None` for the character map's."""
    kind = step.get("type")
    if kind == "Precompiled":
        return None
    if kind == "Strip":
        sides = ("^{0}+",) * bool(step.get("strip_left", True))
        sides += ("{0}+$",) * bool(step.get("strip_right", True))
        if sides:
            return "|".join(sides).format(SPACE), ""
    if kind == "Replace":
        pattern = dict(step.get("pattern") or {})
        rewrite = str(step.get("content", "")).replace("\\", r"\\")
        if pattern == {"Regex": _RUN_OF_BLANKS}:
            return _RUN_OF_BLANKS, rewrite
        if list(pattern) == ["String"] and pattern["String"]:
            return escaped(pattern["String"]), rewrite
    raise ConfigError(
        "`normalizer` must be made of Precompiled, Strip and Replace (of a string, or of"
        f" {_RUN_OF_BLANKS!r}). Received: {shorten(dict(step))}"
    )


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
