import json

import numpy as np
import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "un", "##aff", "##able", "cafe", "Café", ",", "中", "!", "x", "##x"]


def ids(tokenizer, *texts):
    return tokenizer.tokenize(tf.constant(texts, tf.string)).to_list()


def test_pieces_words_and_marks():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    assert ids(tokenizer, "UNaffable, CAFÉ中!", "") == [[5, 6, 7, 10, 8, 11, 12], []]
    assert ids(tokenizer, "unaffordable un") == [[1, 5]]
    assert ids(tokenizer) == []


def test_case_and_accents_follow_the_vocabulary():
    assert ids(WordPieceTokenizer(VOCABULARY, lowercase=False), "Café café") == [[9, 1]]
    keep = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "é", "e"], strip_accents=False)
    assert ids(keep, "É") == [[4]]


def test_special_tokens_are_taken_literally():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    assert ids(tokenizer, "un[MASK]x [mask] [UNK]") == [[5, 4, 13, 1, 1, 1, 1]]
    # The characters that stand for them inside cannot be smuggled in.
    assert ids(tokenizer, "x\U000f1004", "[MASK] \U000f1004") == [[13], [4]]


def test_words_of_more_than_100_characters_are_unknown():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    assert ids(tokenizer, "x" * 100) == [[13] + [14] * 99]
    assert ids(tokenizer, "x" * 100 + " " + "x" * 101) == [[13] + [14] * 99 + [1]]
    assert ids(tokenizer, "un " + "x" * 101 + "!" + "x" * 500, "x") == [[5, 1, 12, 1], [13]]


def test_bytes_that_are_no_utf8_are_dropped():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    assert ids(tokenizer, b"u\xffn", b"\xe4\xb8 x\xc3", b"\xed\xa0\x80x") == [[5], [13], [13]]


def test_ids_and_names():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    assert tokenizer.vocabulary_size == 15
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (0, 2, 3)
    assert tokenizer.separator_id == 3
    assert tokenizer.id_to_token(np.int32(6)) == "##aff"
    assert tokenizer.tokenize(tf.constant(["x"])).dtype == tf.int32
    for wrong in (-1, 15):
        with pytest.raises(ValueError, match=rf"`token_id` must be in \[0, 15\). .*{wrong}"):
            tokenizer.id_to_token(wrong)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["[UNK]", "[CLS]", "[SEP]"], r"must hold the `pad_token`.*3 tokens without '\[PAD\]'"),
        (["[PAD]", "[CLS]", "[SEP]"], "must hold the `unknown_token`"),
        (["[PAD]", "[UNK]", "[SEP]"], "must hold the `start_token`"),
        (["[PAD]", "[UNK]", "[CLS]"], "must hold the `end_token`"),
        ([*SPECIAL, "a", "a"], "must hold each token once. Received: 'a' as id 6"),
        ([*SPECIAL, ""], "no empty token and no line break. Received: '' as id 5"),
        ([*SPECIAL, "a\nb"], r"no line break. Received: 'a\\nb' as id 5"),
    ],
)
def test_unfit_vocabularies(vocabulary, message):
    with pytest.raises(ConfigError, match=message):
        WordPieceTokenizer(vocabulary)


def test_from_vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(("\r\n".join([*VOCABULARY, "\u2028"]) + "\r\n\r\n").encode())
    tokenizer = WordPieceTokenizer.from_vocabulary_file(path, lowercase=False)
    assert tokenizer.vocabulary_size == 16
    assert ids(tokenizer, "Café") == [[9]]


def test_unreadable_vocabulary_files(tmp_path):
    path = tmp_path / "vocab.txt"
    with pytest.raises(ConfigError, match=r"vocab.txt: must be a readable vocabulary.*No such"):
        WordPieceTokenizer.from_vocabulary_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"vocab.txt: must be UTF-8. Received: .*0xff"):
        WordPieceTokenizer.from_vocabulary_file(path)
    path.write_text("[PAD]\n[PAD]\n")
    with pytest.raises(ConfigError, match=r"vocab.txt: `vocabulary` must hold each token once"):
        WordPieceTokenizer.from_vocabulary_file(path)


def tokenizer_json(**changes):
    added = [
        {"id": i, "content": t, "special": True, "normalized": False}
        for i, t in [*enumerate(SPECIAL), (len(VOCABULARY), "[NEW]")]
    ]
    value = {
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(VOCABULARY)},
        },
    }
    for name, change in changes.items():
        if isinstance(change, dict):
            value[name] = {**value.get(name, {}), **change}
        else:
            value[name] = change
    return value


def test_from_hugging_face_tokenizer_json(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    tokenizer = WordPieceTokenizer.from_hugging_face(tmp_path)
    assert tokenizer.vocabulary_size == len(VOCABULARY) + 1
    assert ids(tokenizer, "CAFÉ[NEW]") == [[8, 15]]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert ids(WordPieceTokenizer.from_hugging_face(tmp_path), "Café") == [[9]]


def test_words_among_the_added_tokens(tmp_path):
    added = [
        {"id": 5, "content": "un", "normalized": True},  # of the vocabulary
        {"id": 15, "content": "Covid19", "normalized": True},
        {"id": 16, "content": "x, Un", "normalized": True},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(added_tokens=added)))
    (tmp_path / "tokenizer_config.json").write_text('{"unk_token": "[UNK]"}')
    tokenizer = WordPieceTokenizer.from_hugging_face(tmp_path)
    assert ids(tokenizer, "xCOVID19x covid19", "unx UNaffable X, UNx") == [
        [13, 15, 13, 15],
        [5, 13, 5, 1, 16, 13],
    ]
    long = "x" * 60
    assert ids(tokenizer, f"{long}covid19{long}") == [[*[13, *[14] * 59], 15, *[13, *[14] * 59]]]


def test_added_tokens_without_ids(tmp_path):
    """Old directories list them in files of their own; they come after the vocabulary."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    (tmp_path / "special_tokens_map.json").write_text(
        '{"additional_special_tokens": ["[D]"], "mask_token": "[nowhere]"}'
    )
    assert ids(WordPieceTokenizer.from_hugging_face(tmp_path), "x[D][d]") == [[13, 15, 1, 1, 1]]
    (tmp_path / "added_tokens.json").write_text('{"[Q]": 15}')
    tokenizer = WordPieceTokenizer.from_hugging_face(tmp_path)
    assert tokenizer.vocabulary_size == 17
    assert ids(tokenizer, "x[Q][q][D]") == [[13, 15, 15, 16]]
    (tmp_path / "added_tokens.json").write_text('{"[Q]": "x"}')
    with pytest.raises(ConfigError, match=r"added tokens must be objects with .*ValueError"):
        WordPieceTokenizer.from_hugging_face(tmp_path)


def test_padding_names_the_pad_token_of_a_general_class(tmp_path):
    options = {"tokenizer_class": "PreTrainedTokenizerFast"}
    frame = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    for name, value in (
        ("tokenizer.json", tokenizer_json(post_processor=frame)),
        ("tokenizer_config.json", options),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=r"json: the files must name a `pad_token`"):
        WordPieceTokenizer.from_hugging_face(tmp_path)
    value = tokenizer_json(post_processor=frame, padding={"pad_token": "[PAD]"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    assert WordPieceTokenizer.from_hugging_face(tmp_path).pad_id == 0


def test_from_hugging_face_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["<pad>", *VOCABULARY[1:]]))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"do_lower_case": true, "strip_accents": null, "pad_token": {"content": "<pad>"}}'
    )
    tokenizer = WordPieceTokenizer.from_hugging_face(tmp_path)
    assert tokenizer.pad_id == 0
    assert ids(tokenizer, "CAFÉ") == [[8]]


def test_foreign_directories_without_a_bert_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json or vocab.txt. Received: nei"):
        WordPieceTokenizer.from_hugging_face(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer.json: must be a JSON object"):
        WordPieceTokenizer.from_hugging_face(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    with pytest.raises(ConfigError, match="`tokenize_chinese_chars` must be true"):
        WordPieceTokenizer.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "BPE"}}, "`model.type` must be 'WordPiece'. Received: 'BPE'"),
        ({"model": {"max_input_chars_per_word": 50}}, "`model.max_input_chars_per_word` must be"),
        ({"model": {"continuing_subword_prefix": ""}}, "`model.continuing_subword_prefix` must"),
        ({"normalizer": {"type": "NFKC"}}, "`normalizer.type` must be 'BertNormalizer'"),
        ({"normalizer": {"clean_text": False}}, "`normalizer.clean_text` must be True"),
        ({"normalizer": {"handle_chinese_chars": False}}, "`normalizer.handle_chinese_chars`"),
        ({"pre_tokenizer": None}, "`pre_tokenizer.type` must be .* Received: None"),
        (
            {"added_tokens": [{"id": 0, "content": "[PAD]", "single_word": True}]},
            r"added tokens must not be `single_word`. Received: '\[PAD\]'",
        ),
        (
            {"added_tokens": [{"id": 15, "content": "neü", "normalized": True}]},
            "`normalized` must be printable ASCII without blanks at the ends. Received: 'neü'",
        ),
        (
            {"added_tokens": [{"id": 5, "content": "un"}]},
            "must hold punctuation or not be in `model.vocab`. Received: 'un'",
        ),
        (
            {"added_tokens": [{"content": 5}]},
            "added tokens must be objects with `content` and `id`. Received: TypeError",
        ),
        ({"model": {"vocab": ["a"]}}, r"`model.vocab` must be an object. Received: \['a'\]"),
        (
            {"post_processor": {"type": "Other"}},
            "`post_processor` must be BertProcessing, .* Received: 'Other'",
        ),
        (
            {"added_tokens": [{"id": 99, "content": "[FAR]"}]},
            "ids must be 0, 1, 2 ... without a gap. Received: 16 tokens, 16 ids up to 99",
        ),
    ],
)
def test_tokenizers_that_are_not_berts(tmp_path, changes, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(**changes)))
    with pytest.raises(ConfigError, match=message):
        WordPieceTokenizer.from_hugging_face(tmp_path)


def test_assets_keep_everything(tmp_path):
    tokenizer = WordPieceTokenizer(
        ["<p>", "<u>", "<s>", "</s>", "É", "a"],
        lowercase=False,
        strip_accents=False,
        special_tokens=["</s>"],
        pad_token="<p>",
        unknown_token="<u>",
        start_token="<s>",
        end_token="</s>",
    )
    tokenizer.save_assets(tmp_path / "new" / "directory")
    again = WordPieceTokenizer.from_assets(tmp_path / "new" / "directory")
    assert ids(again, "aÉ É</s>a z") == ids(tokenizer, "aÉ É</s>a z") == [[1, 4, 3, 5, 1]]
    assert again.fingerprint_bytes() == tokenizer.fingerprint_bytes()
    assert again.settings() == tokenizer.settings()
