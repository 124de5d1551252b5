"""What a converter to TPUs asks of a SavedModel, as far as XLA on a CPU can show it."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tfde.errors import ConfigError
from tfde.export.bundle import export_bundle
from tfde.export.bundle_directory import read_manifest
from tfde.export.tpu_encoder import TpuEncoder
from tfde.retrieval.exact_index import ExactIndex
from tfde.towers.saved_models import DocumentEncoder

QUERIES = ["red apple", "", "cat dog bird fish horse cow " * 5, "zzz é"]
DOCUMENTS = [("river", "red apple"), ("", ""), ("hill", "cat dog " * 20), ("", "zzz")]
LENGTHS = {"query_encoder": 8, "document_encoder": 16}  # of tiny.dual_encoder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = tiny.dual_encoder(tiny.T5, sharing="ade", embedding_dim=5)
    output = tmp_path_factory.mktemp("tpu") / "bundle"
    return model, export_bundle(model, None, output, golden_queries=QUERIES[:1], tpu=True)


def functions_below(name, library):
    """The function of that name and all that it calls."""
    found, waiting = {}, [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = library[name]
            for node in library[name].node_def:
                waiting += [a.func.name for a in node.attr.values() if a.func.name in library]
    return found


def test_the_alias_names_a_function_without_strings(exported):
    assert read_manifest(exported[1])["tpu"] is True
    for name in LENGTHS:
        saved = SavedModel()
        saved.ParseFromString((exported[1] / f"models/{name}/1/saved_model.pb").read_bytes())
        (graph,) = saved.meta_graphs
        assert list(graph.meta_info_def.tags) == ["serve"]  # a converter adds `tpu`
        library = {
            function.signature.name: function for function in graph.graph_def.library.function
        }
        (function,) = [
            key
            for key, alias in graph.meta_info_def.function_aliases.items()
            if alias == "tpu_func"
        ]
        below = functions_below(function, library)
        dtypes = {
            attr.type for one in below.values() for node in one.node_def
            for attr in node.attr.values() if attr.WhichOneof("value") == "type"
        }  # fmt: skip
        assert tf.float32.as_datatype_enum in dtypes
        assert tf.string.as_datatype_enum not in dtypes
        assert not any(node.op == "Where" for one in below.values() for node in one.node_def)
        # The host's half calls it: a converter puts its TPU call there.
        signature = graph.signature_def["serving_default"].inputs
        assert all(value.dtype == tf.string.as_datatype_enum for value in signature.values())
        callers = [
            one for one in library.values()
            if any(a.func.name == function for node in one.node_def for a in node.attr.values())
        ]  # fmt: skip
        assert callers


def compiled(encode_tokens):
    """Returns the function as XLA has it."""

    @tf.function(jit_compile=True)
    def function(token_ids, padding_mask):
        return encode_tokens(token_ids=token_ids, padding_mask=padding_mask)

    return function


DYNAMIC = re.compile(r"\[[^\]]*<=|infeed|outfeed|custom-call")  # `<=`: a bound of a dynamic size


def test_xla_compiles_the_query_encoder_with_static_shapes_alone(exported):
    model, bundle = exported
    signatures = tf.saved_model.load(str(bundle / "models" / "query_encoder" / "1")).signatures
    expected = model.encode_queries(QUERIES)
    texts = {"text": tf.constant(QUERIES)}
    tokens = signatures["tokenize"](**texts)
    assert tokens["token_ids"].shape == (4, LENGTHS["query_encoder"])
    found = signatures["serving_default"](**texts)["embeddings"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    function = compiled(signatures["encode_tokens"])
    np.testing.assert_allclose(function(**tokens)["embeddings"], expected, atol=1e-5)
    hlo = function.experimental_get_compiler_ir(**tokens)(stage="hlo")
    assert f"s32[4,{LENGTHS['query_encoder']}]" in hlo
    assert not DYNAMIC.search(hlo)


def test_xla_compiles_the_document_encoder_of_bert():
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5)
    plain = DocumentEncoder(model.document_tower, model.preprocessor)
    encoder = TpuEncoder(plain, LENGTHS["document_encoder"])
    titles, bodies = zip(*DOCUMENTS, strict=True)
    tokens = encoder.tokenize(tf.constant(titles), tf.constant(bodies))
    function = compiled(encoder.encode_tokens)
    expected = model.encode_documents([{"title": t, "text": b} for t, b in DOCUMENTS])
    np.testing.assert_allclose(function(**tokens)["embeddings"], expected, atol=1e-5)
    assert not DYNAMIC.search(function.experimental_get_compiler_ir(**tokens)(stage="hlo"))
    # What bundles for CPUs hold leaves padding out, which XLA can only do with dynamic sizes.
    plain.encode_tokens.get_concrete_function()  # traced as for a SavedModel
    function = compiled(plain.encode_tokens)
    assert DYNAMIC.search(function.experimental_get_compiler_ir(**tokens)(stage="hlo"))


def test_a_tpu_has_the_encoders_alone(tmp_path):
    model = tiny.dual_encoder()
    index = ExactIndex.build(np.eye(3, 8, dtype=np.float32), ["a", "b", "c"])
    with pytest.raises(ConfigError, match="`index` must be left out with `tpu`"):
        export_bundle(model, index, tmp_path / "bundle", tpu=True)
