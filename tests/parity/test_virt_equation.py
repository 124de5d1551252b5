"""VIRT's loss and its gradients against the equation, written in NumPy with loops."""

import math
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfde.matching.pair_states import PairStates, TextTokens
from tfde.matching.state_losses import VirtLoss

HEADS, DIM = 2, 3
# Of three pairs: how many tokens each text has for the student, and for the teacher.
STUDENT_COUNTS = [(3, 4), (1, 2), (2, 0)]
TEACHER_COUNTS = [(3, 2), (1, 2), (2, 1)]


class Encoder:
    """What the loss looks at of an encoder: names of layers and the number of heads."""

    def __init__(self, layers: int) -> None:
        self.num_heads, self.hidden_dim = HEADS, HEADS * DIM
        self.transformer_layers = [tf.Module(f"transformer_layer_{i}") for i in range(layers)]


def states(rng, layers: int, length: int, bias: np.ndarray) -> dict:
    def draw():
        return [rng.normal(size=(3, HEADS, length, DIM)) for _ in range(layers)]

    return {"queries": draw(), "keys": draw(), "bias": bias}


def tensors(value: dict) -> dict:
    return {
        name: [tf.constant(x, tf.float32) for x in part] if name != "bias" else tf.constant(part)
        for name, part in value.items()
    }


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max())
    return x / x.sum()


def expected_loss(students, teacher, layers, bias, first_place) -> np.ndarray:
    """1 / (2 L A) sum over layers and heads of the mean norms of the rows' differences."""
    losses = []
    for b, (own, theirs) in enumerate(zip(STUDENT_COUNTS, TEACHER_COUNTS, strict=True)):
        m, n = (min(pair) for pair in zip(own, theirs, strict=True))
        total = 0.0
        for layer, taught in layers:
            for a in range(HEADS if m and n else 0):
                q = [side["queries"][layer][b, a, first_place:] for side in students]
                k = [side["keys"][layer][b, a, first_place:] for side in students]
                # In the teacher's sequence: start, first text, one that parts, second text.
                at = [1 + np.arange(m), 1 + theirs[0] + 1 + np.arange(n)]
                tq, tk = teacher["queries"][taught][b, a], teacher["keys"][taught][b, a]
                for x, y, rows, columns in ((0, 1, m, n), (1, 0, n, m)):
                    norms = []
                    for i in range(rows):
                        own_row = softmax(k[y][:columns] @ q[x][i])
                        scores = tk[at[y]] @ tq[at[x][i]] + bias[0, a, at[x][i], at[y]]
                        norms.append(math.sqrt(((own_row - softmax(scores)) ** 2).sum()))
                    total += sum(norms) / rows
        losses.append(total / (2 * len(layers) * HEADS))
    return np.array(losses)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize(("depths", "heads"), [((2, 2), 2), ((2, 5), 2), ((1, 3), 2), ((2, 2), 1)])
def test_the_loss_and_its_gradients(depths, heads, positions, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "HEADS", heads)
    rng = np.random.default_rng(0)
    padding = np.zeros((3, 1, 1, 9), np.float32)
    bias = np.zeros((1, HEADS, 9, 9))
    if positions:
        bias = rng.normal(size=(1, HEADS, 9, 9))
    students = [states(rng, depths[0], length, padding) for length in (5, 6)]
    teacher = states(rng, depths[1], 9, (bias + padding if positions else padding).astype("f4"))
    loss = VirtLoss(Encoder(depths[0]), Encoder(depths[1]), apart=depths[0])
    layers = [(i, (i + 1) * depths[1] // depths[0] - 1) for i in range(depths[0])]

    def places(counts, starts):
        return tuple(
            TextTokens(tf.constant(start, tf.int32), tf.constant([pair[side] for pair in counts]))
            for side, start in enumerate(starts)
        )

    own = places(STUDENT_COUNTS, ([1] * 3, [1] * 3))
    theirs = places(TEACHER_COUNTS, ([1] * 3, [2 + pair[0] for pair in TEACHER_COUNTS]))
    sides = [tensors(side) for side in students]
    watched = [x for side in sides for name in ("queries", "keys") for x in side[name]]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        found = loss(PairStates(*sides, own), PairStates(tensors(teacher), None, theirs))
        total = tf.reduce_sum(found)
    expected = expected_loss(students, teacher, layers, bias, 1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected[2] == 0.0  # a text without tokens
    gradients = [gradient.numpy() for gradient in tape.gradient(total, watched)]
    arrays = [x for side in students for name in ("queries", "keys") for x in side[name]]
    step = 1e-5
    for array, gradient in zip(arrays, gradients, strict=True):
        numbers = rng.choice(array.size, 6, replace=False)
        for place in map(tuple, np.array(np.unravel_index(numbers, array.shape)).T):
            old = array[place]
            ends = []
            for value in (old + step, old - step):
                array[place] = value
                ends.append(expected_loss(students, teacher, layers, bias, 1).sum())
            array[place] = old
            assert gradient[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-4)
    np.testing.assert_array_equal([np.abs(g[2]).max() for g in gradients], 0.0)
