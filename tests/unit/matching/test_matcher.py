"""Matchers: stored and fresh texts score alike, saving, training, and what they refuse."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.matching import MatcherConfig
from tfde.config.model import TextConfig
from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.matcher import Matcher
from tfde.matching.meetings import TextVectors
from tfde.matching.networks import SIDES
from tfde.matching.stored_texts import StoredTexts
from tfde.text.tokenizer import Tokenizer
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.towers.pair_steps import tokens_of
from tfde.types import Document

TEXT = TextConfig(query_max_length_tokens=12, document_max_length_tokens=20)
KINDS = {
    "siamese": 3,
    "deformer": 2,
    "dipair": 2,
    "poly_encoder": 2,
    "virt_encoder": 3,
    "late_interaction": 1,
    "multi_vector": 1,
}
OPTIONS = {
    "dipair": {"first_tokens": 3, "second_tokens": 4},
    "poly_encoder": {"num_codes": 5},
    "late_interaction": {"embedding_dim": 6},
    "multi_vector": {"embedding_dim": 6, "second_tokens": 4},
}
FIRST = ["red apple", "cat", "", "green pear, plum", "one two three four five " * 4]
SECOND = ["blue river. lake", "cat dog bird fish horse", "", "one, two", "north south " * 15]
PAIRS = list(zip(FIRST, SECOND, strict=True))


def matcher(kind: str, backbone=tiny.BERT, **options) -> Matcher:
    """A matcher with random weights."""
    options = {**OPTIONS.get(kind, {}), "num_labels": KINDS[kind], "seed": 1, **options}
    options.setdefault("text", TEXT)
    options.setdefault("tokenizer", tiny.tokenizer())
    return Matcher.from_backbone(backbone, kind=kind, **options)


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    """One matcher of each kind; nobody changes it."""
    return matcher(request.param, dropout=0.0)


def check_stored(model: Matcher, folder: Path) -> None:
    """Scores of texts, alone and in batches, and from stored vectors, are what `call` gives."""
    columns = (FIRST, [""] * len(SECOND), SECOND)
    expected = model(model.prepare(*(tf.constant(texts) for texts in columns))).numpy()
    if model.num_labels == 1:
        expected = expected[:, 0]
    np.testing.assert_allclose(model.score(PAIRS), expected, atol=2e-6)
    single = np.concatenate([model.score([pair], batch_size=1) for pair in PAIRS])
    np.testing.assert_allclose(single, expected, atol=2e-6)
    ids = [f"d{n}" for n in range(5)]
    stored = model.store(SECOND, doc_ids=ids, batch_size=2)
    pairs = list(zip(FIRST, ids, strict=True))
    np.testing.assert_allclose(model.score_stored(pairs, stored), expected, atol=2e-6)
    stored.save(folder / "stored")
    loaded = StoredTexts.load(folder / "stored")
    np.testing.assert_allclose(
        model.score_stored(pairs[::-1], loaded, batch_size=2), expected[::-1], atol=2e-6
    )


def test_stored_texts_score_as_texts_do(model, tmp_path):
    check_stored(model, tmp_path)


def test_a_second_text_of_many_pairs_is_encoded_once(model, monkeypatch):
    monkeypatch.setattr("tfde.matching.matcher._SECOND_TEXTS_AT_ONCE", 2)
    read, encode = [], model._encode_second

    def counted(titles, texts):
        read.extend(texts.numpy().tolist())
        return encode(titles, texts)

    monkeypatch.setattr(model, "_encode_second", counted)
    pairs = [(first, second) for first in FIRST for second in SECOND]
    scores = model.score(pairs, batch_size=3)
    assert sorted(read) == sorted(text.encode() for text in SECOND)
    single = np.concatenate([model.score([pair]) for pair in pairs])
    np.testing.assert_allclose(scores, single, atol=2e-6)


@pytest.mark.parametrize("kind", ["deformer", "late_interaction"])
def test_t5_does_so_too(kind, tmp_path):
    check_stored(matcher(kind, tiny.T5), tmp_path)


def test_a_saved_model_is_the_same(model, tmp_path):
    model.save_to_preset(tmp_path / "model")
    loaded = Matcher.from_preset(tmp_path / "model")
    assert loaded.fingerprint() == model.fingerprint()
    assert loaded.config == model.config
    inputs = prepared(model)
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    model.save_to_preset(tmp_path / "model")  # its own directory is replaced


def prepared(model: Matcher) -> dict[str, tf.Tensor]:
    """The pairs as the model takes them."""
    return model.prepare(tf.constant(FIRST), tf.constant([""] * 5), tf.constant(SECOND))


def test_with_states_the_logits_are_the_same(model):
    texts = tf.constant(FIRST), tf.constant([""] * 5), tf.constant(SECOND)
    inputs, tokens = model.prepare_tokens(*texts)
    logits, states = model.call_with_states(inputs, tokens, training=False)
    np.testing.assert_allclose(logits, model(inputs), atol=2e-6)
    joint = model.config.apart_layers is not None
    for side, of_side in zip(SIDES, states.sides(), strict=True):
        length = inputs[f"{side}_token_ids"].shape[1]
        assert len(of_side["queries"]) == (1 if joint else 2)
        assert of_side["queries"][0].shape == (5, 2, length, 4)
    assert (states.joint is not None) == joint


def test_keras_trains_every_weight(model):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(prepared(model), training=True) - 1.0))
    weights = model.trainable_weights
    gradients = tape.gradient(loss, weights)
    unused = [w.path for w, g in zip(weights, gradients, strict=True) if g is None]
    assert unused == []
    assert len(weights) == len(model.networks.named_weights())


def test_a_document_has_a_title_and_an_id():
    model = matcher("siamese")
    documents = [Document("x", "red", "apple"), Document("y", "", "pear")]
    stored = model.store(documents)
    assert stored.doc_ids == ["x", "y"]
    expected = model.score([("cat", documents[0]), ("cat", "red apple")])
    np.testing.assert_allclose(expected[0], expected[1], atol=1e-6)
    np.testing.assert_allclose(
        model.score_stored([("cat", "x")], stored)[0], expected[0], atol=1e-6
    )


@pytest.mark.parametrize(("dtype", "bytes_of_32"), [("float16", 16), ("int8", 8 + 4)])
def test_stored_in_fewer_bytes(tmp_path, dtype, bytes_of_32):
    """Vectors of 8 numbers, 32 bytes in float32; int8 has a scale of 4 for each."""
    model = matcher("virt_encoder")
    model.store(SECOND, dtype=dtype).save(tmp_path / "small")
    whole, small = model.store(SECOND), StoredTexts.load(tmp_path / "small")
    arrays = [np.load(file) for file in (tmp_path / "small").glob("*s.npy")]
    nbytes = sum(array.nbytes for array in arrays if array.dtype != np.int64)
    assert nbytes == len(whole.vectors) * bytes_of_32
    pairs = [(first, str(n)) for n, first in enumerate(FIRST)]
    np.testing.assert_allclose(
        model.score_stored(pairs, small), model.score_stored(pairs, whole), atol=2e-2
    )


def test_maxsim_follows_its_equation():
    model = matcher("late_interaction")
    stored = model.store(SECOND)
    ids, mask = model.preprocessor.queries(tf.constant(FIRST))
    found = model.networks.encoders["first"]({"token_ids": ids, "padding_mask": mask})
    expected = []
    for n in range(5):
        x = found["vectors"][n].numpy()[mask[n].numpy() > 0]
        y = stored.vectors[stored.offsets[n] : stored.offsets[n + 1]]
        np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1.0, atol=1e-5)
        expected.append((x @ y.T).max(axis=1).mean())
    np.testing.assert_allclose(model.score(PAIRS), expected, atol=1e-6)


def test_what_fills_a_query_takes_part_and_is_attended_to_by_none():
    """By hand: [MASK] one by one behind the query gives the vectors that filling gives."""
    text = TextConfig(9, 20, query_mark="red", document_mark="blue", query_fill="[MASK]")
    model = matcher("late_interaction", text=text)
    vectors, counts = model.encode_first(["cat dog", "one two three four five north"])
    assert counts.tolist() == [[1] * 9] * 2
    plain = matcher("late_interaction", text=TextConfig(9, 20, query_mark="red"))
    np.testing.assert_allclose(plain.encode_first(["cat dog"])[0][0, :5], vectors[0, :5], atol=1e-6)
    ids, _ = model.preprocessor.queries(tf.constant(["cat dog"]))
    assert ids[0, 5:].numpy().tolist() == [4] * 4
    stored = model.store(["green pear"])
    expected = (vectors[0] @ stored.vectors.T).max(axis=1).mean()
    np.testing.assert_allclose(model.score([("cat dog", "green pear")]), expected, atol=1e-6)
    np.testing.assert_allclose(model.score_stored([("cat dog", "0")], stored), expected, atol=1e-6)
    # They see the query, and training reaches them.
    other, _ = model.encode_first(["north"])
    assert np.abs(vectors[0, 6:] - other[0, 6:]).max() > 1e-4
    texts = [tf.constant([text]) for text in ("cat dog", "", "green pear")]
    inputs, tokens = model.prepare_tokens(*texts)
    with tf.GradientTape() as tape:
        logits, _ = model.call_with_states(inputs, tokens, training=True)
    (gradient,) = tape.gradient(logits, [model.named_weights()["token_embedder/token_table"]])
    assert np.abs(tf.convert_to_tensor(gradient)[4]).max() > 0
    logits, _ = model.call_with_states(inputs, tokens, training=False)
    np.testing.assert_allclose(logits[:, 0], expected, atol=1e-6)


def test_taught_tokens_stand_after_the_mark():
    model = matcher("late_interaction", text=TextConfig(9, 20, query_mark="red"))
    _, (first, second) = model.prepare_tokens(
        *(tf.constant([x]) for x in ("cat dog", "", "green pear plum"))
    )
    assert (int(first.start[0]), int(first.count[0])) == (2, 2)
    assert (int(second.start[0]), int(second.count[0])) == (1, 3)


def test_a_dual_encoder_has_no_fill():
    with pytest.raises(ConfigError, match="`query_fill` must be empty with a dual encoder"):
        tiny.dual_encoder(text=TextConfig(query_fill="[MASK]"))


def test_punctuation_has_no_vectors():
    tokenizer = WordPieceTokenizer([*tiny.VOCABULARY, ".", ",", "!"])
    assert tokenizer.punctuation_ids() == [tokenizer.vocabulary_size - n for n in (3, 2, 1)]
    for skip, more in ((True, 0), (False, 3)):
        model = matcher("late_interaction", skip_punctuation=skip, tokenizer=tokenizer)
        stored = model.store(["cat dog", "cat . dog , !"])
        counts = np.diff(stored.offsets)
        assert counts[1] - counts[0] == more


def test_layers_that_read_both_texts_know_which_is_which():
    model = matcher("deformer")
    one, other = model.score([("red apple", "cat"), ("cat", "red apple")])
    assert np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize("kind", ["siamese", "poly_encoder", "virt_encoder", "deformer", "dipair"])
def test_what_the_classifier_reads_of_two_vectors(kind):
    """[u; v] is the first part of [u; v; |u - v|], and the rest follows from it."""
    read = {}
    for fusion in ("concat", "difference"):
        model = matcher(kind, fusion=fusion, dropout=0.0)
        found = {
            side: model.networks.encoders[side](tokens_of(side, prepared(model))) for side in SIDES
        }
        networks = model.networks
        parts = [TextVectors(**found[side]) for side in SIDES]
        upper = functools.partial(networks.encoder, layers=(1, 2))
        read[fusion] = np.array(networks._meeting.features(networks.layers, *parts, upper))
    u, v = np.split(read["concat"], 2, axis=1)
    assert u.shape == (5, 8)
    np.testing.assert_allclose(
        read["difference"], np.concatenate([u, v, np.abs(u - v)], axis=1), atol=1e-6
    )
    assert np.abs(u - v).max() > 1e-3


@pytest.mark.parametrize(("kind", "kept"), [("deformer", (99, 99)), ("dipair", (3, 4))])
def test_each_text_has_its_own_mean_after_layers_that_read_both(kind, kept):
    """By hand: tokens of both side by side, no padding; one mean a text, or one over both."""
    for fusion in ("concat", "joint"):
        model = matcher(kind, fusion=fusion, dropout=0.0)
        networks = model.networks
        marks = np.array([[0.3] * 8, [-0.2] * 8], np.float32) * np.arange(8)
        networks.layers["joined"].marks.assign(marks)
        inputs = prepared(model)
        _, states = model.call_with_states(
            inputs, model.prepare_tokens(*map(tf.constant, (FIRST, [""] * 5, SECOND)))[1],
            training=False,
        )  # fmt: skip
        parts = [TextVectors(**networks.encoders[side](tokens_of(side, inputs))) for side in SIDES]
        upper = functools.partial(networks.encoder, layers=(1, 2))
        read = np.array(networks._meeting.features(networks.layers, *parts, upper))
        for row in range(5):
            texts = [part.vectors[row].numpy()[part.mask[row].numpy() > 0] for part in parts]
            m, n = map(len, texts)
            assert m <= kept[0]
            assert n <= kept[1]
            both = np.concatenate([texts[0] + marks[0], texts[1] + marks[1]])[None]
            output = networks.encoder(both, np.ones((1, m + n), np.int32), layers=(1, 2))[0].numpy()
            means = [output[:m].mean(axis=0), output[m:].mean(axis=0)]
            expected = output.mean(axis=0) if fusion == "joint" else np.concatenate(means)
            np.testing.assert_allclose(read[row], expected, atol=2e-6)
            # What is taught stands where the texts' own tokens are, without [CLS] and [SEP].
            for side, start, end in ((0, 1, m), (1, m + 1, m + n)):
                layer, places = states.hidden(1, side)
                at, count = int(places.start[row]), int(places.count[row])
                whole = states.tokens[side].count[row] + 2 <= (m, n)[side]
                assert (at, at + count) == (start, end - int(whole))
                np.testing.assert_allclose(
                    layer[row, at : at + count], output[at : at + count], atol=2e-6
                )


def test_a_start_from_a_model_directory(tmp_path):
    """The teacher's encoder, or one that a run has pre-trained; the head is new."""
    sizes = tiny.BERT.replace(num_layers=3)
    trained = CrossEncoder.from_backbone(sizes, tokenizer=tiny.tokenizer(), num_labels=2, seed=7)
    trained.save_to_preset(tmp_path / "teacher")
    model = Matcher.from_backbone(
        str(tmp_path / "teacher"), kind="deformer", num_layers=2, num_labels=2, dropout=0.2, seed=1
    )
    assert (model.config.backbone.num_layers, model.config.backbone.dropout) == (2, 0.2)
    theirs = trained.named_weights()
    for name, weight in model.named_weights().items():
        if name.startswith(("encoder/", "token_embedder/")):
            np.testing.assert_array_equal(weight, theirs[name])
    towers = tiny.dual_encoder(tiny.BERT)
    towers.save_to_preset(tmp_path / "towers")
    for made in (
        CrossEncoder.from_backbone(tmp_path / "towers", num_labels=2),
        Matcher.from_backbone(tmp_path / "towers", kind="siamese"),
    ):
        for name, weight in towers.towers.named_weights().items():
            part, _, path = name.partition("/shared/")
            np.testing.assert_array_equal(weight, made.named_weights()[f"{part}/{path}"])
    with pytest.raises(
        ConfigError, match=r"`num_labels` must be given, for a new head on .*towers"
    ):
        CrossEncoder.from_backbone(tmp_path / "towers")
    with pytest.raises(ConfigError, match=r"loaded by tfde\.CrossEncoder\.from_preset"):
        CrossEncoder.from_backbone(tmp_path / "teacher")
    teacher = CrossEncoder.from_preset(tmp_path / "teacher").named_weights()
    on = CrossEncoder.from_backbone(tmp_path / "teacher", num_labels=2).named_weights()
    for name, weight in teacher.items():
        if name.startswith(("token_embedder", "encoder")):
            np.testing.assert_array_equal(weight, on[name])
    tiny.dual_encoder(tiny.BERT, sharing="ade").save_to_preset(tmp_path / "apart")
    with pytest.raises(ConfigError, match=r"must have one encoder, shared by both towers"):
        Matcher.from_backbone(tmp_path / "apart", kind="siamese")


def test_virt_adapted_interaction_follows_its_equation():
    model = matcher("virt_encoder", num_labels=2)
    layer = model.networks.layers["virt_adapted_interaction"]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1, 3, 8)), rng.normal(size=(1, 5, 8))
    masks = np.array([[1, 1, 0]]), np.array([[1, 1, 1, 1, 0]])
    u, v = layer(tf.constant(x, tf.float32), masks[0], tf.constant(y, tf.float32), masks[1])
    x, y = x[0, :2], y[0, :4]
    scores = np.exp(x @ y.T / np.sqrt(8))
    np.testing.assert_allclose(
        u[0], ((scores / scores.sum(1, keepdims=True)) @ y).mean(axis=0), atol=1e-5
    )
    np.testing.assert_allclose(
        v[0], ((scores.T / scores.T.sum(1, keepdims=True)) @ x).mean(axis=0), atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bert"}, r"`kind` must be one of siamese.* Received: 'bert'"),
        ({"kind": "siamese", "num_codes": 3}, r"`num_codes` belongs to another kind.* Received: 3"),
        (
            {"kind": "deformer", "apart_layers": 2},
            r"`apart_layers` must be in \[1, 1\].* Received: 2",
        ),
        ({"kind": "late_interaction", "num_labels": 2}, r"`num_labels` must be 1 with late_inter"),
        ({"kind": "dipair", "first_tokens": 0}, r"`first_tokens` must be at least 1. Received: 0"),
        (
            {"kind": "siamese", "fusion": "joint"},
            r"`fusion` must be one of concat, difference with",
        ),
        ({"kind": "multi_vector", "fusion": "concat"}, r"`fusion` belongs to another kind"),
        ({"kind": "dipair", "top_layers": 2, "apart_layers": 1}, r"give one\. Received: 2 and 1"),
        ({"kind": "siamese", "dropout": 1.0}, r"`dropout` must be in \[0, 1\). Received: 1.0"),
    ],
)
def test_descriptions_that_are_impossible(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        MatcherConfig(tiny.BERT, **options)
    assert "\n" not in str(error.value)


def test_an_unknown_option_is_named():
    with pytest.raises(ConfigError, match="`options` has no field 'codes'"):
        matcher("poly_encoder", codes=3)


def test_only_the_first_layers():
    whole = matcher("siamese")
    cut = matcher("siamese", num_layers=1)
    assert cut.config.backbone.num_layers == 1
    with pytest.raises(ConfigError, match=r"`num_layers` must be in \[1, 2\]. Received: 3"):
        matcher("siamese", num_layers=3)
    ids, mask = whole.preprocessor.queries(tf.constant(FIRST))
    embedded = whole.networks.token_embedder(ids)
    expected = whole.networks.encoder(embedded, mask, layers=(0, 1))
    np.testing.assert_allclose(
        cut.networks.encoder(cut.networks.token_embedder(ids), mask), expected, atol=1e-6
    )


def test_stored_texts_of_another_model():
    stored = matcher("siamese").store(SECOND)
    other = matcher("siamese", seed=2)
    with pytest.raises(MismatchError, match="`stored` must be of this model"):
        other.score_stored([("cat", "0")], stored)
    with pytest.raises(MismatchError, match="must be that of a stored text"):
        matcher("siamese").score_stored([("cat", "9")], stored)
    ids = ["a", "b", *("c" for _ in SECOND[2:])]
    with pytest.raises(ConfigError, match="`doc_ids` must be all different"):
        matcher("siamese").store(SECOND, doc_ids=ids)


def test_damaged_stored_texts(tmp_path):
    stored = matcher("siamese").store(SECOND)
    stored.save(tmp_path / "stored")
    with pytest.raises(ConfigError, match="not empty"):
        stored.save(tmp_path / "stored")
    vectors = tmp_path / "stored" / "vectors.npy"
    data = bytearray(vectors.read_bytes())
    data[-1] ^= 1
    vectors.write_bytes(data)
    with pytest.raises(CorruptError, match=r"vectors\.npy: differs from what was written"):
        StoredTexts.load(tmp_path / "stored")
    manifest = tmp_path / "stored" / "stored_texts.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 9}))
    with pytest.raises(CorruptError, match="`format` must be 2"):
        StoredTexts.load(tmp_path / "stored")
    with pytest.raises(CorruptError, match=r"holds no stored_texts\.json"):
        StoredTexts.load(tmp_path)


def test_no_documents():
    with pytest.raises(ConfigError, match="`documents` must be not empty"):
        matcher("siamese").store([])
    assert matcher("siamese").score([]).shape == (0, 3)


def test_dipair_stands_on_heads_that_do_not_divide_the_width():
    backbone = dataclasses.replace(tiny.T5, num_heads=3, key_value_dim=2)  # as T5's small one has 6
    model = Matcher.from_backbone(
        backbone, kind="dipair", top_layers=2, tokenizer=tiny.tokenizer(), seed=1
    )
    assert np.isfinite(model.score([("red", "apple")])).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_codes": "5"}, r"`num_codes` must be an integer\. Received: '5'"),
        ({"num_codes": 2.5}, r"`num_codes` must be an integer\. Received: 2\.5"),
    ],
)
def test_options_are_integers(options, message):
    with pytest.raises(ConfigError, match=message):
        MatcherConfig(tiny.BERT, "poly_encoder", **options)


def test_one_text_is_no_list():
    model = Matcher.from_backbone(tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer(), seed=1)
    with pytest.raises(ConfigError, match=r"`documents` must be a list\. Received: Document"):
        model.store(Document("d", "", "red"))
    with pytest.raises(ConfigError, match=r"`documents` must be a list\. Received: 'red'"):
        model.store("red")
    with pytest.raises(ConfigError, match=r"`texts` must be a list of strings\. Received: 'red'"):
        model.encode_first("red")


@pytest.mark.parametrize(
    ("token", "is_mark"),
    [("(", True), ("##-", True), ("\u0120(", True), ("\u2581!", True), ("\u00bb", False),
     ("a", False), ("...", False)],
)  # fmt: skip
def test_what_counts_as_punctuation(token, is_mark):
    class Vocabulary:
        vocabulary_size = 1

        def id_to_token(self, _):
            return token

    assert Tokenizer.punctuation_ids(Vocabulary()) == ([0] if is_mark else [])


def test_stored_texts_after_training():
    model = matcher("siamese")
    stored = model.store(SECOND)
    model.score_stored([("cat", "0")], stored)
    model.compile("adam")
    model.fit([("cat", "dog", 1), ("red", "bird", 0)], verbose=0)
    with pytest.raises(MismatchError, match="`stored` must be of this model"):
        model.score_stored([("cat", "0")], stored)
    with pytest.raises(DataError, match="without white space"):
        model.store(SECOND[:2], doc_ids=["a\nb", "c"])


def test_stored_texts_are_told_from_those_of_any_other_weights(tmp_path):
    model, other = matcher("siamese"), matcher("siamese", seed=2)  # their last weights are equal
    stored = model.store(SECOND)
    model.score_stored([("cat", "0")], stored)
    other.save_weights(tmp_path / "other.weights.h5")
    model.load_weights(tmp_path / "other.weights.h5")
    with pytest.raises(MismatchError, match="`stored` must be of this model"):
        model.score_stored([("cat", "0")], stored)
    other.score_stored([("cat", "0")], other.store(SECOND))
