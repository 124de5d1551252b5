"""VIRT: attention between two texts, taught by a cross-encoder to encoders apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfde.backbones.transformer import EncoderStates
from tfde.errors import ConfigError
from tfde.matching.attention_maps import (
    CrossMaps,
    TextTokens,
    maps_apart,
    maps_together,
    shared_tokens,
)

_LEAST_SQUARE = 1e-12  # the root has no gradient at 0


class _Encoder(Protocol):
    num_heads: int

    @property
    def transformer_layers(self) -> Sequence[tf.Module]: ...


class VirtLoss:
    """How far the maps that two encoders apart would have are from those of a cross-encoder.

    With L pairs of layers, A heads, and the maps M of the teacher and V of the student,

        loss = 1 / (2 L A) sum_l sum_a [mean_i |M_xy(i) - V_xy(i)| + mean_j |M_yx(j) - V_yx(j)|],

    the norm of the difference of each real row, and then the mean over the batch. Special tokens
    are left out on both sides, and so are tokens that only one of the two saw, because it cuts
    texts elsewhere; what is left of a row sums to 1 again.

    It is for training alone: the student is called as always, only its queries and keys are
    looked at.

    Args:
        student: The encoder of the texts apart.
        teacher: That of the pair.
        layers: Name of a student's layer -> name of the teacher's layer that it learns from. `None`
            takes every layer of the student: the last one learns from the last one, the others
            evenly from below.
        student_layers: So many lower layers of the student see the texts apart; `None` for all.

    Raises:
        ConfigError: a layer is unknown; the student has more layers than the teacher and `layers`
            is not given; the numbers of heads differ.

    Source: Li et al. 2021, equation 7; the norm, the means and the tokens are derived here.
    """

    def __init__(
        self,
        student: _Encoder,
        teacher: _Encoder,
        *,
        layers: Mapping[str, str] | None = None,
        student_layers: int | None = None,
    ) -> None:
        own = [layer.name for layer in student.transformer_layers][:student_layers]
        theirs = [layer.name for layer in teacher.transformer_layers]
        if student.num_heads != teacher.num_heads:
            raise ConfigError(
                f"the teacher must have the student's {student.num_heads} attention heads."
                f" Received: {teacher.num_heads}"
            )
        if layers is None:
            if len(own) > len(theirs):
                raise ConfigError(
                    f"the teacher must have at least the student's {len(own)} layers, or `layers`"
                    f" must say which learns from which. Received: {len(theirs)}"
                )
            layers = {
                name: theirs[(place + 1) * len(theirs) // len(own) - 1]
                for place, name in enumerate(own)
            }
        self.layers = dict(layers)
        if not self.layers:
            raise ConfigError("`layers` must name at least one layer. Received: none")
        self._places = [
            (_place(own, name, "student"), _place(theirs, taught, "teacher"))
            for name, taught in self.layers.items()
        ]

    def __call__(
        self,
        student_states: tuple[EncoderStates, EncoderStates],
        student_tokens: tuple[TextTokens, TextTokens],
        teacher_states: EncoderStates,
        teacher_tokens: tuple[TextTokens, TextTokens],
    ) -> tf.Tensor:
        """Returns the loss of each pair, (B,) float32.

        Args:
            student_states: Of the first texts, and of the second.
            student_tokens: Where their tokens stand in these.
            teacher_states: Of the sequences that hold both.
            teacher_tokens: Where the tokens stand there.
        """
        counts = (
            shared_tokens(student_tokens[0], teacher_tokens[0]),
            shared_tokens(student_tokens[1], teacher_tokens[1]),
        )
        total = tf.zeros_like(counts[0], tf.float32)
        for own, taught in self._places:
            maps = maps_apart(*student_states, own, student_tokens, counts)
            wanted = maps_together(teacher_states, taught, teacher_tokens, counts)
            total += maps_distance(maps, wanted, counts)
        return total / len(self._places)


def maps_distance(
    maps: CrossMaps, wanted: CrossMaps, counts: tuple[tf.Tensor, tf.Tensor]
) -> tf.Tensor:
    """Returns the distance of the maps of one layer, (B,) float32; 0 where a text has no tokens.

    Args:
        maps: Those of the student.
        wanted: Those of the teacher, whose gradient is stopped.
        counts: How many rows of the first and of the second text are real, (B,) each.
    """
    total = tf.zeros_like(counts[0], tf.float32)
    both = tf.cast((counts[0] > 0) & (counts[1] > 0), tf.float32)
    for own, other, count in zip(maps, wanted, counts, strict=True):
        squares = tf.reduce_sum(tf.square(own - tf.stop_gradient(other)), axis=-1)
        norms = tf.reduce_mean(tf.sqrt(squares + _LEAST_SQUARE), axis=1)
        rows = tf.sequence_mask(count, tf.shape(norms)[1], tf.float32)
        divisor = tf.maximum(tf.cast(count, tf.float32), 1.0)
        total += tf.reduce_sum(norms * rows, axis=1) / divisor
    return total * both / 2.0


def _place(names: Sequence[str], name: str, whose: str) -> int:
    if name not in names:
        raise ConfigError(
            f"`layers` must name layers that the {whose} has, {', '.join(names)}. Received: {name}"
        )
    return names.index(name)
