"""What do single TensorFlow ops of a Transformer layer cost on this machine?

    python benchmarks/operations.py [--tokens 4096] [--turns 15]

The sizes are those of all-MiniLM-L6-v2's inner layer. Prints one JSON object: the fastest and the
median of the turns in milliseconds by dtype and op, and GFLOP/s of the matrix products. The
findings stand in docs/design/0003-speed.md.
"""

import argparse
import json
import statistics
import time
from functools import partial

import tensorflow as tf

import tfde  # noqa: F401  # before Keras
from tfde.backbones.functional import activate, layer_norm
from tfde.backbones.seeded_layer import SeededLayer
from tfde.backbones.token_layout import TokenLayout

HIDDEN, INNER, HEADS = 384, 1536, 12


def operations(dtype: tf.DType, tokens: int) -> dict:
    """Returns name -> (function, floating point operations of a matrix product or 0)."""
    import keras

    x, y = (tf.cast(tf.random.normal((tokens, INNER)), dtype) for _ in range(2))
    hidden = tf.cast(tf.random.normal((tokens, HIDDEN)), dtype)
    kernel = tf.cast(tf.random.normal((HIDDEN, INNER)), dtype)
    qkv = tf.cast(tf.random.normal((tokens, 3 * HIDDEN)), dtype)
    texts = (tokens // 128, 128)
    layout = TokenLayout(tf.ones(texts, tf.int32), HEADS)
    apart = (*texts, 3, HEADS, HIDDEN // HEADS)
    keep, zero = x > 0, tf.zeros((), dtype)
    gamma, beta = tf.ones((HIDDEN,)), tf.zeros((HIDDEN,))
    generator = keras.random.SeedGenerator(1)
    ours = SeededLayer(dropout=0.1, seed=1)
    product = 2 * tokens * HIDDEN * INNER

    # Of a length that is not known beforehand, as in a model: others are not rewritten.
    any_length = [tf.TensorSpec((None, HIDDEN), dtype)]

    def norm(training: bool) -> partial:
        @tf.function(input_signature=any_length, autograph=False)
        def traced(tokens: tf.Tensor) -> tf.Tensor:
            return layer_norm(tokens, gamma, beta, 1e-12, training=training)

        return partial(traced, hidden)

    return {
        "matmul": (lambda: tf.matmul(hidden, kernel), product),
        "matmul by the transposed kernel": (
            lambda: tf.matmul(x, kernel, transpose_b=True),
            product,
        ),
        "matmul of the transposed tokens": (
            lambda: tf.matmul(hidden, x, transpose_a=True),
            product,
        ),
        "multiply": (lambda: x * y, 0),
        "multiply by a mask": (lambda: x * tf.cast(keep, dtype), 0),
        "where": (lambda: tf.where(keep, x, zero), 0),
        "erf": (lambda: tf.math.erf(x), 0),
        "erfc": (lambda: tf.math.erfc(x), 0),
        "gelu of TensorFlow": (lambda: tf.nn.gelu(x, approximate=False), 0),
        "gelu for training": (lambda: activate("gelu", x, training=True), 0),
        "softmax": (lambda: tf.nn.softmax(x), 0),
        "dropout of Keras": (lambda: keras.random.dropout(x, 0.1, seed=generator), 0),
        "dropout of ours": (lambda: ours._drop(x, True), 0),
        "layer norm for training": (norm(True), 0),
        "layer norm for inference": (norm(False), 0),
        "heads by transpose": (
            lambda: tf.transpose(tf.reshape(qkv, apart), (2, 0, 3, 1, 4)),
            0,
        ),
        "heads by gather": (lambda: layout.split_heads(qkv), 0),
    }


def measure(function, turns: int) -> list[float]:
    """Returns the seconds of each turn, sorted; two more before them do not count."""
    traced = function if isinstance(function, partial) else tf.function(function, autograph=False)
    seconds = []
    for _ in range(turns + 2):
        start = time.perf_counter()
        traced()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[2:])


def main() -> None:
    """Measures every op in float32 and bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="a multiple of 128")
    parser.add_argument("--turns", type=int, default=15, help="measurements of each op")
    args = parser.parse_args()
    result: dict = {"tokens": args.tokens}
    for dtype in (tf.float32, tf.bfloat16):
        result[dtype.name] = {}
        for name, (function, product) in operations(dtype, args.tokens).items():
            seconds = measure(function, args.turns)
            found = {
                "fastest_ms": round(1e3 * seconds[0], 3),
                "median_ms": round(1e3 * statistics.median(seconds), 3),
            }
            if product:
                found["gflop_per_s"] = round(product / statistics.median(seconds) / 1e9)
            result[dtype.name][name] = found
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
