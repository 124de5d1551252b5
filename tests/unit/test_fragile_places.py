"""What we lean on that its authors never promised: one test a place.

Where a new release of a library breaks one, the message says which file of ours leans on it and
what is lost until that file is changed.
"""

import dataclasses
import importlib
import inspect
import subprocess
import sys
from typing import Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
from jsonargparse.typing import PositiveInt

from tfde.cli.parser import command_parser
from tfde.plain_errors import _PLAIN

# ---- jsonargparse --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Inner:
    """What a recipe may hold."""

    size: int = 1
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    above: PositiveInt = 1


@dataclasses.dataclass(frozen=True)
class Run:
    """A recipe."""

    inner: Inner = Inner()
    maybe: Inner | None = None
    count: int | None = None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--run.inner.kind", "c"), "inner.kind: must be one of 'a', 'b'. Received: c"),
        (("--run.inner.size", "x"), "inner.size: must be a whole number. Received: x"),
        (("--run.inner.names", "x"), "inner.names: must be a list. Received: x"),
        (("--run.inner.above", "-1"), "inner.above: must be above 0. Received: -1"),
        (("--run.maybe", "{size: x}"), "maybe: size: must be a whole number. Received: x"),
        (("--run.maybe", "x"), "maybe: must be a mapping. Received: x"),
        (("--run.count", "x"), "count: must be a whole number. Received: x"),
        (("--run.count", "1e3"), "count: must be a whole number. Received: 1e3"),
        (
            ("--run.maybe", "{lr: 1}"),
            "maybe: Option 'lr' is not accepted. Received: {'lr': 1}; did you mean learning_rate?",
        ),
        (("--run.maybe", "{odd: 1}"), "maybe: Option 'odd' is not accepted"),
        (("--run.inner", "{odd: 1}"), "run has no field 'inner"),
        (("--run", "gone.yaml"), "run must be a file. Received: 'gone.yaml'"),
        (("--rum", "x"), "unrecognized arguments: --rum x; did you mean --run?"),
    ],
)
def test_the_words_of_jsonargparse(arguments, line, capsys):
    parser = command_parser("train", "A command.")
    parser.add_argument("--run", type=Run)
    with pytest.raises(SystemExit):
        parser.parse_args(list(arguments))
    said = capsys.readouterr().err
    assert said.startswith(f"tfde train: {line}"), (
        "jsonargparse words this error anew: tfde/plain_errors.py (_PLAIN) reads its words, and"
        " tfde/cli/parser.py; until it knows the new ones, users of recipes see our classes' names"
        f" and several lines. Said: {said}"
    )
    assert not any(word in said for word in ("class_path", "Parser key", "<class", "typing."))


def test_no_pattern_for_words_that_jsonargparse_lost():
    import jsonargparse

    folder = jsonargparse.__path__[0]
    words = (
        "Problem with given class_path",
        "Does not validate against any of the Union subtypes",
        "does not conform to restriction",
        "does not accept option",
        "Unable to load config",
        "is not accepted",
    )
    for word in words:
        found = subprocess.run(["grep", "-rlF", word, folder], capture_output=True, check=False)
        assert found.returncode == 0, (
            f"jsonargparse says {word!r} no more: its line in tfde/plain_errors.py is dead, and"
            " what it says in its place reaches users unchanged"
        )
    assert len(_PLAIN) >= len(words) - 1


# ---- Keras ---------------------------------------------------------------------------------------


def test_keras_optimizers_sum_gradients_by_a_method_of_that_name():
    name = "_all_reduce_sum_gradients"
    optimizer, weight = keras.optimizers.SGD(1.0), keras.Variable(np.zeros(2, "float32"))
    asked = []

    def summed(pairs):
        asked.append(len(list(pairs)))
        return pairs

    assert hasattr(optimizer, name)
    setattr(optimizer, name, summed)
    tf.distribute.get_strategy().run(optimizer.apply, ([tf.ones(2)], [weight]))
    assert asked == [1], (
        f"Keras optimizers sum gradients of replicas no more by {name}: tfde/tasks/replicas.py"
        " (take_summed_gradients) puts `list` in its place, because gradients are summed before"
        " clipping; without it several replicas take another step than one device"
    )
    outer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert hasattr(outer, "inner_optimizer"), "see tfde/tasks/replicas.py, as above"


def test_keras_adam_has_its_moments_under_these_names():
    optimizer = keras.optimizers.AdamW()
    weight = keras.Variable(np.ones(3, "float32"))
    optimizer.build([weight])
    for name in ("_momentums", "_velocities"):
        moments = getattr(optimizer, name, None)
        assert moments, f"{name} is gone: see tfde/training/optimizers.py"
        assert hasattr(moments[0].value, "handle"), (
            f"{name} holds no TensorFlow variables: tfde/training/optimizers.py gives"
            " them to the fused kernel; without it AdamW must fall back to Keras's slow update"
        )
    assert optimizer._get_variable_index(weight) == 0, "see tfde/training/optimizers.py"


def test_keras_trainers_report_the_loss_by_a_tracker_of_that_name():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tracker = getattr(model, "_loss_tracker", None)
    assert isinstance(tracker, keras.metrics.Mean), (
        "_loss_tracker is gone: tfde/towers/pair_steps.py, tfde/matching/match_trainer.py and"
        " tfde/training/masked_language_model.py add to it; without it `loss` is missing in"
        " fit's history"
    )


# ---- TensorFlow ----------------------------------------------------------------------------------


def test_tensorflow_tells_whether_xla_compiles():
    from tensorflow.python.ops import control_flow_util

    seen = []

    def function(x):
        graph = tf.compat.v1.get_default_graph()
        seen.append(control_flow_util.GraphOrParentsInXlaContext(graph))
        return x + 1

    tf.function(function, jit_compile=True)(tf.constant(1.0))
    tf.function(function)(tf.constant(1.0))
    assert seen == [True, False], (
        "control_flow_util.GraphOrParentsInXlaContext no longer tells XLA from a plain graph:"
        " tfde/backbones/token_layout.py leaves padding out where XLA does not compile; without it"
        f" jit_compile fails on dynamic shapes. Received: {seen}"
    )


def test_tensorflow_sessions_run_by_handles():
    from tensorflow.python.client import pywrap_tf_session

    from tfde.serving.server.session_run import prepare, run

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        y = x * 2
    session = tf.compat.v1.Session(graph=graph)
    for owner, name in (
        (session, "_extend_graph"),
        (session, "_call_tf_sessionrun"),
        (x, "_as_tf_output"),
        (pywrap_tf_session, "TF_NewBufferFromString"),
        (pywrap_tf_session, "TF_DeleteBuffer"),
    ):
        assert hasattr(owner, name), (
            f"{name} is gone: tfde/serving/server/session_run.py runs signatures by it; `Session."
            "run` in its place costs the model server about 0.2 ms a request, and timeouts"
        )
    prepare(session)
    (found,) = run(session, [y], {x: np.ones(2, np.float32)}, timeout_s=5.0)
    np.testing.assert_array_equal(found, [2, 2])


def test_tensorflow_takes_a_heartbeat_of_ours():
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.distribute import multi_worker_util
    from tensorflow.python.eager import context

    where = (
        ": tfde/training/distribution.py (_allow_silence) gives a busy machine 60 s without a"
        " heartbeat by it; without it TensorFlow's 10 s end runs of several processes"
    )
    arguments = inspect.signature(context.context().configure_coordination_service).parameters
    for name in ("service_leader", "heartbeat_timeout_in_ms", "coordinated_jobs"):
        assert name in arguments, f"configure_coordination_service has no {name}{where}"
    cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    leader = multi_worker_util.coordination_leader(cluster)
    assert leader == "/job:worker/replica:0/task:0", f"coordination_leader says {leader}{where}"
    assert CoordinatedJob(name="worker", num_tasks=2).num_tasks == 2, f"CoordinatedJob{where}"


def test_tensorflow_text_holds_its_model_under_this_name():
    import tensorflow_text as tft
    from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

    where = (
        ": tfde/text/sentence_piece puts a model of its own there that outlives"
        " `keras.utils.set_random_seed`; without it tokenizers made before that call fail"
    )
    assert "self._model_resource" in inspect.getsource(tft.SentencepieceTokenizer), (
        f"SentencepieceTokenizer has no _model_resource{where}"
    )
    arguments = inspect.signature(gen_sentencepiece_tokenizer.sentencepiece_op).parameters
    assert {"model", "shared_name"} <= set(arguments), (
        f"sentencepiece_op has other arguments{where}"
    )


# ---- others --------------------------------------------------------------------------------------


def test_hubs_say_that_a_file_is_not_there():
    from huggingface_hub import file_download

    assert hasattr(file_download, "_CACHED_NO_EXIST"), (
        "_CACHED_NO_EXIST is gone: tfde/checkpoints/hub_repository.py tells by it, without a"
        " network, an optional file that a repository lacks from one that was never asked for"
    )
    from keras_hub.src.utils import preset_utils

    assert {"BUILTIN_PRESETS", "get_file"} <= set(dir(preset_utils)), (
        "keras_hub.src.utils.preset_utils has no BUILTIN_PRESETS or get_file:"
        " tfde/checkpoints finds keras-hub's presets by name with them"
    )


def test_beam_workers_hold_what_was_asked():
    worker_handlers = importlib.import_module(
        "apache_beam.runners.portability.fn_api_runner.worker_handlers"
    )
    source = inspect.getsource(worker_handlers.ControlConnection)
    assert "self._futures_by_id" in source, (
        "ControlConnection has no _futures_by_id: tfde/beam/local_workers.py answers by it for a"
        " worker that died; without it a job with a killed worker hangs"
    )


def test_the_thin_client_needs_no_tensorflow():
    """Its messages are read with an empty module named tensorflow, which is taken away again."""
    code = (
        "import sys, tfde.serving.wire as c;"
        "r = c.predict_pb2.PredictRequest(); c.put_strings(r.inputs['text'], ['a', 'é']);"
        "s = c.predict_pb2.PredictRequest.FromString(r.SerializeToString());"
        "print(c.strings(s.inputs['text']).tolist(), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['a', 'é'] False", (
        "tfde/serving/wire.py (_import_stubs) can no longer read tensorflow's generated messages"
        " without tensorflow, or leaves its stand-in behind: the client would take 5 s to import,"
        f" or break a later `import tensorflow`. Said: {done.stdout}{done.stderr[-600:]}"
    )


def test_saved_models_name_their_functions_after_python_functions(tmp_path):
    from tensorflow.python.ops import script_ops
    from tensorflow.python.saved_model.loader_impl import SavedModelLoader

    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def encode_tokens(x):
        return x + 1.0

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def encode(x):
        return encode_tokens(x) * 2.0

    module.encode_tokens = encode_tokens
    tf.saved_model.save(module, str(tmp_path), {"serving_default": encode})
    graph = SavedModelLoader(str(tmp_path)).get_meta_graph_def_from_tags(["serve"]).graph_def
    names = [function.signature.name for function in graph.library.function]
    lost = (
        "a SavedModel's functions are no longer called __inference_NAME_NUMBER, or Python's"
        " functions have no registry: tfde/serving/server/engine_graph.py finds the tower by it;"
        " without it the server runs no other engine"
    )
    assert any(name.startswith("__inference_encode_tokens_") for name in names), lost
    assert hasattr(script_ops._py_funcs, "insert"), lost


def test_tensorflow_freezes_a_concrete_function():
    from tensorflow.python.framework import convert_to_constants

    variable = tf.Variable(2.0)
    function = tf.function(lambda x: x * variable, input_signature=[tf.TensorSpec([])])
    frozen = convert_to_constants.convert_variables_to_constants_v2(
        function.get_concrete_function()
    )
    lost = "tfde/towers/engines.py freezes a tower by it; without it no other engine gets one"
    assert "VarHandleOp" not in {op.type for op in frozen.graph.get_operations()}, lost
    assert not frozen.captured_inputs, lost
