"""An optimizer that shows gradients, and batches to take them of."""

import keras
import numpy as np
import tensorflow as tf
import tiny


class TakeGradients(keras.optimizers.SGD):
    """Puts the gradient in the place of each weight, where tests can read it."""

    def apply(self, grads, trainable_variables=None):
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(gradient), variable.dtype))


def random_pairs(count, *, negatives=0, positives=1, seed=0):
    """A batch as `PairDataset` yields it: texts of 1 to 9 words, with an accidental hit.

    Documents 0 and 3 are one document, document 1 also answers query 4 (given two positives) and
    the last given negative is padding.
    """
    rng = np.random.default_rng(seed)
    texts = [
        " ".join(rng.choice(tiny.WORDS, rng.integers(1, 10)))
        for _ in range(count * (2 + negatives))
    ]
    keys = np.arange(1, count * (1 + negatives) + 1)
    texts[count + 3], keys[3] = texts[count], keys[0]
    known = np.zeros((count, positives), np.int64)
    known[:, 0] = keys[:count]
    if positives > 1:
        known[4, 1] = keys[1]
    given = keys[count:].reshape(count, negatives)
    if negatives:
        given[-1, -1] = 0
    return {
        "query": tf.constant(texts[:count]),
        "document_title": tf.fill([count], ""),
        "document_text": tf.constant(texts[count : 2 * count]),
        "document_key": tf.constant(keys[:count]),
        "positive_keys": tf.constant(known),
        "negative_title": tf.fill([count, negatives], ""),
        "negative_text": tf.reshape(tf.constant(texts[2 * count :], tf.string), [count, negatives]),
        "negative_key": tf.constant(given),
        "document_probability": tf.constant(rng.uniform(0.01, 0.2, count), tf.float32),
    }


def take_step(model, batch, **options):
    """Trains one step; returns loss, in-batch accuracy and the gradient of each weight by path."""
    model.compile(TakeGradients(), **options)
    history = model.fit(tf.data.Dataset.from_tensors(batch), verbose=0).history
    gradients = {weight.path: weight.numpy() for weight in model.trainable_weights}
    return history["loss"][0], history["in_batch_accuracy"][0], gradients
