"""Small SavedModels that no retrieval is in, in the ways of TensorFlow 2 and 1."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep


class Toy(tf.Module):
    """Signatures of every kind of input and output that the protocol tells apart."""

    def __init__(self, factor: float) -> None:
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def scale(self, x):
        return {"y": x * self.factor}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None], tf.int32, name="count"),
        ]
    )
    def two(self, text, count):
        return {
            "repeated": tf.strings.reduce_join(tf.stack([text, text], 1), 1),
            "raw_bytes": text,
            "next": count + 1,
            "positive": count > 0,
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def scalar(self, x):
        return {"root": tf.sqrt(x), "matrix": tf.ones([2, 3]) * x, "word": tf.constant("v1")}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="steps")])
    def slow(self, steps):
        def step(i, x):
            return i + 1, tf.linalg.matmul(x, x) * 0.001

        _, x = tf.while_loop(lambda i, _: i < tf.reduce_max(steps), step, (0, tf.ones([400, 400])))
        return {"sum": tf.fill(tf.shape(steps), tf.reduce_sum(x))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="k")])
    def guarded(self, k):
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(k > 0), ["`k` is bad", k])]
        ):
            return {"k": tf.identity(k)}


def save_toy(directory: Path, factor: float) -> None:
    toy = Toy(factor)
    tf.saved_model.save(
        toy,
        str(directory),
        signatures={
            "serving_default": toy.scale,
            "two": toy.two,
            "scalar": toy.scalar,
            "slow": toy.slow,
            "guarded": toy.guarded,
        },
    )


def save_examples(directory: Path) -> None:
    """A model as TensorFlow 1 wrote them: examples in, reference variables, a table."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        serialized = v1.placeholder(tf.string, [None], name="examples")
        features = {
            "x": v1.io.FixedLenFeature([1], tf.float32),
            "bias": v1.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
        }
        parsed = v1.io.parse_example(serialized, features)
        with v1.variable_scope("weights", use_resource=False):
            weight = v1.get_variable("w", [1, 2], initializer=v1.constant_initializer([1.0, -1.0]))
        scores = tf.matmul(parsed["x"], weight) + parsed["bias"]
        names = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), ["up", "down"]), "?"
        )
        rows = tf.shape(scores)[:1]
        classes = tf.tile(names.lookup(tf.constant([[0, 1]], tf.int64)), tf.concat([rows, [1]], 0))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])

        def signature(method, **outputs):
            return v1.saved_model.build_signature_def(
                {"inputs": v1.saved_model.build_tensor_info(serialized)},
                {name: v1.saved_model.build_tensor_info(t) for name, t in outputs.items()},
                f"tensorflow/serving/{method}",
            )

        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "serving_default": signature("classify", classes=classes, scores=scores),
                "scores": signature("classify", scores=scores),
                "sum": signature("regress", outputs=scores[:, 0]),
                "wide": signature("regress", outputs=scores),
            },
            main_op=v1.tables_initializer(),
        )
        builder.save()


def repeated(value, *shape: int):
    """A tensor in which a few bytes stand for many: the value fills the shape."""
    proto = tf.make_tensor_proto(value)
    del proto.tensor_shape.dim[:]
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def save_waiting(directory: Path, gate: Path) -> None:
    """A model whose warm-up waits until a file is there, and then fails."""
    from tfde.export.serving_files import write_warmup

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def wait(text):
        pause = tf.data.Dataset.range(1).apply(sleep(20_000))

        def look(opened):
            with tf.control_dependencies([pause.reduce(np.int64(0), lambda _, x: x)]):
                # What depends on nothing would be looked for once, when the graph is optimized.
                pattern = tf.strings.join([str(gate), tf.where(opened, "x", "")])
                return tf.size(tf.io.matching_files(pattern)) > 0

        opened = tf.while_loop(tf.math.logical_not, look, [tf.constant(False)])
        with tf.control_dependencies(opened):
            return {"text": tf.debugging.check_numerics(tf.math.log([-1.0]), "the gate is open")}

    tf.saved_model.save(tf.Module(), str(directory), {"serving_default": wait})
    write_warmup(directory, "waiting", [("serving_default", {"text": ["x"]})])


def put(saved, base, version):
    """Copies a version as it should be done: under another name first."""
    shutil.copytree(saved / str(version), base / f".{version}")
    (base / f".{version}").rename(base / str(version))


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
