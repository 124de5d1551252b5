"""What an encoder computed of pairs of texts, and where the texts' tokens stand in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from tfde.backbones.transformer import EncoderStates


class TextTokens(NamedTuple):
    """Where the tokens of a text stand in a sequence, special tokens left out.

    Attributes:
        start: (B,) int32, place of the first one.
        count: (B,) int32, how many there are; they stand side by side.
    """

    start: tf.Tensor
    count: tf.Tensor

    def places(self, longest: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Returns the places of the first `longest` tokens in a sequence of `length`, (B, N)."""
        return tf.minimum(self.start[:, None] + tf.range(longest)[None], length - 1)


Tokens = tuple[TextTokens, TextTokens]  # of the first texts, and of the second


@dataclass(frozen=True)
class PairStates:
    """What an encoder computed of pairs.

    Args:
        first: Of the sequences that hold the first texts.
        second: Of those that hold the second; `None` where the first's hold both.
        tokens: Where the texts' tokens stand in these.
        joint: Of the layers that follow and read both texts in one sequence, if there are any.
        joint_tokens: Where the tokens stand there.
    """

    first: EncoderStates
    second: EncoderStates | None
    tokens: Tokens
    joint: EncoderStates | None = None
    joint_tokens: Tokens | None = None

    def sides(self) -> tuple[EncoderStates, EncoderStates]:
        """Returns the states that hold each text."""
        return self.first, self.first if self.second is None else self.second

    def hidden(self, layer: int, side: int) -> tuple[tf.Tensor, TextTokens]:
        """Returns a layer's output, (B, L, H), and where the tokens of a text stand in it.

        Args:
            layer: Number of the layer.
            side: 0 for the first texts, 1 for the second.
        """
        states = self.sides()[side]["hidden_states"]
        if layer < len(states):
            return states[layer], self.tokens[side]
        if self.joint is None or self.joint_tokens is None:
            raise IndexError(layer)
        return self.joint["hidden_states"][layer - len(states)], self.joint_tokens[side]


def shared_tokens(one: TextTokens, other: TextTokens) -> tf.Tensor:
    """Returns how many tokens of a text stand in both sequences, (B,): each cuts on the right."""
    return tf.minimum(one.count, other.count)
