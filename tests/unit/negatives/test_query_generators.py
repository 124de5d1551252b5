"""Models that write queries: keras-hub's, and SavedModels."""

import dataclasses
import shutil

import h5py
import keras_hub
import pytest
import tensorflow as tf
import tiny
import tiny_seq2seq

from tfde.config.negatives import GenerationRules
from tfde.errors import ConfigError
from tfde.negatives.keras_hub_generator import KerasHubGenerator
from tfde.negatives.saved_model_generator import SavedModelGenerator
from tfde.types import Document

RULES = GenerationRules(
    queries_per_document=3, query_max_length_tokens=9, document_max_length_tokens=16, seed=7
)
DOCUMENTS = [
    Document(f"d{number}", title, text)
    for number, (title, text) in enumerate(
        [
            ("", "red apple"),
            ("Blue", "plum and cherry by the river"),
            ("", "white horse white cow black cat green bird one two three four five"),
            ("Hill road", ""),
            ("", "red apple"),
        ]
    )
]


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    directory = tmp_path_factory.mktemp("presets")
    return {"t5": tiny_seq2seq.t5(directory / "t5"), "bart": tiny_seq2seq.bart(directory / "bart")}


@pytest.fixture(scope="module")
def generator(presets):
    return KerasHubGenerator(presets["t5"], RULES, batch_size=16)


@pytest.fixture(scope="module")
def found(generator):
    return generator.generate(DOCUMENTS)


def test_a_document_has_its_own_draws(presets, generator, found):
    assert [len(queries) for queries in found] == [3] * 5
    assert found[0] != found[4]  # equal texts, other ids
    assert len(set(found[2])) == 3
    # Neither neighbours nor batches change them.
    alone = KerasHubGenerator(presets["t5"], RULES, batch_size=1)
    assert alone.describe() == generator.describe()
    assert alone.generate(DOCUMENTS[::-1]) == found[::-1]


def test_the_seed_decides(presets, found):
    other = KerasHubGenerator(presets["t5"], dataclasses.replace(RULES, seed=8))
    assert other.generate(DOCUMENTS) != found


def test_rules_and_weights_are_described(presets, generator, tmp_path):
    shutil.copytree(presets["t5"], tmp_path / "other")
    with h5py.File(tmp_path / "other" / "model.weights.h5", "r+") as file:
        names = []
        file.visit(lambda name: names.append(name))
        name = next(name for name in names if isinstance(file[name], h5py.Dataset))
        file[name][...] = file[name][...] + 0.5
    described, other = generator.describe(), KerasHubGenerator(tmp_path / "other", RULES).describe()
    assert other.pop("model") != described.pop("model")
    assert other == described
    assert described["top_k"] == 10


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_most_probable_tokens_are_those_of_keras_hub(presets, family):
    rules = dataclasses.replace(RULES, top_k=1, queries_per_document=1, document_prompt="one ")
    found = KerasHubGenerator(presets[family], rules, batch_size=16).generate(DOCUMENTS)
    model = keras_hub.models.Seq2SeqLM.from_preset(str(presets[family]))
    model.compile(sampler="greedy", jit_compile=False)
    model.preprocessor.encoder_sequence_length = 16
    texts = [f"one {d.title} {d.text}" if d.title else f"one {d.text}" for d in DOCUMENTS]
    texts = [text.strip() for text in texts]
    expected = model.generate(texts, max_length=9)
    assert [query for (query,) in found] == list(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"queries_per_document": 0}, "`queries_per_document` must be at least 1. Received: 0"),
        ({"query_max_length_tokens": 2}, "`query_max_length_tokens` must be at least 3. Rec"),
        ({"document_max_length_tokens": 0}, "`document_max_length_tokens` must be at least 3"),
        ({"top_k": 0}, "`top_k` must be at least 1. Received: 0"),
        ({"temperature": 0.0}, "`temperature` must be above 0. Received: 0.0"),
        ({"seed": -1}, "`seed` must be at least 0. Received: -1"),
    ],
)
def test_impossible_rules(values, message):
    with pytest.raises(ConfigError, match=message):
        GenerationRules(**values)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("t5", {"top_k": 61}, "`top_k` must be at most the model's vocabulary, 60. Received: 61"),
        ("bart", {"query_max_length_tokens": 49}, "must be at most the model's, 48. Received: 49"),
        ("bart", {"document_max_length_tokens": 64}, "`document_max_length_tokens` must be at mo"),
    ],
)
def test_rules_beyond_the_model(presets, family, values, message):
    with pytest.raises(ConfigError, match=message):
        KerasHubGenerator(presets[family], dataclasses.replace(RULES, **values))


@pytest.mark.parametrize("kind", [KerasHubGenerator, SavedModelGenerator])
def test_no_documents_a_batch(kind, tmp_path):
    with pytest.raises(ConfigError, match=r"`batch_size` must be at least 1\. Received: 0"):
        kind(tmp_path, RULES, batch_size=0)


def bert(directory):
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    )
    backbone.save_to_preset(directory)


@pytest.mark.parametrize(
    "write",
    [
        lambda directory: directory.mkdir(),
        lambda directory: None,
        bert,
        lambda directory: tiny.dual_encoder().save_to_preset(directory),
    ],
    ids=["empty", "nothing", "bert", "dual encoder"],
)
def test_no_preset_of_such_a_model(tmp_path, write):
    write(tmp_path / "model")
    with pytest.raises(ConfigError, match="model: must be a SavedModel, or a keras-hub") as error:
        KerasHubGenerator(tmp_path / "model", RULES)
    assert "\n" not in str(error.value)


def test_a_preset_without_its_vocabulary(presets, tmp_path):
    shutil.copytree(presets["t5"], tmp_path / "model", ignore=shutil.ignore_patterns("assets"))
    with pytest.raises(ConfigError, match="model: must be a SavedModel, or a keras-hub"):
        KerasHubGenerator(tmp_path / "model", RULES)


def test_a_saved_model_is_asked_for_texts_and_seeds(tmp_path):
    directory = tiny_seq2seq.saved_model(tmp_path / "model")
    rules = dataclasses.replace(RULES, document_prompt="ask ")
    found = SavedModelGenerator(directory, rules, batch_size=2).generate(DOCUMENTS)
    assert [row[0] for row in found] == ["ask"] * 5
    assert [row[2] for row in found] == [""] * 5
    seeds = [int(row[1].removeprefix("seed ")) for row in found]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    again = SavedModelGenerator(directory, RULES).generate(DOCUMENTS[::-1])
    assert [row[1] for row in again[::-1]] == [row[1] for row in found]
    assert [row[0] for row in again] == ["red", "Hill", "white", "Blue", "red"]
    fewer = dataclasses.replace(RULES, queries_per_document=1)
    assert SavedModelGenerator(directory, fewer).generate(DOCUMENTS[:1]) == [["red"]]


def test_a_saved_model_without_seeds(tmp_path):
    directory = tiny_seq2seq.saved_model(tmp_path / "model", seed=False)
    generator = SavedModelGenerator(directory, RULES)
    assert generator.generate(DOCUMENTS[:1]) == [["red", "seed 0", ""]]
    described = generator.describe()
    assert {"saved_model.pb", "variables/variables.index"} <= set(described["files"])


def write_signature(directory, *specs, outputs):
    module = tf.Module()
    module.serve = tf.function(lambda *inputs: outputs(*inputs), input_signature=list(specs))
    tf.saved_model.save(module, str(directory), signatures={"serving_default": module.serve})


TEXT = tf.TensorSpec([None], tf.string, "text")


@pytest.mark.parametrize(
    ("specs", "outputs", "received"),
    [
        ([TEXT], lambda text: {"answers": text[:, None]}, r"text \[None\] string -> answers"),
        ([TEXT], lambda text: {"queries": text}, r"-> queries \[None\] string"),
        ([TEXT], lambda text: {"queries": tf.strings.length(text)[:, None]}, r"1\] int32"),
        (
            [tf.TensorSpec([None], tf.string, "document")],
            lambda text: {"queries": text[:, None]},
            r"document \[None\] string",
        ),
        (
            [TEXT, tf.TensorSpec([], tf.int32, "count")],
            lambda text, count: {"queries": text[:, None]},
            r"count \[\] int32, text \[None\] string",
        ),
    ],
)
def test_another_signature(tmp_path, specs, outputs, received):
    write_signature(tmp_path / "model", *specs, outputs=outputs)
    rule = r"model: `serving_default` must take `text` \[None\] string, and may.*Received: .*"
    with pytest.raises(ConfigError, match=rule + received):
        SavedModelGenerator(tmp_path / "model", RULES)


def test_no_signature(tmp_path):
    directory = tiny_seq2seq.saved_model(tmp_path / "model", name="generate")
    rule = "must have the signature `serving_default`. Received: generate"
    with pytest.raises(ConfigError, match=rule):
        SavedModelGenerator(directory, RULES)


def test_too_few_queries(tmp_path):
    directory = tiny_seq2seq.saved_model(tmp_path / "model")
    rules = dataclasses.replace(RULES, queries_per_document=4)
    generator = SavedModelGenerator(directory, rules)
    rule = r"at least `queries_per_document`, 4, queries for each of 2 texts. Received: \(2, 3\)"
    with pytest.raises(ConfigError, match=rule):
        generator.generate(DOCUMENTS[:2])
