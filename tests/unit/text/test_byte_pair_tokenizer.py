import json
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.read_tokenizer import load_tokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = [*SPECIAL, "a", "b", "c", "Ġ", "Ã", "©", "ab", "Ġab", "Ġabc", "Ã©", "'", "s", "'s"]
MERGES = [("a", "b"), ("Ġ", "ab"), ("Ġab", "c"), ("Ã", "©"), ("'", "s")]
MASK = {"content": "<mask>", "lstrip": True}


def make(**options):
    return BytePairTokenizer(VOCABULARY, merges=MERGES, **{"special_tokens": SPECIAL, **options})


def ids(tokenizer, *texts):
    return tokenizer.tokenize(tf.constant(texts, tf.string)).to_list()


def test_words_and_merges():
    # abc: "ab" by rank 0, then nothing joins it to "c"; with a blank before it all is one.
    assert ids(make(), "abc", " abc", "", "é", "ab's") == [[11, 7], [13], [], [14], [11, 17]]
    assert ids(make()) == []


def test_a_blank_before_texts():
    assert ids(make(add_prefix_space=True), "abc", " abc", "") == [[13], [13], []]


def test_special_tokens_in_texts():
    assert ids(make(), "ab<mask> ab</s>") == [[11, 4, 12, 2]]
    assert ids(make(special_tokens=[MASK]), "ab  <mask> ab", "<mask>") == [[11, 4, 12], [4]]
    assert ids(make(special_tokens=[], unknown_token="<unk>"), "a<b") == [[5, 3, 6]]


def test_bytes_that_are_no_token():
    assert ids(make(), "axb", "x") == [[11], []]
    assert ids(make(unknown_token="<unk>"), "axb", b"\xff") == [[5, 3, 6], [3, 3, 3]]


def test_ids_and_names():
    tokenizer = make()
    assert tokenizer.vocabulary_size == 18
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (1, 0, 2)
    assert (tokenizer.separator_id, tuple(tokenizer.pair_separator_ids)) == (2, (2, 2))
    assert make(start_token=None).start_id is None
    assert tokenizer.id_to_token(13) == "Ġabc"
    assert tokenizer.tokenize(tf.constant(["a"])).dtype == tf.int32
    with pytest.raises(ValueError, match=r"`token_id` must be in \[0, 18\). Received: token_id=18"):
        tokenizer.id_to_token(18)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token": "[PAD]"}, r"must hold the `pad_token`.* 18 tokens without '\[PAD\]'"),
        ({"start_token": "x"}, "must hold the `start_token`"),
        ({"end_token": "x"}, "must hold the `end_token`"),
        ({"unknown_token": "x"}, "must hold the `unknown_token`"),
        ({"pair_separators": ["x"]}, "must hold the `pair_separators`"),
        ({"special_tokens": ["x"]}, "must hold the `special_tokens`"),
        ({"vocabulary": [*VOCABULARY, "a"]}, "must hold each token once. Received: 'a' twice"),
        ({"merges": [("a", "c")]}, r"must be of tokens .* Received: 'ac' in merge 0 \('a c'\)"),
        ({"merges": [("a", "x")]}, "must be of tokens in the vocabulary. Received: 'x' in merge 0"),
    ],
)
def test_unfit_vocabularies(changes, message):
    options = {"vocabulary": VOCABULARY, "merges": MERGES, "special_tokens": SPECIAL, **changes}
    with pytest.raises(ConfigError, match=message):
        BytePairTokenizer(options.pop("vocabulary"), **options)


def test_assets_keep_everything(tmp_path):
    tokenizer = make(special_tokens=[MASK, "</s>"], add_prefix_space=True, unknown_token="<unk>")
    tokenizer.save_assets(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, BytePairTokenizer)
    texts = ("ab  <mask>abc", "</s> x", "é's")
    assert ids(again, *texts) == ids(tokenizer, *texts)
    assert again.settings() == tokenizer.settings()
    assert again.fingerprint_bytes() == tokenizer.fingerprint_bytes()


def test_unfit_assets(tmp_path):
    make().save_assets(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(ConfigError, match=r"merges.txt:3: a merge must be two tokens .*'a b c'"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"merges.txt: must be readable merges. Received: .*0xff"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("b c\n")
    with pytest.raises(ConfigError, match=r"`merges` must be of tokens in the vocabulary.*'bc'"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"vocab.json: must be a JSON object of token and id"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(
        '{"class_name": "BytePairTokenizer", "config": {"x": 1}}'
    )
    with pytest.raises(ConfigError, match=r"tokenizer.json: has no setting 'x' \(it has special_"):
        load_tokenizer(tmp_path)


def tokenizer_json(**changes):
    value = {
        "added_tokens": [{"id": i, "content": t} for i, t in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(VOCABULARY)},
            "merges": [" ".join(pair) for pair in MERGES],
        },
    }
    for name, change in changes.items():
        merge = isinstance(change, dict) and name != "normalizer"
        value[name] = {**value[name], **change} if merge else change
    return value


def write(directory, value, **options):
    (directory / "tokenizer.json").write_text(json.dumps(value))
    options = {"pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast", **options}
    (directory / "tokenizer_config.json").write_text(json.dumps(options))


def test_from_hugging_face(tmp_path):
    value = tokenizer_json(pre_tokenizer={"add_prefix_space": True})
    write(tmp_path, value)
    tokenizer = BytePairTokenizer.from_hugging_face(tmp_path)
    assert ids(tokenizer, "abc<mask>") == [[13, 4]]
    assert tuple(tokenizer.pair_separator_ids) == (2, 2)
    # A class that transformers builds anew takes its options from tokenizer_config.json.
    write(tmp_path, value, tokenizer_class="RobertaTokenizerFast")
    assert ids(BytePairTokenizer.from_hugging_face(tmp_path), "abc") == [[11, 7]]


def test_gpt2_has_an_end_token_only(tmp_path):
    write(tmp_path, tokenizer_json(post_processor=None), eos_token="</s>", pad_token=None)
    tokenizer = BytePairTokenizer.from_hugging_face(tmp_path)
    assert (tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id) == (None, 2, 2)
    assert tuple(tokenizer.pair_separator_ids) == (2,)
    write(tmp_path, tokenizer_json(post_processor=None))
    with pytest.raises(ConfigError, match=r"must have an end token \(`eos_token`\). Received: no"):
        BytePairTokenizer.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram"}}, "`model.type` must be 'BPE'. Received: 'Unigram'"),
        ({"model": {"dropout": 0.1}}, "`model.dropout` must be None. Received: 0.1"),
        ({"model": {"byte_fallback": True}}, "`model.byte_fallback` must be False. Received: True"),
        ({"model": {"ignore_merges": True}}, "`model.ignore_merges` must be False. Received: True"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "`model.end_of_word_suffix` must be None"),
        ({"model": {"continuing_subword_prefix": "##"}}, "`model.continuing_subword_prefix` must"),
        (
            {"model": {"fuse_unk": True, "unk_token": "<unk>"}},
            "`model.fuse_unk` must be false where bytes are missing from the vocabulary",
        ),
        ({"model": {"merges": None}}, "`model.merges` must be a list. Received: None"),
        ({"model": {"merges": ["a"]}}, "a merge must be two tokens of byte-level .*: 'a'"),
        ({"model": {"merges": [["a", "中"]]}}, "a merge must be two tokens of byte-level .*中"),
        ({"normalizer": {"type": "NFC"}}, r"`normalizer` must be None. Received: {'type': 'NFC'}"),
        ({"pre_tokenizer": {"use_regex": False}}, "`pre_tokenizer.use_regex` must be True"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "`pre_tokenizer.type` must be 'ByteLevel'"),
        (
            {"post_processor": {"type": "Other"}},
            "`post_processor` must be BertProcessing, RobertaProcessing, ByteLevel, or",
        ),
        ({"added_tokens": [{"id": 99, "content": "x"}]}, "ids must be 0, 1, 2 ... without a gap"),
    ],
)
def test_tokenizers_that_do_something_else(tmp_path, changes, message):
    write(tmp_path, tokenizer_json(**changes))
    with pytest.raises(ConfigError, match=f"tokenizer.json: .*{message}"):
        BytePairTokenizer.from_hugging_face(tmp_path)


def test_directories_without_a_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json or vocab.json and merges.txt"):
        BytePairTokenizer.from_hugging_face(tmp_path)


def test_in_tf_data_and_after_keras_forgets():
    tokenizer = make()
    dataset = tf.data.Dataset.from_tensor_slices(["abc", " abc é"]).batch(2)
    dataset = dataset.map(lambda texts: tokenizer.tokenize(texts).to_tensor())
    for _ in range(2):
        assert next(iter(dataset)).numpy().tolist() == [[11, 7, 0], [13, 8, 14]]
        keras.utils.set_random_seed(1)
        keras.utils.clear_session()
        assert ids(tokenizer, "abc") == [[11, 7]]


def test_in_a_saved_model_in_a_fresh_process(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = make(special_tokens=[MASK])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            return self.tokenizer.tokenize(texts).to_tensor(1)

    tf.saved_model.save(Module(), str(tmp_path / "saved"))
    code = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "print(model(tf.constant(['abc  <mask>', \"ab's\"])).numpy().tolist())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "saved")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [[11, 7, 4], [11, 17, 1]]
