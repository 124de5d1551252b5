"""XLA compiles the step: padding stays among the tokens, and the step is the same."""

import dataclasses

import keras
import numpy as np
import tiny

from tfde.data.pairs.dataset import pairs
from tfde.tasks.retrieval_task import RetrievalTask


def test_compiled_step_is_the_same(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=20)
    batches = pairs(data, batch_size=4)
    weights = []
    for jit_compile in (False, True):
        model = tiny.dual_encoder(dataclasses.replace(tiny.T5, num_layers=1, dropout=0.0))
        model.compile(keras.optimizers.SGD(0.1), task=RetrievalTask(0.1), jit_compile=jit_compile)
        model.fit(batches, steps=2, verbose=0)
        weights.append(model.get_weights())
    for expected, actual in zip(*weights, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
