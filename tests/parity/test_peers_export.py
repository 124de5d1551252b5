"""Our models in sentence-transformers: equal embeddings there, and again here when read back."""

import dataclasses
import functools
import importlib

import foreign
import numpy as np
import pytest

import tfde
from tfde.backbones.backbone import build_backbone
from tfde.config.backbones import BertConfig, T5Config
from tfde.config.model import DenseConfig, TextConfig, TowersConfig
from tfde.export.sentence_transformers import export_sentence_transformers, limitations
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.towers.dual_encoder import DualEncoder

pytestmark = pytest.mark.peers

TEXT = TextConfig(query_max_length_tokens=40, document_max_length_tokens=40)
BERT = {"num_layers": 2, "num_heads": 3, "hidden_dim": 24, "intermediate_dim": 40}
BERT |= {"max_sequence_length": 40}
T5 = {"num_layers": 2, "num_heads": 3, "hidden_dim": 24, "intermediate_dim": 40}
T5 |= {"key_value_dim": 7}


@pytest.fixture(scope="module")
def library():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("sentence_transformers")


@pytest.fixture(scope="module")
def texts(data_dir):
    spelled = ["a [PAD] b [SEP] c [MASK]", "a </s> b", "a <mask> b"]
    return spelled + foreign.real_texts(data_dir, 200 - len(spelled))


@pytest.fixture(scope="module")
def tokenizers(texts, tmp_path_factory):
    """Tokenizers on a vocabulary of the texts: BERT's, with padding 1 MPNet's, T5's."""

    @functools.cache
    def train(kind):
        if kind == "bert":
            return train_word_piece(texts, "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
        if kind == "mpnet":
            return train_word_piece(texts, "<s>", "<pad>", "</s>", "[UNK]", "<mask>")
        path = tmp_path_factory.mktemp("t5") / "texts.model"
        tfde.train_sentencepiece(texts, path, vocabulary_size=1200, character_coverage=0.99)
        return tfde.SentencePieceTokenizer.from_file(path)

    return train


def train_word_piece(texts, *special):
    trainer = importlib.import_module("tokenizers").BertWordPieceTokenizer(lowercase=True)
    special = list(special)
    trainer.train_from_iterator(texts, vocab_size=1500, special_tokens=special, show_progress=False)
    ids = trainer.get_vocab()
    roles = ("start_token", "pad_token", "end_token", "unknown_token")
    return WordPieceTokenizer(
        sorted(ids, key=ids.__getitem__),
        special_tokens=special,
        **dict(zip(roles, special, strict=False)),
    )


def randomized(model, *, seed=5):
    """Moves every weight off its initial value: zeros and ones would hide a swapped array."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + 0.1 * rng.normal(size=weight.shape).astype("float32"))
    return model


# Shared by models, because the graph of a tokenizer takes seconds to trace.
preprocessor = functools.cache(TextPreprocessor)


def build(backbone, tokenizer, *, text=TEXT, dtype=None, **towers):
    """A model with random weights and any pooling and projection."""
    sharing = tfde.Sharing.of(towers.pop("sharing", "sde"))
    config = TowersConfig(backbone=backbone, sharing=sharing, **towers)
    parts = build_backbone(backbone, seed=1, dtype=dtype)
    return randomized(DualEncoder(parts, config, preprocessor=preprocessor(tokenizer, text)))


def loaded(library, directory, **options):
    return library.SentenceTransformer(str(directory), device="cpu", **options)


def without_known_differences(texts, kind):
    """Leaves out special tokens in texts, which the notes name, and ties of T5's vocabulary.

    00 + 0 and 0 + 00 are equally probable; the sentencepiece library, which a vocabulary of tfde
    follows, and tokenizers round differently there.
    """
    left_out = {"t5": ("</s>", "000"), "mpnet": ("<pad>",)}.get(kind, ())
    return [text for text in texts if not any(part in text for part in left_out)]


def assert_equal(theirs, ours, texts, record_property, *, atol=1e-5):
    """`encode_query` and `encode_document` give our embeddings; the largest difference is noted."""
    largest = 0.0
    for there, here in (
        (theirs.encode_query, ours.encode_queries),
        (theirs.encode_document, ours.encode_documents),
    ):
        expected, got = here(texts), there(texts, convert_to_tensor=True).float().numpy()
        assert expected.std(axis=0).mean() > 1e-3  # the texts are told apart
        largest = max(largest, float(np.abs(got - expected).max()))
    record_property("largest_difference", largest)
    assert largest <= atol


def assert_same_weights(first, second):
    """Both towers hold equal values; a table of one segment may have come, filled with zeros."""
    for side in ("query_tower", "document_tower"):
        ours, theirs = (
            {w.path.removeprefix("document_"): w for w in getattr(model, side).weights}
            for model in (first, second)
        )
        extra = set(theirs) - set(ours)
        assert extra <= {path for path in theirs if path.endswith("segment_table")}
        for path in extra:
            np.testing.assert_array_equal(theirs[path], 0.0)
        for path in set(ours) - {path for path in ours if "seed" in path}:
            value = ours[path].numpy().astype("float32")
            np.testing.assert_array_equal(theirs[path].numpy(), value, err_msg=path)


PROMPTS = dataclasses.replace(TEXT, query_prompt="query: ", document_prompt="a passage of text: ")
ALL = ("last", "weighted_mean", "mean_sqrt_length", "mean", "max", "first")
TANH = (DenseConfig(20, use_bias=True, activation="tanh"), DenseConfig(9, activation="gelu"))
# Tokenizer, fields of the backbone (the vocabulary follows the tokenizer), fields of the towers.
SIAMESE = {
    "bert_mean": ("bert", BertConfig(1, **BERT), {}),
    "no_segments_first_max": (
        "bert",
        BertConfig(1, num_segments=0, activation="gelu_tanh", **BERT),
        {"pooling": ("first", "max")},
    ),
    "one_segment_all_poolings": (
        "bert",
        BertConfig(1, num_segments=1, **BERT),
        {"pooling": ALL, "normalize": False},
    ),
    "two_dense": (
        "bert",
        BertConfig(1, activation="relu", **BERT),
        {"projection": TANH, "normalize": False},
    ),
    "prompts_not_pooled": (
        "bert",
        BertConfig(1, **BERT),
        {"text": PROMPTS, "pool_prompts": False, "pooling": ("first", "mean")},
    ),
    "mpnet": (
        "mpnet",
        BertConfig(1, num_segments=0, relative_buckets=32, dropout=0.2, **BERT),
        {"pooling": ("first",)},
    ),
    "t5_dense": ("t5", T5Config(1, **T5), {"projection": (DenseConfig(11),)}),
    "t5_relu_prompts": (
        "t5",
        T5Config(1, activation="relu", gated=False, relative_buckets=16, **T5),
        {"text": PROMPTS, "pool_prompts": False},
    ),
}


@pytest.mark.parametrize("name", SIAMESE)
def test_siamese(name, library, texts, tokenizers, tmp_path, record_property):
    kind, backbone, options = SIAMESE[name]
    tokenizer = tokenizers(kind)
    backbone = dataclasses.replace(backbone, vocabulary_size=tokenizer.vocabulary_size + 7)
    texts = without_known_differences(texts, kind)
    model = build(backbone, tokenizer, **options)
    directory = export_sentence_transformers(model, tmp_path / "model")
    theirs = loaded(library, directory)
    assert_equal(theirs, model, texts, record_property)
    assert theirs.similarity_fn_name == ("cosine" if model.config.normalize else "dot")
    back = DualEncoder.from_backbone(directory)
    assert_same_weights(model, back)
    assert back.preprocessor.text_config == model.preprocessor.text_config
    if name in ("bert_mean", "t5_dense"):
        expected = model.encode_documents(texts)
        np.testing.assert_allclose(theirs.encode(texts), expected, atol=1e-5)
        np.testing.assert_allclose(back.encode_documents(texts), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "sharing"), [("bert", "ade"), ("t5", "ade_ste"), ("bert", "ade_spl")]
)
def test_asymmetric(kind, sharing, library, texts, tokenizers, tmp_path, record_property):
    """Lengths of each side are exact, and a shared projection stands once."""
    text = TextConfig(
        query_max_length_tokens=12, document_max_length_tokens=30, query_prompt="find: "
    )
    texts, tokenizer = without_known_differences(texts, kind), tokenizers(kind)
    cls, sizes = (BertConfig, BERT) if kind == "bert" else (T5Config, T5)
    backbone = cls(tokenizer.vocabulary_size, **sizes)
    steps = (DenseConfig(11, use_bias=True),)
    model = build(backbone, tokenizer, text=text, sharing=sharing, projection=steps)
    directory = export_sentence_transformers(model, tmp_path / "model")
    assert len(list(directory.rglob("*_Dense"))) == (1 if sharing == "ade_spl" else 2)
    theirs = loaded(library, directory)
    assert_equal(theirs, model, texts, record_property)
    queries, documents = model.encode_queries(texts), model.encode_documents(texts)
    assert np.abs(queries - documents).max() > 0.01
    if sharing == "ade_spl":
        return
    back = DualEncoder.from_backbone(directory, text=text)
    assert_same_weights(model, back)
    np.testing.assert_allclose(back.encode_queries(texts), queries, atol=1e-6)


def test_two_lengths_of_one_encoder(library, texts, tokenizers, tmp_path, record_property):
    """The larger holds; version 6 takes the smaller one as the note says. Titles as on the card."""
    tokenizer = tokenizers("bert")
    text = TextConfig(9, 30, document_template="{title} [SEP] {text}")
    model = build(BertConfig(tokenizer.vocabulary_size, **BERT), tokenizer, text=text)
    directory = export_sentence_transformers(model, tmp_path / "model")
    theirs = loaded(library, directory)
    assert "`model[0].query_length = 9`" in limitations(model)[0]
    assert np.abs(theirs.encode_query(texts) - model.encode_queries(texts)).max() > 0.01
    theirs[0].query_length = 9
    assert_equal(theirs, model, texts, record_property)
    document = "Hamlet [SEP] A tragedy by William Shakespeare."
    assert f"model.encode_document(['{document}'])" in (directory / "README.md").read_text()
    parts = {"title": "Hamlet", "text": "A tragedy by William Shakespeare."}
    expected = model.encode_documents([parts])
    np.testing.assert_allclose(theirs.encode_document([document]), expected, atol=1e-5)


def test_bfloat16(library, texts, tokenizers, tmp_path, record_property):
    """The weights stay as they are; computed in float32 on both sides, embeddings are equal."""
    import torch

    texts, tokenizer = without_known_differences(texts, "t5"), tokenizers("t5")
    backbone = T5Config(tokenizer.vocabulary_size, **T5)
    model = build(backbone, tokenizer, dtype="bfloat16", projection=(DenseConfig(11),))
    directory = export_sentence_transformers(model, tmp_path / "model")
    theirs = loaded(library, directory)
    assert next(theirs[0].parameters()).dtype == torch.bfloat16
    # Half precision differs between any two libraries: 8 bits of mantissa, two layers.
    assert_equal(theirs, model, texts, lambda *_: None, atol=0.1)
    theirs = loaded(library, directory, model_kwargs={"dtype": "float32"})
    back = DualEncoder.from_backbone(directory)
    assert_equal(theirs, back, texts, record_property)
    assert_same_weights(model, back)


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "xlm-roberta"])
def test_in_and_out(kind, library, texts, tmp_path, record_property):
    """What transformers wrote comes in, gets a projection, and leaves with its tokenizer."""
    foreign.write_transformer(tmp_path / "in", kind, texts)
    model = DualEncoder.from_backbone(tmp_path / "in", text=TEXT, embedding_dim=10)
    directory = export_sentence_transformers(model, tmp_path / "out")
    assert_equal(loaded(library, directory), model, texts, record_property)
    assert_same_weights(model, DualEncoder.from_backbone(directory))


def test_minilm(library, minilm, texts, tmp_path, record_property):
    texts = texts[::5]
    model = DualEncoder.load(minilm)
    directory = export_sentence_transformers(model, tmp_path / "model")
    theirs = loaded(library, directory)
    assert_equal(theirs, model, texts, record_property)
    original = loaded(library, minilm)
    np.testing.assert_array_equal(theirs.encode(texts), original.encode(texts))
    assert_same_weights(model, DualEncoder.from_backbone(directory))


def test_nothing_is_said_on_loading(library, tokenizers, tmp_path, capfd):
    """No weight is missing, new or one too many."""
    tokenizer = tokenizers("bert")
    model = build(BertConfig(tokenizer.vocabulary_size, num_segments=0, **BERT), tokenizer)
    directory = export_sentence_transformers(model, tmp_path / "model")
    capfd.readouterr()
    loaded(library, directory)
    said = capfd.readouterr().err.lower()
    assert "loading weights" in said
    for word in ("missing", "unexpected", "initialized", "warn"):
        assert word not in said
