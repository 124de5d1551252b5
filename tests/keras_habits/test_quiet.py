"""Nothing on stderr that nobody asked for, and things say what they are."""

import logging
import os
import subprocess
import sys

import tensorflow as tf
import tiny

from tfde.text.graph_function import graph_function

PAIRS = [("red apple", "an apple is red"), ("blue sea", "the sea is blue"), ("cat", "a cat")]


def run(code, **variables):
    """Runs Python in a fresh process without TensorFlow's variables, and returns its stderr."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=own | variables, capture_output=True, text=True, check=True)
    return done.stderr


def test_a_first_embedding_leaves_stderr_empty(tmp_path):
    tiny.dual_encoder().save_to_preset(tmp_path / "model")
    code = (
        f"import tfde; print(tfde.DualEncoder.load({str(tmp_path / 'model')!r}).encode_query('a'))"
    )
    assert run(code) == ""
    assert "oneDNN" in run("import tfde, tensorflow", TF_CPP_MIN_LOG_LEVEL="0")


def test_help_leaves_stderr_empty():
    assert run("import tfde") == ""
    assert run("from tfde.cli.main import main; main(['--help'])") == ""


def warnings_of_retracing(work):
    """Returns what TensorFlow says of retracing while `work` is done."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = tf.get_logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("WARNING")  # another test may have made it quieter
    try:
        work()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [line for line in lines if "retracing" in line]


def test_many_functions_of_one_line_are_no_retracing_and_many_shapes_are():
    def many_functions():
        for number in range(7):
            graph_function(lambda x, number=number: x + number)(tf.constant(1))

    def many_shapes():
        function = graph_function(lambda x: x)
        for size in range(7):
            function(tf.zeros(size))

    assert warnings_of_retracing(many_functions) == []
    assert warnings_of_retracing(many_shapes)


def test_many_models_and_lengths_are_no_retracing():
    def work():
        for seed in range(5):
            model = tiny.dual_encoder(seed=seed)
            model.compile("adam")
            model.evaluate(PAIRS)
            for length in range(1, 4):
                model.encode_queries(["red apple " * length] * length)

    assert warnings_of_retracing(work) == []
