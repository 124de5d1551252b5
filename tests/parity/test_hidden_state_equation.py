"""The loss of hidden states and its gradients against the equation, written in NumPy with loops."""

import numpy as np
import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.matching.pair_states import PairStates, TextTokens
from tfde.matching.state_losses import HiddenLoss, VirtLoss

WIDTH = 3
# Of three pairs: how many tokens each text has for the student, and for the teacher.
STUDENT_COUNTS = [(3, 4), (1, 2), (0, 0)]
TEACHER_COUNTS = [(3, 2), (1, 2), (2, 1)]


class Encoder:
    """What the loss looks at of an encoder: names of layers and their size."""

    def __init__(self, layers: int, *, width: int = WIDTH) -> None:
        self.num_heads, self.hidden_dim = 1, width
        self.transformer_layers = [tf.Module(f"transformer_layer_{i}") for i in range(layers)]


def places(counts, first, second) -> tuple[TextTokens, TextTokens]:
    """Where the tokens stand: first ones at `first`, second ones at `second` of each pair."""
    return tuple(
        TextTokens(tf.constant(starts, tf.int32), tf.constant([pair[side] for pair in counts]))
        for side, starts in enumerate((first, second))
    )


def expected_loss(own, own_starts, theirs, their_starts) -> np.ndarray:
    """Mean over the tokens of both texts, and over layers, of the mean squared difference."""
    losses = []
    for pair, (mine, other) in enumerate(zip(STUDENT_COUNTS, TEACHER_COUNTS, strict=True)):
        total = []
        for x, y in zip(own, theirs, strict=True):
            gaps = [
                np.mean((x[side][pair, at[side] + i] - y[pair, there[side] + i]) ** 2)
                for side in (0, 1)
                for i in range(min(mine[side], other[side]))
                for at, there in [(own_starts[pair], their_starts[pair])]
            ]
            total.append(np.mean(gaps) if gaps else 0.0)
        losses.append(np.mean(total))
    return np.array(losses)


@pytest.mark.parametrize("joint", [False, True])
def test_the_loss_and_its_gradients(joint):
    """Texts apart (two sequences of two layers), and a third layer that reads both."""
    rng = np.random.default_rng(0)
    apart = [rng.normal(size=(2, 3, length, WIDTH)) for length in (5, 6)]
    top = rng.normal(size=(1, 3, 11, WIDTH))
    teacher = rng.normal(size=(3 if joint else 4, 3, 9, WIDTH))
    their_starts = [(1, 2 + pair[0]) for pair in TEACHER_COUNTS]
    theirs = places(TEACHER_COUNTS, *zip(*their_starts, strict=True))
    own = places(STUDENT_COUNTS, [1] * 3, [1] * 3)
    joint_starts = [(1, 3 + pair[0]) for pair in STUDENT_COUNTS]
    joint_tokens = places(STUDENT_COUNTS, *zip(*joint_starts, strict=True))
    watched = [tf.constant(x) for x in (*apart[0], *apart[1], *top)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        student = PairStates(
            {"hidden_states": watched[:2]},
            {"hidden_states": watched[2:4]},
            own,
            {"hidden_states": watched[4:]} if joint else None,
            joint_tokens if joint else None,
        )
        taught = PairStates({"hidden_states": list(map(tf.constant, teacher))}, None, theirs)
        loss = HiddenLoss(Encoder(3 if joint else 2), Encoder(len(teacher)), apart=2)
        found = loss(student, taught)
        total = tf.reduce_sum(found)

    def expected():
        if joint:  # the upper layer alone, layer l from layer l
            return expected_loss([(top[0], top[0])], joint_starts, teacher[2:], their_starts)
        layers = list(zip(*apart, strict=True))
        return expected_loss(layers, [(1, 1)] * 3, teacher[[1, 3]], their_starts)

    np.testing.assert_allclose(found, expected(), rtol=1e-5)
    assert expected()[2] == 0.0  # a text without tokens
    gradients = tape.gradient(total, watched)
    arrays = [top[0]] if joint else [*apart[0], *apart[1]]
    step = 1e-6
    for array, gradient in zip(arrays, gradients[4:] if joint else gradients[:4], strict=True):
        for number in rng.choice(array.size, 8, replace=False):
            place = np.unravel_index(number, array.shape)
            old, ends = array[place], []
            for value in (old + step, old - step):
                array[place] = value
                ends.append(expected().sum())
            array[place] = old
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float(gradient[place]) == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize(
    ("depths", "apart", "virt", "hidden"),
    [
        ((12, 12), 11, {i: i for i in range(11)}, {11: 11}),  # DeFormer: layer l from layer l
        ((2, 4), 2, {0: 1, 1: 3}, {0: 1, 1: 3}),
        ((3, 6), 2, {0: 1, 1: 3}, {2: 5}),
    ],
)
def test_which_layer_learns_from_which(depths, apart, virt, hidden):
    encoders = [Encoder(depth) for depth in depths]
    for loss, pairs in ((VirtLoss, virt), (HiddenLoss, hidden)):
        assert loss(*encoders, apart=apart).layers == {
            f"transformer_layer_{own}": f"transformer_layer_{taught}"
            for own, taught in pairs.items()
        }


def test_layers_that_cannot_learn():
    layers = {"transformer_layer_1": "transformer_layer_1"}
    assert HiddenLoss(Encoder(2), Encoder(2), apart=1, layers=layers).layers == layers
    with pytest.raises(
        ConfigError, match=r"has, transformer_layer_0\. Received: transformer_layer_1"
    ):
        VirtLoss(Encoder(2), Encoder(2), apart=1, layers=layers)
    with pytest.raises(ConfigError, match=r"student's 3 numbers of a hidden state\. Received: 4"):
        HiddenLoss(Encoder(2), Encoder(2, width=4), apart=1)
