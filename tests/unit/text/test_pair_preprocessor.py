import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from tfde.config.model import PairTextConfig
from tfde.errors import ConfigError
from tfde.text.pair_preprocessor import PairPreprocessor
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"]
PAD, UNK, CLS, SEP, A, B, C = range(len(WORDS))


def preprocessor(**changes) -> PairPreprocessor:
    return PairPreprocessor(WordPieceTokenizer(WORDS), PairTextConfig(**changes))


def rows(batch) -> list[tuple[list[int], list[int]]]:
    """Real tokens and their segments, after checking what goes for every batch."""
    token_ids, segment_ids, padding_mask = (np.asarray(part) for part in batch)
    assert token_ids.shape == segment_ids.shape == padding_mask.shape
    assert token_ids.dtype == segment_ids.dtype == padding_mask.dtype == np.int32
    lengths = padding_mask.sum(axis=1)
    expected = np.arange(token_ids.shape[1])[None, :] < lengths[:, None]
    np.testing.assert_array_equal(padding_mask, expected)
    assert (token_ids[padding_mask == 0] == PAD).all()
    assert (segment_ids[padding_mask == 0] == 0).all()
    return [
        (ids[:n].tolist(), segments[:n].tolist())
        for ids, segments, n in zip(token_ids, segment_ids, lengths, strict=True)
    ]


def test_both_texts_stand_in_one_row():
    got = rows(preprocessor().pairs(["a b", "", "c", ""], ["c", "a", " \t", ""]))
    assert got == [
        ([CLS, A, B, SEP, C, SEP], [0, 0, 0, 0, 1, 1]),
        ([CLS, SEP, A, SEP], [0, 0, 1, 1]),
        ([CLS, C, SEP, SEP], [0, 0, 0, 1]),
        ([CLS, SEP, SEP], [0, 0, 1]),
    ]
    assert preprocessor().pairs([], [])[0].shape == (0, 16)


def test_one_segment():
    assert rows(preprocessor(num_segments=1).pairs(["a"], ["b"])) == [
        ([CLS, A, SEP, B, SEP], [0] * 5)
    ]


@pytest.mark.parametrize("limit", [6, 7, 12, 13])
def test_truncation_is_that_of_tokenizers(limit):
    peer = tokenizers.BertWordPieceTokenizer({word: i for i, word in enumerate(WORDS)})
    peer.enable_truncation(limit, strategy="longest_first")
    lengths = [(n, m) for n in range(15) for m in range(15)]
    pairs = [("a " * n, "b " * m) for n, m in lengths]
    batch = preprocessor(max_length_tokens=limit).pairs(*zip(*pairs, strict=True))
    assert batch[0].shape[1] == limit
    expected = [(encoded.ids, encoded.type_ids) for encoded in peer.encode_batch(pairs)]
    assert rows(batch) == expected


def test_documents_follow_the_template():
    text = preprocessor(document_template="{title}: {text}")
    assert text.documents(["t", ""], [" a ", "b"]).numpy().tolist() == [b"t:  a ", b": b"]
    assert preprocessor().documents([""], [" a\n"]).numpy().tolist() == [b" a\n"]


def test_smallest_bucket_that_holds_the_batch():
    text = preprocessor(buckets=(8, 4, 32), max_length_tokens=12)
    assert text.pairs(["a"], [""])[0].shape == (1, 4)
    assert text.pairs(["a"], ["b"])[0].shape == (1, 8)
    assert text.pairs(["a " * 5], ["b"])[0].shape == (1, 12)


def test_in_tf_data_and_in_a_saved_model(tmp_path):
    text = preprocessor(max_length_tokens=8)
    first, second = ["a", "b c", ""], ["b", "a " * 9, "c"]
    expected = text.pairs(first, second)
    dataset = tf.data.Dataset.from_tensor_slices((first, second)).batch(3).map(text.pairs)
    for got, want in zip(next(iter(dataset)), expected, strict=True):
        np.testing.assert_array_equal(got, want)

    module = tf.Module()
    module.preprocessor = text
    strings = tf.TensorSpec([None], tf.string)
    module.pairs = tf.function(text.pairs, input_signature=[strings, strings])
    tf.saved_model.save(module, str(tmp_path / "model"))
    again = tf.saved_model.load(str(tmp_path / "model"))
    for got, want in zip(again.pairs(first, second), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_save_and_load(tmp_path):
    text = preprocessor(max_length_tokens=9, num_segments=1, buckets=(4, 8))
    text.save(tmp_path / "pairs")
    again = PairPreprocessor.load(tmp_path / "pairs")
    assert again.text_config == text.text_config
    assert again.fingerprint_bytes() == text.fingerprint_bytes()
    assert rows(again.pairs(["a b"], ["c"])) == rows(text.pairs(["a b"], ["c"]))
    with pytest.raises(ConfigError, match=r"preprocessor\.json` has no field 'max_length_tokens'"):
        TextPreprocessor.load(tmp_path / "pairs")
    path = tmp_path / "pairs" / "preprocessor.json"
    value = json.loads(path.read_text())
    assert value == {**dataclasses.asdict(text.text_config), "buckets": [4, 8]}
    path.unlink()
    with pytest.raises(ConfigError, match=r"must be written by PairPreprocessor\.save\."):
        PairPreprocessor.load(tmp_path / "pairs")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_length_tokens", 5, r"`max_length_tokens` must be an integer >= 6\. Received: 5"),
        ("num_segments", 0, r"`num_segments` must be 1 or 2\. Received: 0"),
        ("document_template", "{title}", r"`document_template` must be one with \{text\}, "),
        ("document_template", "{titel} {text}", r"and no other .* Received: '\{titel\} \{text\}'"),
        ("buckets", (0, 8), r"`buckets` must be positive integers\. Received: 0"),
    ],
)
def test_what_a_description_must_hold(field, value, message):
    with pytest.raises(ConfigError, match=message):
        preprocessor(**{field: value})
