"""Presets of keras-hub's `TextEmbedder`: the same token ids and embeddings, from the same files."""

import io
import json
import shutil

import keras_hub
import numpy as np
import pytest
import sentencepiece

import tfde
from tfde.checkpoints.loading import load_backbone
from tfde.errors import ConfigError, DataError
from tfde.text.preprocessor import TextPreprocessor

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [
    "",
    "a",
    "The quick brown fox",
    "jumps over the lazy dog, twice; then it rests.",
    "the quick brown fox jumps over the lazy dog and over the quick brown fox " * 3,
]
SIZES = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 32,
}
LIMIT = 24


def randomize(model):
    """Moves every weight off its initial value: zeros and ones would hide a swapped array."""
    rng = np.random.default_rng(11)
    for variable in model.weights:
        variable.assign(variable + 0.2 * rng.standard_normal(variable.shape))


def word_piece(cls):
    words = ["the", "quick", "brown", "fox", "lazy", "dog", ",", ".", ";"]
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]"]
    return cls(special + words + pieces, lowercase=True)


def byte_pair():
    characters = ["Ġ", *LETTERS, *LETTERS.upper(), ",", ".", ";"]
    merges = ["t h", "th e", "Ġ the", "q u", "Ġ f", "o x", "Ġf ox", "T h", "Th e"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *characters]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<mask>"]
    ids = {token: index for index, token in enumerate(tokens)}
    return keras_hub.models.RobertaTokenizer(vocabulary=ids, merges=merges)


def unigram():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in TEXTS if text] * 20),
        model_writer=out,
        vocab_size=60,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=2,
    )
    return keras_hub.models.XLMRobertaTokenizer(out.getvalue())


KINDS = {
    "Bert": lambda: word_piece(keras_hub.models.BertTokenizer),
    "DistilBert": lambda: word_piece(keras_hub.models.DistilBertTokenizer),
    "Roberta": byte_pair,
    "XLMRoberta": unigram,
}


def save_embedder(directory, kind, **options):
    tokenizer = KINDS[kind]()
    backbone = getattr(keras_hub.models, f"{kind}Backbone")(
        vocabulary_size=tokenizer.vocabulary_size(), **SIZES
    )
    randomize(backbone)
    preprocessor = getattr(keras_hub.models, f"{kind}TextEmbedderPreprocessor")(
        tokenizer, sequence_length=LIMIT
    )
    embedder = getattr(keras_hub.models, f"{kind}TextEmbedder")(
        backbone, preprocessor=preprocessor, **options
    )
    embedder.save_to_preset(str(directory))


@pytest.fixture(scope="module")
def saved_bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert_text_embedder")
    save_embedder(path, "Bert", pooling_mode="mean", normalize=True)
    return path


@pytest.fixture
def bert(saved_bert, tmp_path):
    return shutil.copytree(saved_bert, tmp_path / "bert")


def with_task(path, class_name=None, **fields):
    """Rewrites what a preset's `task.json` says."""
    value = json.loads((path / "task.json").read_text())
    value["config"] |= fields
    value["class_name"] = class_name or value["class_name"]
    (path / "task.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("kind", "pooling_mode", "normalize", "pooling"),
    [
        ("Bert", "mean", True, "mean"),
        ("Bert", "cls", False, "first"),
        ("Bert", "max", True, "max"),
        ("XLMRoberta", "mean", False, "mean"),
    ],
)
def test_embeddings_equal_keras_hub(kind, pooling_mode, normalize, pooling, tmp_path):
    save_embedder(tmp_path, kind, pooling_mode=pooling_mode, normalize=normalize)
    assert not (tmp_path / "task.weights.h5").exists()  # all weights are the backbone's
    theirs = keras_hub.models.TextEmbedder.from_preset(str(tmp_path))
    expected = theirs.encode_text(TEXTS, verbose=0)
    ours = tfde.DualEncoder.from_backbone(tmp_path)
    assert ours.config.pooling == (pooling,)
    assert ours.config.normalize is normalize
    assert ours.preprocessor.text_config.document_max_length_tokens == LIMIT
    np.testing.assert_allclose(ours.encode_queries(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(ours.encode_documents(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_token_ids_equal_keras_hub(kind, tmp_path):
    tokenizer = KINDS[kind]()
    backbone = getattr(keras_hub.models, f"{kind}Backbone")
    backbone(vocabulary_size=tokenizer.vocabulary_size(), **SIZES).save_to_preset(str(tmp_path))
    preprocessor = getattr(keras_hub.models, f"{kind}TextClassifierPreprocessor")(
        tokenizer, sequence_length=LIMIT
    )
    preprocessor.save_to_preset(str(tmp_path))
    loaded = load_backbone(tmp_path)
    assert loaded.max_length_tokens == LIMIT
    assert loaded.steps.pooling is None
    assert loaded.tokenizer.vocabulary_size == tokenizer.vocabulary_size()
    texts = [*TEXTS, " two  blanks ", "a fox [SEP] a dog" if "Bert" in kind else "a fox, z"]
    config = tfde.TextConfig(query_max_length_tokens=LIMIT, buckets=(LIMIT,))
    expected = preprocessor(texts)
    if kind == "Roberta":  # a blank before the first word makes another token of it
        texts, expected = texts[:-2], {k: v[:-2] for k, v in expected.items()}
    token_ids, mask = TextPreprocessor(loaded.tokenizer, config).queries(texts)
    np.testing.assert_array_equal(token_ids, expected["token_ids"])
    np.testing.assert_array_equal(mask, expected["padding_mask"])


def test_special_tokens_in_texts_are_what_the_preset_says(tmp_path, bert):
    """keras-hub's RoBERTa recognises them, but "<unk>"; its BERT does when asked to."""
    tokenizer = byte_pair()
    tokenizer.save_to_preset(str(tmp_path))
    backbone = keras_hub.models.RobertaBackbone(tokenizer.vocabulary_size(), **SIZES)
    backbone.save_to_preset(str(tmp_path))
    texts = ["the fox<mask> the </s>fox", "<s> a<pad>"]
    ours = load_backbone(tmp_path).tokenizer.tokenize(texts).to_list()
    assert ours == [list(row) for row in tokenizer(texts)]
    value = json.loads((bert / "tokenizer.json").read_text())
    texts = ["the [MASK] fox"]
    plain = load_backbone(bert).tokenizer
    assert plain.tokenize(texts).row_lengths() == [2 + 3 + 3]  # "mask" has no first piece but "m"
    value["config"]["special_tokens_in_strings"] = True
    (bert / "tokenizer.json").write_text(json.dumps(value))
    assert load_backbone(bert).tokenizer.tokenize(texts).to_list() == [[7, 4, 10]]


def test_another_task_says_nothing_of_embeddings(bert):
    with_task(bert, "BertMaskedLM")
    assert load_backbone(bert).steps.pooling is None


def test_wrong_tasks_are_refused_in_one_line(bert):
    known = "BertTextEmbedder or a XLMRobertaTextEmbedder"
    for class_name, fields, rule in (
        ("MyTextEmbedder", {}, rf"a text embedder must be a {known}. Received: 'MyTextEmbedder'"),
        (
            "BertTextEmbedder",
            {"pooling_mode": "last"},
            r"`pooling_mode` must be one of mean, cls, max. Received: 'last'",
        ),
        (
            "BertTextEmbedder",
            {"pooling_mode": "cls", "normalize": 1},
            r"`normalize` must be true or false. Received: 1",
        ),
    ):
        with_task(bert, class_name, **fields)
        with pytest.raises(ConfigError, match=rf"task.json: {rule}"):
            load_backbone(bert)


def test_a_wrong_length_is_refused_in_one_line(bert):
    value = json.loads((bert / "preprocessor.json").read_text())
    value["config"]["sequence_length"] = "long"
    (bert / "preprocessor.json").write_text(json.dumps(value))
    rule = r"preprocessor.json: `sequence_length` must be a whole number of at least 1. .*'long'"
    with pytest.raises(ConfigError, match=rule):
        load_backbone(bert)


def test_sentence_piece_models_in_another_order_are_refused_in_one_line(tmp_path):
    tokenizer = unigram()
    tokenizer.save_to_preset(str(tmp_path))
    keras_hub.models.XLMRobertaBackbone(tokenizer.vocabulary_size(), **SIZES).save_to_preset(
        str(tmp_path)
    )
    path = tmp_path / "assets" / "tokenizer" / "vocabulary.spm"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"<unk>", b"<bad>", 1))
    rule = r"vocabulary.spm: `model` must be a unigram model that begins with <unk>.*<bad>, <s>"
    with pytest.raises(ConfigError, match=rule):
        load_backbone(tmp_path)
    path.write_bytes(b"\xff" + whole[:50])
    with pytest.raises(ConfigError, match=r"vocabulary.spm: `model` must be a serialized Sente"):
        load_backbone(tmp_path)


def test_damaged_byte_pairs_are_refused_in_one_line(tmp_path):
    tokenizer = byte_pair()
    tokenizer.save_to_preset(str(tmp_path))
    keras_hub.models.RobertaBackbone(tokenizer.vocabulary_size(), **SIZES).save_to_preset(
        str(tmp_path)
    )
    assets = tmp_path / "assets" / "tokenizer"
    merges, vocabulary = assets / "merges.txt", assets / "vocabulary.json"
    whole = merges.read_text()
    for line, error, rule in (
        ("alone", DataError, r"merges.txt:1: a merge must be two tokens with a blank between"),
        ("the q", ConfigError, r"tokenizer: .*Received: .*theq"),
    ):
        merges.write_text(f"{line}\n{whole}")
        with pytest.raises(error, match=rule):
            load_backbone(tmp_path)
    merges.write_text(f"#version: 0.2\n{whole}")
    assert load_backbone(tmp_path).tokenizer.tokenize(["the"]).to_list() == [
        [json.loads(vocabulary.read_text())["the"]]
    ]
    vocabulary.write_text(json.dumps({"<s>": 0, "<pad>": 2}))
    with pytest.raises(DataError, match=r"vocabulary.json: ids must be 0, 1, 2 ... without a gap"):
        load_backbone(tmp_path)
