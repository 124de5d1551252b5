"""Cross-encoders of transformers and sentence-transformers give the same logits here.

Small random weights, written by those libraries; 1,000 real pairs of all lengths, with empty sides
and pairs beyond the limit among them. The largest differences are recorded:
`pytest tests/parity/test_peers_cross_encoders.py --junitxml=parity.xml`.
"""

import importlib
import itertools
import json
import random

import foreign
import numpy as np
import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder

pytestmark = pytest.mark.peers

LIMIT = 64
# Three kinds of heads, each with one label and with three; their arrays have RoBERTa's names in an
# XLM-RoBERTa and an MPNet.
KINDS = {
    "bert": (1, 3),
    "distilbert": (1, 3),
    "roberta": (1, 3),
    "xlm-roberta": (1,),
    "mpnet": (3,),
}
SHIFTED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


@pytest.fixture(scope="module")
def library():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("sentence_transformers")


@pytest.fixture(scope="module")
def pairs(data_dir):
    """Queries with sentences, abstracts or parts of them; each side empty or long now and then."""
    rng = random.Random(5)
    pairs = [("", ""), ("", "red"), ("red", ""), (" ", "\n"), ("[SEP] a </s>", "[CLS] <s> b")]
    for name in ("squad_sent", "scifact"):
        data = DatasetDirectory(data_dir / name)
        queries = [query.text for query in itertools.islice(data.queries(), 500)]
        documents = [document.text for document in itertools.islice(data.documents(), 2000)]
        pairs += zip(queries, rng.sample(documents, len(queries)), strict=True)
    for i in range(5, 1000, 10):
        first, second = pairs[i]
        pairs[i] = [("", second), (first, ""), (second, first), (second, second), (first, first)][
            i // 10 % 5
        ]
    return [(first, second[: rng.randrange(600)]) for first, second in pairs[:1000]]


def write(directory, kind, texts, num_labels):
    """Writes a small random sequence classification model with its tokenizer."""
    import torch
    import transformers

    foreign.write_transformer(directory, kind, texts)
    size = len(transformers.AutoTokenizer.from_pretrained(directory))
    options = {"vocab_size": size, "num_labels": num_labels}
    match kind:
        case "bert":
            name, options = "Bert", {**options, **foreign.SIZES}
        case "distilbert":
            sizes = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
            name, options = "DistilBert", {**options, **sizes, "max_position_embeddings": 66}
        case "mpnet":
            name, options = "MPNet", {**options, **SHIFTED, **foreign.SIZES}
        case _:
            name = "XLMRoberta" if kind == "xlm-roberta" else "Roberta"
            options |= {"type_vocab_size": 1, **SHIFTED, **foreign.SIZES}
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    foreign.randomize(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0 if weight.ndim == 2 else 1.0)  # so that the logits differ
    model.save_pretrained(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_logits(kind, library, pairs, tmp_path, record_property):
    texts = [text for pair in pairs for text in pair]
    for num_labels in KINDS[kind]:
        # One in the layout of transformers and of releases before 6, one as release 6 saves it.
        directory = tmp_path / f"plain-{num_labels}"
        write(directory, kind, texts, num_labels)
        theirs = library.CrossEncoder(str(directory), max_length=LIMIT, device="cpu")
        if num_labels == 3:
            directory = tmp_path / "saved"
            theirs.save_pretrained(str(directory))
            assert (directory / "modules.json").exists()
        else:
            options = json.loads((directory / "tokenizer_config.json").read_text())
            options["model_max_length"] = LIMIT
            (directory / "tokenizer_config.json").write_text(json.dumps(options))
        ours = CrossEncoder.load(directory)
        assert ours.preprocessor.text_config.max_length_tokens == LIMIT
        got = ours.score(pairs, batch_size=128)
        expected = theirs.predict(pairs, batch_size=128, activation_fn=identity())
        assert got.shape == expected.shape == ((1000,) if num_labels == 1 else (1000, 3))
        assert expected.std() > 0.05
        record_property(f"largest_difference_{num_labels}", float(np.abs(got - expected).max()))
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
        if num_labels == 1:  # then `predict` gives probabilities unless asked
            default = theirs.predict(pairs[:50])
            np.testing.assert_allclose(1 / (1 + np.exp(-got[:50])), default, atol=1e-5)
    assert_equal_tokens(kind, ours, theirs, pairs)


def test_electra_is_refused(library, pairs, tmp_path):
    import transformers

    foreign.word_piece(tmp_path, [second for _, second in pairs])
    config = transformers.ElectraConfig(vocab_size=100, embedding_size=24, **foreign.SIZES)
    transformers.ElectraForSequenceClassification(config).save_pretrained(tmp_path)
    supported = "BertForSequenceClassification, DistilBertForSequenceClassification,"
    with pytest.raises(ConfigError, match=f"must be one of {supported}") as error:
        CrossEncoder.load(tmp_path)
    assert "Received: 'ElectraForSequenceClassification'" in str(error.value)


def identity():
    import torch

    return torch.nn.Identity()


def assert_equal_tokens(kind, ours, theirs, pairs):
    expected = theirs.tokenizer(
        *map(list, zip(*pairs, strict=True)),
        padding=True, truncation="longest_first", max_length=LIMIT, return_tensors="np",
    )  # fmt: skip
    token_ids, segment_ids, padding_mask = (
        np.asarray(part) for part in ours.preprocessor.pairs(*zip(*pairs, strict=True))
    )
    np.testing.assert_array_equal(token_ids, expected["input_ids"])
    np.testing.assert_array_equal(padding_mask, expected["attention_mask"])
    # The tokenizer of a DistilBERT gives them too, but the model has no segments.
    segments = expected["token_type_ids"] if kind == "bert" else np.zeros_like(token_ids)
    np.testing.assert_array_equal(segment_ids, segments)
