import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tfde.config.model import TextConfig
from tfde.errors import ConfigError
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "t", "u", "query", ":"]
PAD, UNK, CLS, SEP, A, B, C, T, U, QUERY, COLON = range(len(WORDS))


def preprocessor(**changes) -> TextPreprocessor:
    return TextPreprocessor(WordPieceTokenizer(WORDS), TextConfig(**changes))


def rows(batch) -> list[list[int]]:
    """The real tokens of each row, after checking what goes for every batch."""
    token_ids, padding_mask = (np.asarray(part) for part in batch)
    assert token_ids.shape == padding_mask.shape
    assert token_ids.dtype == padding_mask.dtype == np.int32
    lengths = padding_mask.sum(axis=1)
    expected = np.arange(token_ids.shape[1])[None, :] < lengths[:, None]
    np.testing.assert_array_equal(padding_mask, expected)
    assert (token_ids[padding_mask == 0] == PAD).all()
    return [row[:n].tolist() for row, n in zip(token_ids, lengths, strict=True)]


def test_queries_get_special_tokens_and_prompt():
    assert rows(preprocessor().queries(["a b", "", " c "])) == [
        [CLS, A, B, SEP],
        [CLS, SEP],
        [CLS, C, SEP],
    ]
    prompted = preprocessor(query_prompt="query: ").queries(["a", ""])
    assert rows(prompted) == [[CLS, QUERY, COLON, A, SEP], [CLS, QUERY, COLON, SEP]]


def test_marks_stand_after_the_start_and_before_the_prompt():
    marked = preprocessor(
        query_mark="t", document_mark="u", query_prompt="query: ", query_max_length_tokens=5,
        document_template="{title} [SEP] {text}",
    )  # fmt: skip
    texts = ["a b", "", "a a a a a"]
    assert rows(marked.queries(texts)) == [[CLS, T, QUERY, COLON, SEP]] * 3
    found = marked.documents(["c", "", ""], ["a", "", "b"])
    assert rows(found) == [[CLS, U, C, SEP, A, SEP], [CLS, U, SEP], [CLS, U, B, SEP]]
    assert marked.frame_lengths() == (2, 2)
    assert marked.prompt_lengths() == (4, 0)


def test_a_fill_makes_all_queries_as_long_as_the_longest():
    filled = preprocessor(query_fill="c", query_mark="t", query_max_length_tokens=6)
    ids, mask = filled.queries(["a b", "", "a b a b a b"])
    assert ids.numpy().tolist() == [
        [CLS, T, A, B, SEP, C],
        [CLS, T, SEP, C, C, C],
        [CLS, T, A, B, A, SEP],
    ]
    assert mask.numpy().sum(axis=1).tolist() == [5, 3, 6]
    assert rows(filled.documents([""], ["a"])) == [[CLS, A, SEP]]


def test_a_mark_is_a_token():
    with pytest.raises(ConfigError, match=r"`query_mark` must be a token .* Received: '\[Q\]'"):
        preprocessor(query_mark="[Q]")


def test_without_marks_files_and_fingerprints_are_those_of_earlier_versions():
    assert b"mark" not in preprocessor().fingerprint_bytes()
    assert b"query_fill" not in preprocessor().fingerprint_bytes()
    assert b"query_fill" in preprocessor(query_fill="c").fingerprint_bytes()


@pytest.mark.parametrize(
    ("template", "prompt", "expected"),
    [
        ("{title} {text}", "", [[T, A], [A], [T], []]),
        ("{title} [SEP] {text}", "", [[T, SEP, A], [A], [T], []]),
        ("{title}[SEP]{text}", "query:", [[QUERY, COLON, T, SEP, A], [QUERY, COLON, A],
         [QUERY, COLON, T], [QUERY, COLON]]),
        ("{text}", "", [[A], [A], [], []]),
        ("{text} b {title} b {text}", "", [[A, B, T, B, A], [A, B, B, A], [B, T, B], [B, B]]),
        ("c [SEP] [SEP] {title} [SEP] {text} [SEP]", "",
         [[C, SEP, T, SEP, A], [C, SEP, A], [C, SEP, T], [C]]),
    ],
)  # fmt: skip
def test_documents_follow_the_template(template, prompt, expected):
    text = preprocessor(document_template=template, document_prompt=prompt)
    batch = text.documents(["t", "", "t", " "], ["a", "a", "\n", ""])
    assert rows(batch) == [[CLS, *row, SEP] for row in expected]


def test_truncation_keeps_special_tokens():
    text = preprocessor(
        query_max_length_tokens=4,
        document_max_length_tokens=5,
        document_template="{title} [SEP] {text}",
    )
    assert rows(text.queries(["a b c", "a b"])) == [[CLS, A, B, SEP]] * 2
    assert rows(text.documents(["t", "t u", "t u t", "t u t u"], ["a b c"] * 4)) == [
        [CLS, T, SEP, A, SEP],
        [CLS, T, U, SEP],  # no separator where nothing follows it
        [CLS, T, U, T, SEP],
        [CLS, T, U, T, SEP],
    ]


def test_smallest_bucket_that_holds_the_batch():
    text = preprocessor(buckets=(8, 4, 16, 32), query_max_length_tokens=12)
    for words, length in [(0, 4), (2, 4), (3, 8), (6, 8), (7, 12), (10, 12), (50, 12)]:
        token_ids, _ = text.queries(["a", "a " * words])
        assert token_ids.shape == (2, length)


def test_without_buckets_rows_are_as_long_as_allowed():
    token_ids, _ = preprocessor(buckets=(), query_max_length_tokens=7).queries(["a"])
    assert token_ids.shape == (1, 7)


def test_batch_without_rows():
    text = preprocessor(buckets=(4, 8), document_template="{title} [SEP] {text}")
    for batch in (text.queries(tf.constant([], tf.string)), text.documents([], [])):
        assert rows(batch) == []
        assert batch[0].shape == (0, 4)


def test_same_in_functions_and_datasets():
    text = preprocessor(document_template="{title} [SEP] {text}", document_prompt="b ")
    titles, texts = tf.constant(["t", "", "u"]), tf.constant(["a b", "c", ""])
    expected = rows(text.documents(titles, texts))
    assert rows(tf.function(lambda a, b: text.documents(a, b))(titles, texts)) == expected
    dataset = tf.data.Dataset.from_tensor_slices((titles, texts)).batch(3).map(text.documents)
    assert [rows(batch) for batch in dataset] == [expected]
    singly = tf.data.Dataset.from_tensor_slices((titles, texts)).batch(1).map(text.documents)
    assert [rows(batch)[0] for batch in singly] == expected


def test_sentence_pieces_end_with_their_own_token(tmp_path):
    model = train_sentencepiece(["ab ab a"] * 3, tmp_path / "m", vocabulary_size=7)
    tokenizer = SentencePieceTokenizer.from_file(model)
    text = TextPreprocessor(tokenizer, TextConfig(document_template="{title} [SEP] {text}"))
    a, b = tokenizer.tokenize(tf.constant(["a", "ab a"])).to_list()
    assert rows(text.documents(["a", "", ""], ["ab a", "ab a", ""])) == [
        [*a, 1, *b, 1],
        [*b, 1],
        [1],
    ]
    assert rows(text.queries(["ab a"])) == [[*b, 1]]


def test_save_and_load(tmp_path):
    text = preprocessor(query_prompt="query: ", document_template="{text} é", buckets=(5, 9))
    text.save(tmp_path)
    again = TextPreprocessor.load(tmp_path)
    assert again.text_config == text.text_config
    assert again.fingerprint_bytes() == text.fingerprint_bytes()
    assert rows(again.queries(["a"])) == rows(text.queries(["a"]))


def test_fingerprint_covers_every_field():
    base = TextConfig()
    changes = {
        "query_max_length_tokens": 7,
        "document_max_length_tokens": 7,
        "document_template": "{text}",
        "query_prompt": "q",
        "document_prompt": "d",
        "buckets": (3,),
        "query_mark": "a",
        "document_mark": "a",
        "query_fill": "a",
    }
    assert set(changes) == {field.name for field in dataclasses.fields(TextConfig)}
    prints = {preprocessor(**{k: v}).fingerprint_bytes() for k, v in changes.items()}
    prints.add(TextPreprocessor(WordPieceTokenizer(WORDS), base).fingerprint_bytes())
    prints.add(TextPreprocessor(WordPieceTokenizer([*WORDS, "z"]), base).fingerprint_bytes())
    assert len(prints) == len(changes) + 2


def test_impossible_buckets():
    for bucket in (0, -8):
        with pytest.raises(ConfigError, match=f"`buckets` must be positive .* Received: {bucket}"):
            preprocessor(buckets=(bucket, 16))


def test_template_without_the_text():
    with pytest.raises(ConfigError, match=r"`document_template` must be one with .*: '\{title\}'"):
        TextConfig(document_template="{title}")


def test_directories_without_a_preprocessor(tmp_path):
    with pytest.raises(ConfigError, match=r"preprocessor.json: must be .* FileNotFoundError"):
        TextPreprocessor.load(tmp_path)
    preprocessor().save(tmp_path)
    path = tmp_path / "preprocessor.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "length": 3}))
    with pytest.raises(ConfigError, match=r"preprocessor.json` has no field 'length'"):
        TextPreprocessor.load(tmp_path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"preprocessor.json: must be written by .* KeyError"):
        TextPreprocessor.load(tmp_path)
