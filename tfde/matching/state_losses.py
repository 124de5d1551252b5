"""What a cross-encoder's layers teach those of a student: attention (VIRT) and hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfde.errors import ConfigError
from tfde.matching.attention_maps import CrossMaps, cross_maps
from tfde.matching.pair_states import PairStates, shared_tokens

_LEAST_SQUARE = 1e-12  # the root has no gradient at 0


class Encoder(Protocol):
    """What is asked of an encoder; `transformer_layers` have names."""

    num_heads: int
    hidden_dim: int

    @property
    def transformer_layers(self) -> Sequence[tf.Module]: ...  # noqa: D102


class StateLoss(ABC):
    """A distance between what layers of student and teacher computed, its mean over the layers.

    Special tokens are left out on both sides, and so are tokens that only one of the two saw,
    because it cuts texts elsewhere. It is for training alone: the student is called as always,
    only what it computes on its way is looked at.

    Args:
        student: The student's encoder.
        teacher: That of the pair.
        apart: So many lower layers of the student see each text alone.
        layers: Name of a student's layer -> name of the teacher's layer that it learns from. `None`
            takes `own_layers`: of all layers of the student the last one learns from the last one,
            the others evenly from below.

    Attributes:
        layers: The same, by name.

    Raises:
        ConfigError: a layer is unknown; the student has more layers than the teacher and `layers`
            is not given, or none that can learn; the encoders' sizes differ.
    """

    size: str  # of both encoders
    size_name: str

    def __init__(
        self,
        student: Encoder,
        teacher: Encoder,
        *,
        apart: int,
        layers: Mapping[str, str] | None = None,
    ) -> None:
        wanted, found = getattr(student, self.size), getattr(teacher, self.size)
        if wanted != found:
            raise ConfigError(
                f"the teacher must have the student's {wanted} {self.size_name}. Received: {found}"
            )
        own = [layer.name for layer in student.transformer_layers]
        theirs = [layer.name for layer in teacher.transformer_layers]
        first, end = self.own_layers(len(own), apart)
        if first == end:
            raise ConfigError(
                "the student must have layers that see each text alone: a cross-encoder has the"
                " attention that VIRT teaches. Received: none"
            )
        if layers is None:
            if len(own) > len(theirs):
                raise ConfigError(
                    f"the teacher must have at least the student's {len(own)} layers, or `layers`"
                    f" must say which learns from which. Received: {len(theirs)}"
                )
            layers = {
                own[place]: theirs[(place + 1) * len(theirs) // len(own) - 1]
                for place in range(first, end)
            }
        self.layers = dict(layers)
        if not self.layers:
            raise ConfigError("`layers` must name at least one layer. Received: none")
        known = own[:end]
        self._places = [
            (_place(known, name, "student"), _place(theirs, taught, "teacher"))
            for name, taught in self.layers.items()
        ]

    def __call__(self, student: PairStates, teacher: PairStates) -> tf.Tensor:
        """Returns the loss of each pair, (B,) float32; the teacher's gradient is stopped."""
        losses = [self.distance(student, own, teacher, taught) for own, taught in self._places]
        return tf.add_n(losses) / len(losses)

    @abstractmethod
    def distance(
        self, student: PairStates, own: int, teacher: PairStates, taught: int
    ) -> tf.Tensor:
        """Returns how far the student's layer `own` is from the teacher's `taught`, (B,)."""

    @staticmethod
    @abstractmethod
    def own_layers(total: int, apart: int) -> tuple[int, int]:
        """Returns the first layer that learns unless told, and the one after the last that can."""


class VirtLoss(StateLoss):
    """How far the maps that two encoders apart would have are from those of a cross-encoder.

    With L pairs of layers, A heads, and the maps M of the teacher and V of the student,

        loss = 1 / (2 L A) sum_l sum_a [mean_i |M_xy(i) - V_xy(i)| + mean_j |M_yx(j) - V_yx(j)|],

    the norm of the difference of each real row, and then the mean over the batch. What is left of
    a row without special tokens sums to 1 again.

    Source: Li et al. 2021, equation 7; the norm, the means and the tokens are derived here.
    """

    size, size_name = "num_heads", "attention heads"

    @staticmethod
    def own_layers(total: int, apart: int) -> tuple[int, int]:
        """Those that see the texts apart; the others have the attention itself."""
        return 0, apart

    def distance(
        self, student: PairStates, own: int, teacher: PairStates, taught: int
    ) -> tf.Tensor:
        """Returns the distance of one layer's maps, (B,)."""
        pairs = zip(student.tokens, teacher.tokens, strict=True)
        first, second = (shared_tokens(*pair) for pair in pairs)
        counts = (first, second)
        maps, wanted = cross_maps(student, own, counts), cross_maps(teacher, taught, counts)
        return maps_distance(maps, wanted, counts)


class HiddenLoss(StateLoss):
    """How far tokens' hidden states are from those that a cross-encoder gives the same tokens.

    loss = 1 / L sum_l mean over the tokens of both texts of mean_h (student - teacher)^2.

    Source: Cao et al. 2020, section 3.2 (the upper layers of DeFormer). They compare every place;
        that special tokens are left out is derived here.
    """

    size, size_name = "hidden_dim", "numbers of a hidden state"

    @staticmethod
    def own_layers(total: int, apart: int) -> tuple[int, int]:
        """Those that read both texts, or all where there are none."""
        return apart % total, total

    def distance(
        self, student: PairStates, own: int, teacher: PairStates, taught: int
    ) -> tf.Tensor:
        """Returns the mean squared distance of one layer's states, (B,)."""
        total, tokens = tf.constant(0.0), tf.constant(0.0)
        for side in (0, 1):
            (x, places), (y, theirs) = student.hidden(own, side), teacher.hidden(taught, side)
            count = shared_tokens(places, theirs)
            longest = tf.maximum(tf.reduce_max(count), 1)
            x, y = (
                tf.gather(states, where.places(longest, tf.shape(states)[1]), batch_dims=1)
                for states, where in ((x, places), (y, theirs))
            )
            gaps = tf.cast(x, tf.float32) - tf.stop_gradient(tf.cast(y, tf.float32))
            real = tf.sequence_mask(count, longest, tf.float32)
            total += tf.reduce_sum(tf.reduce_mean(tf.square(gaps), axis=2) * real, axis=1)
            tokens += tf.reduce_sum(real, axis=1)
        return total / tf.maximum(tokens, 1.0)


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
