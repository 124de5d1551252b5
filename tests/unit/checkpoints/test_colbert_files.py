"""A directory of ColBERT's own program brings projection, marks and lengths.

That the answers are its own is shown by tests/parity/test_peers_colbert.py.
"""

import json
import re

import bert_directory
import numpy as np
import pytest
import tensorflow as tf

import tfde
from tfde.checkpoints.colbert_files import read_colbert
from tfde.errors import ConfigError, DataError

KERNEL = np.arange(24, dtype="float32").reshape(3, 8) / 24
SETTINGS = {"query_token_id": "a", "doc_token_id": "b", "query_maxlen": 7, "doc_maxlen": 9}


@pytest.fixture
def colbert(tmp_path):
    def write(kernel=KERNEL, **settings):
        weights = {f"bert.{name}": array for name, array in bert_directory.arrays().items()}
        weights["linear.weight"] = kernel
        config = {"architectures": ["HF_ColBERT"]}
        bert_directory.write(tmp_path, weights=weights, config=config)
        (tmp_path / "artifact.metadata").write_text(json.dumps({**SETTINGS, **settings}))
        return tmp_path

    return write


def test_all_of_it_is_taken(colbert):
    model = tfde.Matcher.from_backbone(colbert(mask_punctuation=False), kind="late_interaction")
    assert (model.config.embedding_dim, model.config.skip_punctuation) == (3, False)
    projection = model.networks.layers["projection"].get_weights()
    np.testing.assert_array_equal(projection[0], KERNEL.T)
    ids, _ = model.preprocessor.queries(tf.constant(["c"]))
    start, end, mask = (bert_directory.VOCABULARY.index(t) for t in ("[CLS]", "[SEP]", "[MASK]"))
    assert ids.numpy().tolist() == [[start, 5, 7, end, mask, mask, mask]]
    ids, _ = model.preprocessor.documents(tf.constant([""]), tf.constant(["c " * 9]))
    assert ids.numpy().tolist() == [[start, 6, *[7] * 6, end]]


def test_what_is_given_goes_first(colbert):
    text = tfde.TextConfig(12, 12)
    options = {"kind": "late_interaction", "embedding_dim": 5, "skip_punctuation": True}
    model = tfde.Matcher.from_backbone(colbert(), text=text, seed=1, **options)
    assert (model.config.embedding_dim, model.config.skip_punctuation) == (5, True)
    assert model.preprocessor.text_config == text.filled()


def test_other_directories_hold_none(tmp_path):
    bert_directory.write(tmp_path)
    assert read_colbert(tmp_path, 8) is None


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"attend_to_mask_tokens": True}, "`attend_to_mask_tokens` must be false. Received: True"),
        ({"similarity": "l2"}, "`similarity` must be cosine. Received: 'l2'"),
        ({"query_token_id": "[Q]"}, "`query_mark` must be a token of the vocabulary."),
        ({"query_maxlen": 2}, "`query_max_length_tokens` must be an integer of at least 3"),
    ],
)
def test_what_we_have_not_is_refused(colbert, settings, rule):
    with pytest.raises(ConfigError, match=re.escape(rule)):
        tfde.Matcher.from_backbone(colbert(**settings), kind="late_interaction")


def test_a_projection_that_is_none(colbert):
    with pytest.raises(DataError, match=r"linear\.weight must be a matrix"):
        tfde.Matcher.from_backbone(colbert(KERNEL[0]), kind="late_interaction")
    with pytest.raises(DataError, match=r"must have 8 columns\. Received: \(3, 4\)"):
        tfde.Matcher.from_backbone(colbert(KERNEL[:, :4].copy()), kind="late_interaction")
