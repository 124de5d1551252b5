"""Words to the pieces of a Unigram vocabulary, with the segmentations of exact sums."""

from __future__ import annotations

from collections.abc import Sequence

import sentencepiece
import tensorflow as tf

from tfde.errors import ConfigError, require, shorten
from tfde.text.sentence_piece.model import NORMAL, UNIGRAM, UNKNOWN, new_model, sentence_piece_op

# Sums of multiples of 1/32768 are exact in float32 while they stay below 512.
_GRID = 2.0**15
_SHARE = 0.8
_NO_TEXT_HAS_THIS = "\U0010ffff<unknown>"


class UnigramWords(tf.Module):
    """Cuts words into pieces so that the sum of the pieces' scores is largest.

    The op adds float32 numbers, `tokenizers` float64 ones. Where two segmentations are equally
    good ("000" + "00" and "00" + "000") the op's rounding errors would decide, but there the
    order does. So the op gets other scores with the same best segmentations: to each piece's
    score something is added for each of its characters (most of what the character costs alone,
    with the opposite sign), which changes all segmentations of a word alike and keeps the sums
    small, and everything is rounded to a grid on which small sums are exact. Segmentations
    whose sums differ by less than about 0.0001, but do differ, may be taken for equal.

    Args:
        pieces: Pieces and their log probabilities, in the order of their ids.
        unknown_id: The piece for characters that no piece has; several in a row are one.

    Raises:
        ConfigError: a piece is empty or is there twice, or `unknown_id` is none of the ids.

    Source: Kudo 2018 (unigram language model); the other scores are derived here.
    """

    def __init__(self, pieces: Sequence[tuple[str, float]], *, unknown_id: int) -> None:
        super().__init__(name="unigram_words")
        _check(pieces, unknown_id)
        self._unknown_id, self._spelled_unknown_id = unknown_id, len(pieces)
        # The unknown piece matches where it is spelled out, as any piece.
        spelled = [*pieces, pieces[unknown_id]]
        scores = _with_exact_sums(spelled)
        model = new_model()
        for index, ((piece, _), score) in enumerate(zip(spelled, scores, strict=True)):
            if index == unknown_id:
                model.pieces.add(piece=_NO_TEXT_HAS_THIS, score=0.0, type=UNKNOWN)
            else:
                model.pieces.add(piece=piece, score=score, type=NORMAL)
        spec = model.trainer_spec
        spec.model_type, spec.vocab_size, spec.unk_id = UNIGRAM, len(spelled), unknown_id
        spec.bos_id = spec.eos_id = spec.pad_id = -1
        spec.unk_piece = _NO_TEXT_HAS_THIS
        normalizer = model.normalizer_spec
        normalizer.name = "identity"
        normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
        normalizer.escape_whitespaces = False
        content = model.SerializeToString()
        try:
            sentencepiece.SentencePieceProcessor().LoadFromSerializedProto(content)
        except RuntimeError as error:
            raise ConfigError(
                "`pieces` must make up a SentencePiece model."
                f" Received: {shorten(' '.join(str(error).split()))}"
            ) from error
        self._op = sentence_piece_op(content)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of words.

        Args:
            words: Normalized UTF-8 strings, shape (N,), string.

        Returns:
            Ids, shape (N, None), int32.
        """
        ids = self._op.tokenize(words)
        spelled = ids.values == self._spelled_unknown_id
        values, splits = tf.cond(
            tf.reduce_any(spelled), lambda: self._fused(ids), lambda: (ids.values, ids.row_splits)
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def _fused(self, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the spelled-out unknown piece its id, and makes neighbours one."""
        spelled = ids.values == self._spelled_unknown_id
        values = tf.where(spelled, self._unknown_id, ids.values)
        rows = ids.value_rowids()
        again = (values[1:] == self._unknown_id) & (values[:-1] == self._unknown_id)
        again = tf.concat([[False], again & (rows[1:] == rows[:-1])], 0)
        fused = tf.ragged.boolean_mask(ids.with_values(values), ids.with_values(~again))
        return fused.values, fused.row_splits


def _with_exact_sums(pieces: Sequence[tuple[str, float]]) -> list[float]:
    """Returns the scores for the op."""
    smallest = _on_grid(min(score for _, score in pieces))
    potentials = {
        piece: max(0.0, _on_grid(-_SHARE * score)) for piece, score in pieces if len(piece) == 1
    }

    def raised(piece: str, score: float, other: float) -> float:
        return _on_grid(score) + sum(potentials.get(c, other) for c in piece)

    # The op takes the smallest score less 10 for an unknown character. That is the smallest of
    # ours, too, if those characters are worth the difference.
    other = min(raised(piece, score, 0.0) for piece, score in pieces) - smallest
    return [raised(piece, score, other) for piece, score in pieces]


def _on_grid(score: float) -> float:
    return round(score * _GRID) / _GRID


def _check(pieces: Sequence[tuple[str, float]], unknown_id: int) -> None:
    rule = f"the id of one of the {len(pieces)} pieces"
    require(0 <= unknown_id < len(pieces), "unknown_id", rule, unknown_id)
    seen: set[str] = set()
    for index, (piece, _) in enumerate(pieces):
        if not piece or piece in seen:
            raise ConfigError(
                f"`pieces` must be distinct and not empty. Received: {shorten(piece)} as id {index}"
            )
        seen.add(piece)
