"""Checkpoints of transformers and sentence-transformers give the same embeddings here.

Small random weights, written by those libraries; 1,000 real texts of all lengths, traps, empty
text and text beyond the limit among them. The largest difference of each architecture is
recorded: `pytest tests/parity/test_peers_checkpoints.py --junitxml=parity.xml`.
"""

import importlib
import json

import foreign
import numpy as np
import pytest

from tfde.config.model import DenseConfig
from tfde.errors import ConfigError
from tfde.towers.dual_encoder import DualEncoder

pytestmark = pytest.mark.peers

LIMIT = 48


@pytest.fixture(scope="module")
def library():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("sentence_transformers")


@pytest.fixture(scope="module")
def texts(data_dir):
    return foreign.real_texts(data_dir, 1000)


@pytest.fixture(scope="module")
def transformer(library, texts, tmp_path_factory):
    """Writes a transformer of a kind once."""
    root = tmp_path_factory.mktemp("transformers")

    def write(kind):
        if not (root / kind).exists():
            foreign.write_transformer(root / kind, kind, texts)
        return root / kind

    return write


def save(library, directory, transformer, *steps, **options):
    """Saves transformer and steps as a sentence-transformers directory and returns the model."""
    from sentence_transformers.sentence_transformer import modules

    first = modules.Transformer(str(transformer), max_seq_length=LIMIT)
    model = library.SentenceTransformer(modules=[first, *steps], device="cpu", **options)
    for module in steps:
        foreign.randomize(module)
    model.save(str(directory))
    return model


def assert_equal(ours, theirs, record_property, *, name="largest_difference"):
    """Unit embeddings equal to 1e-5, cosines at least 0.99999."""
    ours, theirs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ours, theirs))
    record_property(name, float(np.abs(ours - theirs).max()))
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    assert (ours * theirs).sum(1).min() > 0.99999


def dense(size, out, activation, *, bias):
    import torch
    from sentence_transformers.base.modules.dense import Dense

    return Dense(size, out, bias=bias, activation_function=getattr(torch.nn, activation)())


def pool(mode, **options):
    from sentence_transformers.sentence_transformer import modules

    return modules.Pooling(24, pooling_mode=mode, **options)


def normalize():
    from sentence_transformers.sentence_transformer import modules

    return modules.Normalize()


@pytest.mark.parametrize(
    "kind", ["bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "t5-1.0", "t5-1.1"]
)
def test_architecture(library, transformer, texts, tmp_path, record_property, kind):
    theirs = save(library, tmp_path / "m", transformer(kind), pool("mean"), normalize())
    lengths = theirs.tokenizer(texts, truncation=False)["input_ids"]
    assert sum(len(ids) > LIMIT for ids in lengths) > 300
    ours = DualEncoder.load(tmp_path / "m")
    assert ours.preprocessor.text_config.query_max_length_tokens == LIMIT
    expected = theirs.encode(texts, batch_size=64)
    got = ours.encode_documents(texts)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-6)
    assert_equal(got, expected, record_property)
    np.testing.assert_allclose(ours.encode_queries(texts[:50]), got[:50], atol=1e-6)


def test_all_minilm(library, minilm, texts, record_property):
    """The real one; its own limit is 256 tokens."""
    theirs = library.SentenceTransformer(str(minilm), device="cpu")
    lengths = [len(ids) for ids in theirs.tokenizer(texts, truncation=False)["input_ids"]]
    assert min(lengths) == 2
    assert sum(length > 256 for length in lengths) > 100
    got = DualEncoder.load(minilm).encode_documents(texts)
    assert_equal(got, theirs.encode(texts, batch_size=32), record_property)


def test_gtr_has_a_dense_layer_without_bias(library, transformer, texts, tmp_path, record_property):
    steps = [pool("mean"), dense(24, 16, "Identity", bias=False), normalize()]
    theirs = save(library, tmp_path / "m", transformer("t5-1.0"), *steps)
    ours = DualEncoder.load(tmp_path / "m")
    assert ours.config.projection == (DenseConfig(16),)
    assert_equal(ours.encode_documents(texts), theirs.encode(texts), record_property)


def test_several_poolings_and_dense_layers(library, transformer, texts, tmp_path, record_property):
    modes = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    steps = [
        pool(modes),
        dense(24 * len(modes), 20, "Tanh", bias=True),
        dense(20, 12, "GELU", bias=True),
    ]
    theirs = save(library, tmp_path / "m", transformer("bert"), *steps)
    ours = DualEncoder.load(tmp_path / "m")
    assert_equal(ours.encode_documents(texts), theirs.encode(texts), record_property)
    # The dense layers stay with the model; a new projection takes their place.
    ours.save_to_preset(tmp_path / "preset")
    again = DualEncoder.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(
        again.encode_queries(texts[:9]), ours.encode_queries(texts[:9]), atol=1e-6
    )
    other = DualEncoder.from_backbone(tmp_path / "m", embedding_dim=5)
    assert other.encode_queries(["a"]).shape == (1, 5)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_prompts(library, transformer, texts, tmp_path, record_property, mode, include_prompt):
    name = "document" if include_prompt else "passage"  # the library passes over the latter
    prompts = {"query": "find an answer: ", name: "a passage; "}
    steps = [pool(mode, include_prompt=include_prompt), normalize()]
    theirs = save(library, tmp_path / "m", transformer("bert"), *steps, prompts=prompts)
    ours = DualEncoder.load(tmp_path / "m")
    some = texts[:200]
    queries, documents = theirs.encode_query(some), theirs.encode_document(some)
    assert_equal(ours.encode_queries(some), queries, record_property)
    assert_equal(ours.encode_documents(some), documents, record_property, name="documents")


def test_dot_product(library, transformer, texts, tmp_path):
    model = save(library, tmp_path / "m", transformer("distilbert"), pool("cls"))
    model.similarity_fn_name = "dot"
    model.save(str(tmp_path / "m"))
    ours = DualEncoder.load(tmp_path / "m")
    assert not ours.config.normalize
    np.testing.assert_allclose(ours.encode_queries(texts[:99]), model.encode(texts[:99]), atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "t5-1.1"])
def test_layout_up_to_version_5(library, transformer, texts, tmp_path, record_property, kind):
    """Older class paths, one key a pooling, max_seq_length in sentence_bert_config.json."""
    directory = tmp_path / "m"
    theirs = save(library, directory, transformer(kind), pool("max"), normalize())
    expected = theirs.encode(texts[:200])
    modules = json.loads((directory / "modules.json").read_text())
    for module in modules:
        name = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{name}"
    (directory / "modules.json").write_text(json.dumps(modules))
    pooling = {f"pooling_mode_{name}": name == "max_tokens" for name in POOLING_KEYS}
    pooling["word_embedding_dimension"] = 24
    (directory / modules[1]["path"] / "config.json").write_text(json.dumps(pooling))
    bert_config = {"max_seq_length": LIMIT, "do_lower_case": False}
    (directory / "sentence_bert_config.json").write_text(json.dumps(bert_config))
    tokenizer = json.loads((directory / "tokenizer_config.json").read_text())
    tokenizer["model_max_length"] = 512
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    ours = DualEncoder.load(directory)
    assert_equal(ours.encode_documents(texts[:200]), expected, record_property)


def test_texts_that_are_lowercased_twice(library, transformer, texts, tmp_path, record_property):
    """As in BAAI/bge-small-en-v1.5: `do_lower_case` beside an uncased tokenizer."""
    directory = tmp_path / "m"
    save(library, directory, transformer("bert"), pool("cls"), normalize())
    settings = json.dumps({"max_seq_length": LIMIT, "do_lower_case": True})
    (directory / "sentence_bert_config.json").write_text(settings)
    theirs = library.SentenceTransformer(str(directory), device="cpu")
    odd = ["\u0130STANBUL \u212b \u212a \u03a3\u0391\u03a3", "STRASSE Stra\u00dfe", "[SEP] A"]
    given = [*texts[:100], *(text.upper() for text in texts[:100]), *odd]
    ours = DualEncoder.load(directory)
    assert_equal(ours.encode_documents(given), theirs.encode(given), record_property)


POOLING_KEYS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")


def test_router_gives_two_towers(library, transformer, texts, tmp_path, record_property):
    from sentence_transformers.base.modules.router import Router
    from sentence_transformers.sentence_transformer import modules

    first = transformer("bert")
    foreign.write_transformer(tmp_path / "other", "bert", texts, tokenizer=first, seed=5)
    sides = []
    for source in (first, tmp_path / "other"):
        side = modules.Transformer(str(source), max_seq_length=LIMIT)
        sides.append([side, pool("mean")])
    theirs = library.SentenceTransformer(
        modules=[Router.for_query_document(*sides), normalize()], device="cpu"
    )
    theirs.save(str(tmp_path / "m"))
    ours = DualEncoder.load(tmp_path / "m")
    assert set(vars(ours.config.sharing).values()) == {"separate"}
    some = texts[:200]
    queries, documents = theirs.encode_query(some), theirs.encode_document(some)
    assert np.abs(queries - documents).max() > 0.1
    assert_equal(ours.encode_queries(some), queries, record_property)
    assert_equal(ours.encode_documents(some), documents, record_property, name="documents")


@pytest.mark.parametrize("projection_dim", [0, 10])
def test_dpr_pair(library, texts, tmp_path, record_property, projection_dim):
    """Question and passage encoder, [CLS], dot product: the numbers of `pooler_output`."""
    import torch
    import transformers

    config = {**foreign.SIZES, "projection_dim": projection_dim}
    foreign.word_piece(tmp_path, texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.model_max_length = LIMIT
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=LIMIT, return_tensors="pt")
    expected = []
    for name, folder in (("Question", "question_encoder"), ("Context", "ctx_encoder")):
        tokenizer.save_pretrained(tmp_path / folder)
        encoder = getattr(transformers, f"DPR{name}Encoder")(
            transformers.DPRConfig(vocab_size=len(tokenizer), **config)
        )
        foreign.randomize(encoder, seed=len(name)).save_pretrained(tmp_path / folder)
        with torch.no_grad():
            expected.append(encoder(**tokens).pooler_output.numpy())
    paths = tmp_path / "question_encoder", tmp_path / "ctx_encoder"
    for ours in (
        DualEncoder.from_backbone(paths[0], document_backbone=paths[1]),
        DualEncoder.load(tmp_path),
        DualEncoder.load(f"{paths[0]},{paths[1]}"),
    ):
        np.testing.assert_allclose(ours.encode_queries(texts), expected[0], atol=2e-5)
        np.testing.assert_allclose(ours.encode_documents(texts), expected[1], atol=2e-5)
        assert not ours.config.normalize
    assert_equal(ours.encode_queries(texts), expected[0], record_property)
    assert ours.preprocessor.text_config.document_template == "{title} [SEP] {text}"
    assert "separate" in ours.summary_of_sharing()
    with pytest.raises(ConfigError, match=r"is one of DPR's two encoders; give that of questions"):
        DualEncoder.load(paths[0])
    with pytest.raises(ConfigError, match=r"`sharing` must be ade: .* checkpoints of their own"):
        DualEncoder.from_backbone(tmp_path, sharing="sde")
