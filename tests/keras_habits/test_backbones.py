"""Backbones that a user of Keras or keras-hub has in hand become towers."""

import inspect
import json
import random
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError

TEXTS = ["red apple", "blue plum cat", "zzz"]
TEXT = tfde.TextConfig(query_max_length_tokens=8, document_max_length_tokens=16)
# What any text backbone of keras-hub may ask for, as small as can be.
SIZES = {
    "vocabulary_size": 120, "num_layers": 1, "num_heads": 2, "num_attention_heads": 2,
    "num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "head_size": 8,
    "hidden_dim": 16, "hidden_size": 16, "embedding_dim": 6, "intermediate_dim": 8,
    "moe_intermediate_dim": 8, "shared_expert_intermediate_dim": 8,
    "shared_expert_intermediate_size": 8, "num_experts": 2, "top_k": 1,
    "max_sequence_length": 32, "image_size": None, "attention_bias": False,
    "attention_dropout": 0.0, "rope_layer_enabled_list": [True], "mlp_bias": False,
    "layer_types": ["full_attention"], "layer_norm_epsilon": 1e-6, "rope_theta": 1e4,
    "max_position_embeddings": 32, "partial_rotary_factor": 1.0, "bucket_size": 8,
}  # fmt: skip
for side in ("encoder", "decoder"):
    for name in ("hidden_dim", "intermediate_dim", "num_layers", "num_attention_heads"):
        SIZES[f"{side}_{name}"] = SIZES[name]
    SIZES |= {f"{side}_num_key_value_heads": 1, f"{side}_head_dim": 8}
    SIZES[f"{side}_layer_types"] = ["full_attention"]
OPTIONAL = ("max_sequence_length", "head_dim", "layer_types", "top_k")
# Of sound or images, or of texts of one length; each is told so.
NO_TEXTS = {"MoonshineBackbone", "WhisperBackbone", "PARSeqBackbone", "PaliGemmaBackbone"}
ONE_LENGTH = {"RWKV7Backbone"}
READ_PADDING = {"FNetBackbone", "ESMBackbone", "ESM2Backbone"}


def text_backbones():
    """The names of all backbones of keras-hub that take token ids and know their vocabulary."""
    for name in sorted(vars(keras_hub.models)):
        if name.endswith("Backbone") and name not in NO_TEXTS:
            arguments = inspect.signature(getattr(keras_hub.models, name).__init__).parameters
            size = arguments.get("vocabulary_size")
            if size is not None and size.default is size.empty:
                yield name


def backbone_of(name):
    kind = getattr(keras_hub.models, name)
    wanted = {
        argument.name
        for argument in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if argument.kind is not argument.VAR_KEYWORD
        and (argument.default is argument.empty or argument.name in OPTIONAL)
    }
    keras.utils.set_random_seed(2)
    return kind(**{argument: SIZES[argument] for argument in wanted})


def mean_of(backbone, ids, mask):
    """What the tower is to give, by the backbone alone: mean of the real tokens, unit norm."""
    given = {
        "token_ids": ids,
        "padding_mask": mask,
        "segment_ids": tf.zeros_like(ids),
        "position_ids": tf.zeros_like(ids) + tf.range(ids.shape[1]),
    }
    of_input = {
        name: name.removeprefix("encoder_").removeprefix("decoder_") for name in backbone.input
    }
    output = backbone({name: given[role] for name, role in of_input.items()})
    if isinstance(output, dict):
        names = ("sequence_output", "encoder_sequence_output")
        output = next(output[name] for name in names if name in output)
    weights = np.asarray(mask, "float64")[:, :, None]
    mean = (np.asarray(output, "float64") * weights).sum(1) / weights.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


@pytest.mark.parametrize("name", text_backbones())
def test_every_text_backbone_of_keras_hub(name, caplog):
    backbone = backbone_of(name)
    options = {"tokenizer": tiny.tokenizer(), "text": TEXT}
    if name in ONE_LENGTH:
        with pytest.raises(ConfigError, match=f"of any length. Received: {name}"):
            tfde.DualEncoder.from_backbone(backbone, **options)
        return
    model = tfde.DualEncoder.from_backbone(backbone, **options)
    ids, mask = model.preprocessor.queries(tf.constant(TEXTS))
    assert ("as padding changes its vectors" in caplog.text) == (name in READ_PADDING)
    found = model.query_tower({"token_ids": ids, "padding_mask": mask})
    np.testing.assert_allclose(found, mean_of(backbone, ids, mask), atol=1e-5)


@pytest.mark.parametrize("name", ["AlbertBackbone", "GPT2Backbone", "BartBackbone"])
def test_a_table_of_tokens_is_shared_alone(name, tmp_path):
    backbone = backbone_of(name)
    options = {"tokenizer": tiny.tokenizer(), "text": TEXT, "pooling": "last"}
    model = tfde.DualEncoder.from_backbone(backbone, sharing="ade_ste", **options)
    query, document = model.towers.query_parts, model.towers.document_parts
    assert query.token_embedder is document.token_embedder
    assert query.encoder is not document.encoder
    (table,) = query.token_embedder.weights
    assert table.shape[0] == 120
    assert not [w for w in query.encoder.weights if w.shape == table.shape]
    before = keras.ops.convert_to_numpy(table)
    model.compile(keras.optimizers.Adam(0.05))
    model.fit([(word, f"{word} {word}") for word in tiny.WORDS[:8]], batch_size=8, verbose=0)
    assert np.abs(keras.ops.convert_to_numpy(table) - before).max() > 0.01
    model.save_to_preset(tmp_path / "model")
    again = tfde.DualEncoder.from_preset(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_allclose(
        again.encode_documents(TEXTS), model.encode_documents(TEXTS), atol=1e-5
    )
    assert not np.allclose(again.encode_queries(TEXTS), again.encode_documents(TEXTS), atol=1e-3)


def whole_model():
    """A model whose token ids are read twice: nothing can be cut off."""
    ids, mask = (
        keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask")
    )
    x = keras.layers.Embedding(120, 8)(ids) + keras.layers.Embedding(120, 8)(ids)
    x *= keras.ops.cast(mask, "float32")[:, :, None]
    return keras.Model({"token_ids": ids, "padding_mask": mask}, x)


def test_a_model_in_one_part_is_shared_as_a_whole():
    for sharing in ("ade_ste", "ade_fte"):
        with pytest.raises(ConfigError, match="alike for token_embedder and encoder"):
            tfde.DualEncoder.from_backbone(
                whole_model(), tokenizer=tiny.tokenizer(), sharing=sharing
            )
    model = tfde.DualEncoder.from_backbone(whole_model(), tokenizer=tiny.tokenizer(), sharing="ade")
    assert not model.towers.query_parts.token_embedder.weights


def test_what_is_no_model_of_texts_is_told():
    pixels = keras.Input((8, 8, 3), name="pixels")
    image = keras.Model(pixels, keras.layers.Conv2D(2, 3)(pixels))
    with pytest.raises(
        ConfigError, match="`backbone` must be a Keras model whose inputs are called"
    ):
        tfde.DualEncoder.from_backbone(image, tokenizer=tiny.tokenizer())


@keras.saving.register_keras_serializable(package="test_backbones")
class FirstOfMasked(keras.layers.Layer):
    """The vector of the first real token."""

    def call(self, sequence_output, padding_mask):
        first = keras.ops.argmax(padding_mask, axis=1)
        return keras.ops.squeeze(
            keras.ops.take_along_axis(sequence_output, first[:, None, None], axis=1), 1
        )


def test_layers_of_keras_pool_and_project(tmp_path):
    dense = keras.layers.Dense(5, activation="tanh")
    dense.build((None, 8))  # such as one that has learned somewhere else
    layers = {"pooling": keras.layers.GlobalAveragePooling1D(), "projection": dense}
    model = tiny.dual_encoder(tiny.BERT, **layers, normalize=False)
    mean = tiny.dual_encoder(tiny.BERT, normalize=False).encode_queries(TEXTS)
    expected = keras.ops.convert_to_numpy(dense(mean))
    np.testing.assert_allclose(model.encode_queries(TEXTS), expected, atol=1e-5)
    model.save_to_preset(tmp_path / "model")
    again = tfde.DualEncoder.from_preset(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_allclose(again.encode_queries(TEXTS), expected, atol=1e-5)

    options = {"pooling": FirstOfMasked(), "sharing": "ade", "normalize": False}
    projection = keras.Sequential([keras.layers.Dense(4), keras.layers.LayerNormalization()])
    model = tiny.dual_encoder(tiny.BERT, projection=projection, **options)
    query, document = model.towers.query_parts, model.towers.document_parts
    assert query.projection is not document.projection
    assert model.embedding_dim == 4
    model.compile("adam")
    model.fit([("red", "red apple"), ("blue", "blue sea")], batch_size=2, verbose=0)
    ours = tiny.dual_encoder(tiny.BERT, **{**options, "pooling": "first"})
    theirs = tiny.dual_encoder(tiny.BERT, **options)
    np.testing.assert_allclose(theirs.encode_queries(TEXTS), ours.encode_queries(TEXTS), atol=1e-6)


def test_what_cannot_pool_or_project_is_told(tmp_path):
    def refused(message, **options):
        with pytest.raises(ConfigError, match=message):
            tiny.dual_encoder(tiny.BERT, **options)

    refused("`pooling` must be a layer whose `call` takes", pooling=keras.layers.GlobalMaxPool1D())
    refused("`pooling` must be a layer without weights", pooling=keras.layers.LSTM(4))
    refused("`projection` must be a Keras layer; `embedding_dim` makes", projection=64)
    layers, repeat = keras.layers, keras.layers.RepeatVector(3)
    refused(
        r"^`projection` must be a layer that makes .* RepeatVector, .* \(B, 3, 8\)$",
        projection=repeat,
    )
    refused(
        r"^`projection` must be a layer that takes .*Conv1D: .*$", projection=layers.Conv1D(2, 2)
    )
    refused(
        r"^`pooling` must be a layer that makes .* Softmax, .* \(B, 3, 8\)$|takes .*: Softmax: .*$",
        pooling=layers.Softmax(),
    )
    refused(r"^`pooling` must be a layer that takes .*: Attention: .*$", pooling=layers.Attention())
    refused("^`pooling` must be a name, several, or a Keras layer .not", pooling=layers.LSTM)
    refused(
        "^`pooling` must be a layer without weights; .* Received: lstm.*$", pooling=layers.LSTM(4)
    )
    with_dropout = keras.Sequential([layers.Dropout(0.1), layers.Dense(4)])
    one, other = (tiny.dual_encoder(tiny.BERT, projection=with_dropout) for _ in range(2))
    np.testing.assert_array_equal(one.encode_queries(TEXTS), other.encode_queries(TEXTS))
    both = {"projection": keras.layers.Dense(4), "embedding_dim": 4}
    for name in ("pooling", "projection"):
        layer = keras.layers.Lambda(lambda x, mask=None: 2 * x)
        refused("a Lambda layer cannot be stored: write a class", **{name: layer})
    refused("`projection` must be None where `embedding_dim`", **both)
    model = tiny.dual_encoder(tiny.BERT, projection=keras.layers.Dense(4))
    with pytest.raises(ConfigError, match="pooling and projection of tfde's own"):
        tfde.export_sentence_transformers(model, tmp_path / "theirs")


OWN = """
import tfde
from tfde.backbones.bag_of_words import build_bag_of_words
from tfde.config.backbones import BagOfWordsConfig

class Own(BagOfWordsConfig):
    kind = "own_bag"

tfde.register_backbone(Own, build_bag_of_words)
"""


def test_a_model_of_a_programs_own_backbone_says_what_to_import(tmp_path, monkeypatch):
    (tmp_path / "own_backbone.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    import own_backbone

    model = tiny.dual_encoder(own_backbone.Own(vocabulary_size=120, embedding_dim=4, hidden_dim=4))
    model.save_to_preset(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["backbone_registered_by"]
    assert tfde.DualEncoder.from_preset(tmp_path / "model").fingerprint() == model.fingerprint()
    script = f"import tfde; tfde.DualEncoder.from_preset({str(tmp_path / 'model')!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "a backbone of kind 'own_bag' is not known here: import own_backbone" in done.stderr


@pytest.mark.parametrize("kind", ["DualEncoder", "CrossEncoder", "Matcher", "PhraseEncoder"])
def test_a_models_seed_is_not_the_programs(kind):
    """Weights follow from `seed`; what the program itself draws does not."""
    options = {"kind": "siamese"} if kind == "Matcher" else {}

    def build(program, seed=3):
        keras.utils.set_random_seed(program)
        build_model = getattr(tfde, kind).from_backbone
        model = build_model(tiny.BERT, tokenizer=tiny.tokenizer(), seed=seed, **options)
        drawn = random.random(), np.random.rand(), float(tf.random.uniform([]))
        return [np.asarray(x) for x in model.named_weights().values()], drawn

    weights, drawn = build(1)
    again, drawn_again = build(1)
    others, others_drawn = build(2)
    changed, _ = build(1, seed=4)
    assert all(map(np.array_equal, weights, again))
    assert drawn == drawn_again
    assert all(map(np.array_equal, weights, others))
    assert all(a != b for a, b in zip(drawn, others_drawn, strict=True))
    assert not all(map(np.array_equal, weights, changed))


@pytest.mark.parametrize("sharing", ["sde", "ade", "ade_ste"])
def test_weights_are_loaded_whatever_number_keras_gave_the_layers(sharing, tmp_path):
    """Keras counts the layers of a process: a cell of a notebook that runs twice names others."""

    def build(size=8):
        ids, mask = (
            keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask")
        )
        x = keras.layers.Embedding(120, 8)(ids)
        x = keras.layers.Bidirectional(keras.layers.LSTM(size, return_sequences=True))(
            x, mask=mask > 0
        )
        x = keras.layers.Dense(8)(keras.layers.Dense(8)(x))
        backbone = keras.Model([ids, mask], x)
        options = {"sharing": sharing, "tokenizer": tiny.tokenizer(), "text": TEXT}
        return tfde.DualEncoder.from_backbone(backbone, **options)

    path = tmp_path / "w.weights.h5"
    first = build()
    first.save_weights(path)
    again = build()
    assert set(first.named_weights()) != set(again.named_weights())
    again.load_weights(path)
    for name in ("encode_queries", "encode_documents"):
        embeddings = [getattr(model, name)(TEXTS) for model in (first, again)]
        np.testing.assert_array_equal(*embeddings)
    with pytest.raises(ConfigError, match="a model built alike"):
        build(size=6).load_weights(path)


def own_backbone(*, length=None, vocabulary_size=120, layer=None):
    ids, mask = (
        keras.Input((length,), dtype="int32", name=n) for n in ("token_ids", "padding_mask")
    )
    x = keras.layers.Embedding(vocabulary_size, 8)(ids)
    return keras.Model([ids, mask], layer(x) if layer else keras.layers.Dense(8)(x))


def test_a_backbone_that_reads_padding_is_told(caplog):
    options = {"tokenizer": tiny.tokenizer(), "text": TEXT}
    tfde.DualEncoder.from_backbone(own_backbone(), **options)
    assert not caplog.text
    convolution = keras.layers.Conv1D(8, 3, padding="same")
    tfde.DualEncoder.from_backbone(own_backbone(layer=convolution), **options)
    assert "what stands behind a text as padding changes its vectors" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"), [({"vocabulary_size": 50}, "= 91 is not in"), ({"length": 16}, "")]
)
def test_a_backbone_that_cannot_read_the_texts_is_refused(options, reason):
    rule = "`backbone` must know the 92 token ids of its tokenizer, and take texts of any length"
    with pytest.raises(ConfigError, match=f"{rule}.*{reason}"):
        tfde.DualEncoder.from_backbone(own_backbone(**options), tokenizer=tiny.tokenizer())


def test_a_backbone_of_ones_own_keeps_its_dtype(tmp_path, caplog):
    """And all that asks what it computes in hears that: export, and the check of an export."""
    model = tfde.DualEncoder.from_backbone(own_backbone(), tokenizer=tiny.tokenizer(), text=TEXT)
    model.save_to_preset(tmp_path / "model")
    assert not caplog.text
    again = tfde.DualEncoder.from_preset(tmp_path / "model", dtype="mixed_bfloat16")
    assert "keeps its dtype, float32, not mixed_bfloat16" in caplog.text
    np.testing.assert_array_equal(*[m.encode_queries(TEXTS) for m in (model, again)])
    tfde.export_bundle(again, None, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["compute_dtype"] == "float32"
    exported = tfde.SavedEncoder(tmp_path / "bundle").encode_queries(TEXTS)
    np.testing.assert_allclose(exported, again.encode_queries(TEXTS), atol=1e-5)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = own_backbone()
    finally:
        keras.config.set_dtype_policy("float32")
    half = tfde.DualEncoder.from_backbone(half, tokenizer=tiny.tokenizer(), text=TEXT)
    half.save_to_preset(tmp_path / "half")
    again = tfde.DualEncoder.from_preset(tmp_path / "half")
    assert {m.towers.query_parts.encoder.compute_dtype for m in (half, again)} == {"bfloat16"}


def test_a_table_of_positions_bounds_the_length():
    positions = keras_hub.layers.PositionEmbedding(sequence_length=12)
    backbone = own_backbone(layer=lambda x: keras.layers.Add()([x, positions(x)]))
    model = tfde.DualEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer())
    assert model.preprocessor.text_config.document_max_length_tokens == 12
    assert model.encode_documents(["red " * 40]).shape == (1, 8)


def test_layers_that_are_not_there_cannot_be_taken():
    with pytest.raises(ConfigError, match="one with Transformer layers"):
        tfde.DualEncoder.from_backbone(own_backbone(), tokenizer=tiny.tokenizer(), num_layers=1)


@pytest.mark.parametrize("part", ["all", "token_embedding", "lora"])
def test_what_keras_hub_was_told_of_training_is_not_forgotten(part):
    """Its layers become others, which would all train."""
    backbone = backbone_of("BertBackbone")
    if part == "lora":
        backbone.enable_lora(2)
    else:
        (backbone if part == "all" else backbone.token_embedding).trainable = False
    way = "call `enable_lora` of" if part == "lora" else "freeze the towers after it, such as"
    with pytest.raises(ConfigError, match=f"`backbone` must train in all its layers.*{way}"):
        tfde.DualEncoder.from_backbone(backbone, tokenizer=tiny.tokenizer())
