"""sentence-transformers gives the tokens and scores of a ColBERT directory that we give.

Small random weights in the layout of ColBERT's own program; real questions and paragraphs.
"""

import importlib
import json

import foreign
import numpy as np
import pytest
import tensorflow as tf

from tfde.matching.matcher import Matcher

pytestmark = pytest.mark.peers

SETTINGS = {
    "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "dim": 16, "query_maxlen": 20,
    "doc_maxlen": 48, "mask_punctuation": True, "attend_to_mask_tokens": False,
    "similarity": "cosine",
}  # fmt: skip


@pytest.fixture(scope="module")
def texts(data_dir):
    return foreign.real_texts(data_dir, 200)


@pytest.fixture(scope="module")
def directory(texts, tmp_path_factory):
    """A ColBERT: a BERT whose arrays begin with `bert.`, a projection, and its settings."""
    import torch
    import transformers
    from safetensors.torch import save_file

    directory = tmp_path_factory.mktemp("colbert")
    foreign.write_transformer(directory, "bert", texts)
    vocabulary = transformers.AutoTokenizer.from_pretrained(directory).get_vocab()
    for number in (0, 1):
        vocabulary[f"[unused{number}]"] = len(vocabulary)
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(directory)
    config = transformers.BertConfig(vocab_size=len(vocabulary), **foreign.SIZES)
    model = foreign.randomize(transformers.BertModel(config))
    torch.manual_seed(4)
    arrays = {f"bert.{name}": array for name, array in model.state_dict().items()}
    arrays["linear.weight"] = torch.randn(16, 24)
    save_file(arrays, directory / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["HF_ColBERT"]
    config.save_pretrained(directory)
    (directory / "artifact.metadata").write_text(json.dumps(SETTINGS))
    return directory


def test_tokens_vectors_and_scores(directory, texts, record_property):
    library = importlib.import_module("sentence_transformers")
    theirs = library.MultiVectorEncoder(str(directory), device="cpu")
    ours = Matcher.from_backbone(directory, kind="late_interaction")
    queries, documents = texts[:60], texts[60:]
    ids, mask = ours.preprocessor.queries(tf.constant(queries))
    expected = theirs.preprocess([f"[unused0] {query}" for query in queries], task="query")
    np.testing.assert_array_equal(ids, expected["input_ids"])
    np.testing.assert_array_equal(mask, expected["attention_mask"])
    assert ids.shape == (60, 20)
    ids, mask = ours.preprocessor.documents(tf.constant([""] * 140), tf.constant(documents))
    expected = theirs.preprocess([f"[unused1] {text}" for text in documents], task="document")
    length = expected["input_ids"].shape[1]
    np.testing.assert_array_equal(ids[:, :length], expected["input_ids"])
    assert np.sum(mask[:, length:]) == 0

    asked = theirs.encode_query(queries, convert_to_numpy=True)
    vectors, counts = ours.encode_first(queries)
    assert counts.min() == 1  # [MASK]s count
    np.testing.assert_allclose(vectors, np.stack(asked), atol=2e-5)
    found = theirs.encode_document(documents, convert_to_numpy=True)
    stored = ours.store(documents)
    assert np.diff(stored.offsets).tolist() == [len(document) for document in found]
    np.testing.assert_allclose(stored.vectors, np.concatenate(found), atol=2e-5)
    expected = np.diag(np.asarray(theirs.similarity(asked, found[:60])))
    scores = 20 * ours.score(list(zip(queries, documents, strict=False)))  # the mean, not the sum
    record_property("largest_difference", float(np.abs(scores - expected).max()))
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def test_the_program_s_settings_are_heeded(directory, tmp_path):
    import shutil

    from tfde.errors import ConfigError

    shutil.copytree(directory, tmp_path / "attends")
    settings = {**SETTINGS, "attend_to_mask_tokens": True}
    (tmp_path / "attends/artifact.metadata").write_text(json.dumps(settings))
    with pytest.raises(
        ConfigError, match=r"`attend_to_mask_tokens` must be false\. Received: True"
    ):
        Matcher.from_backbone(tmp_path / "attends", kind="late_interaction")
