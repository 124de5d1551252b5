"""TFRS beside Keras 3: what asks for Keras 2 after it was imported."""

import numpy as np
import tensorflow as tf

import tfde

tfrs, tf_keras = tfde.import_recommenders()

RNG = np.random.default_rng(4)
Q, D = (RNG.normal(size=shape).astype("float32") for shape in ((6, 5), (9, 5)))


def test_what_recommenders_asks_of_keras_later_is_keras_2():
    """Beside Keras 3: string ids, metrics in a graph, a model trained and saved."""
    before = tf.keras
    layers = tfrs.layers.factorized_top_k
    ids = tf.constant([f"d{row}" for row in range(9)])
    best = np.argsort(-Q @ D.T, axis=1)[:, :3]
    for layer in (layers.BruteForce(k=3), layers.Streaming(k=3)):
        rows = tf.data.Dataset.from_tensor_slices((ids, tf.constant(D))).batch(4)
        found = layer.index_from_dataset(rows)(tf.constant(Q))[1].numpy()
        assert found.astype(str).tolist() == [[f"d{row}" for row in own] for own in best]

    class Model(tfrs.Model):
        def __init__(self):
            super().__init__()
            self.tower = tf_keras.layers.Dense(5, "linear", use_bias=False)
            candidates = tf.data.Dataset.from_tensor_slices(tf.constant(D)).batch(4)
            metrics = tfrs.metrics.FactorizedTopK(candidates.map(self.tower), ks=[1, 9])
            self.task = tfrs.tasks.Retrieval(metrics=metrics)

        def compute_loss(self, inputs, training=False):
            return self.task(self.tower(inputs), self.tower(inputs))

    model = Model()
    model.compile(tf_keras.optimizers.SGD(0.0))
    logs = model.fit(tf.data.Dataset.from_tensor_slices(D).batch(9), verbose=0).history
    assert 0 < logs["factorized_top_k/top_1_categorical_accuracy"][0] < 1
    assert logs["factorized_top_k/top_9_categorical_accuracy"] == [1.0]
    assert tf.keras is before
    assert before.__version__.startswith("3.")
