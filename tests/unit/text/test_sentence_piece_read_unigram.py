"""What is refused of Hugging Face's Unigram files, and in which words."""

import base64
import copy
import json

import pytest

from tfde.errors import ConfigError
from tfde.text.read_tokenizer import read_hugging_face_tokenizer
from tfde.text.sentence_piece.model import NORMAL, UNKNOWN, USER_DEFINED, parse_model
from tfde.text.sentence_piece.normalizer import read_charsmap
from tfde.text.sentence_piece.pipeline import UnigramRules
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.sentence_piece.words import UnigramWords
from tfde.text.sentence_piece.write_unigram import write_unigram

SOUND = {
    "added_tokens": [{"id": i, "content": t} for i, t in enumerate(("<pad>", "</s>", "<unk>"))],
    "normalizer": None,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
        "pair": [
            {"Sequence": {"id": "A"}},
            {"SpecialToken": {"id": "</s>"}},
            {"Sequence": {"id": "B"}},
            {"SpecialToken": {"id": "</s>"}},
        ],
    },
    "model": {
        "type": "Unigram",
        "unk_id": 2,
        "byte_fallback": False,
        "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁", -2.0], ["a", -3.0]],
    },
}
OPTIONS = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"}


def read(directory, value, options=OPTIONS):
    (directory / "tokenizer.json").write_text(json.dumps(value))
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    return SentencePieceTokenizer.from_hugging_face(directory)


def changed(path, new):
    value = copy.deepcopy(SOUND)
    *parents, last = path.split(".")
    place = value
    for name in parents:
        place = place[name]
    place[last] = new
    return value


def test_a_sound_one(tmp_path):
    tokenizer = read(tmp_path, SOUND)
    assert tokenizer.tokenize(["aa</s> a b", "b"]).to_list() == [[3, 4, 4, 1, 3, 4, 3, 2], [3, 2]]
    assert (tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.end_id) == (5, 0, 1)
    assert (tokenizer.start_id, tokenizer.pair_separator_ids) == (None, (1,))
    assert tokenizer.id_to_token(4) == "a"


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("model.type", "BPE", r"`model.type` must be 'Unigram'. Received: 'BPE'"),
        ("model.byte_fallback", True, r"`model.byte_fallback` must be False. Received: True"),
        ("model.vocab", {"a": 1}, r"`model` must hold `vocab`, pairs of piece and score"),
        ("model.unk_id", None, r"`model` must hold `vocab`.* and `unk_id`. Received: TypeError"),
        ("model.unk_id", 9, r"`unknown_id` must be the id of one of the 5 pieces|one unknown"),
        ("model.vocab", [["<pad>", 0.0], ["</s>", 0], ["<unk>", 0], ["", 0]], r"not empty.*id 3"),
        ("normalizer", {"type": "NFKC"}, r"`normalizer` must be made of .*Received: {'type': 'NFK"),
        (
            "normalizer",
            {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""},
            r"`normalizer` must be made of",
        ),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}, r"must be base64"),
        ("normalizer", {"type": "Precompiled"}, r"`normalizer.precompiled_charsmap` must be bas"),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "Precompiled"}] * 2},
            r"`normalizer` must hold one Precompiled. Received: 2",
        ),
        (
            "normalizer",
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(b"\xff" * 9).decode(),
            },
            r"`precompiled_charsmap` must be a SentencePiece character map",
        ),
        ("pre_tokenizer", None, r"`pre_tokenizer` must be Metaspace"),
        (
            "pre_tokenizer",
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
            r"`pre_tokenizer` must be Metaspace \(▁, prepend_scheme always.*'first'",
        ),
        (
            "pre_tokenizer",
            {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False},
            r"`pre_tokenizer` must be Metaspace",
        ),
        ("post_processor", None, r"`post_processor` must put a token after texts. Received: none"),
        ("post_processor", {"type": "Other"}, r"`post_processor` must be .*Received: 'Other'"),
        ("added_tokens", [{"id": 7, "content": "x"}], r"ids must be 0, 1, 2 ... without a gap"),
    ],
)
def test_refused(tmp_path, path, new, message):
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, changed(path, new))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**OPTIONS, "pad_token": "<none>"}, r"`vocab` must hold the `pad_token`.*no '<none>'"),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, r"`model.unk_id` must be 3.*Received: 2"),
        (
            {"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": False},
            r"`add_prefix_space` must be true. Received: False",
        ),
    ],
)
def test_refused_options(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, SOUND, options)


def test_files_of_old_libraries(tmp_path):
    """They name no type of the model; and T5's class does not look at `add_prefix_space`."""
    value = copy.deepcopy(SOUND)
    del value["model"]["type"]
    read(tmp_path, value, {"tokenizer_class": "T5Tokenizer", "add_prefix_space": None})
    assert read_hugging_face_tokenizer(tmp_path).tokenize(["a"]).to_list() == [[3, 4]]


def test_class_of_t5_brings_its_sentinels(tmp_path):
    tokenizer = read(tmp_path, SOUND, {"tokenizer_class": "T5Tokenizer", "extra_ids": 2})
    assert tokenizer.vocabulary_size == 7
    assert tokenizer.tokenize(["a<extra_id_1><extra_id_0>"]).to_list() == [[3, 4, 6, 5]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.model"
    return train_sentencepiece(
        ["to be or not to be that is the question", "a rose is a rose"] * 3,
        path,
        vocabulary_size=19,
    )


def test_directories_without_a_fit_model(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"must hold tokenizer.json, spiece.model.*Received: 0"):
        SentencePieceTokenizer.from_hugging_face(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained.read_bytes())
    with pytest.raises(ConfigError, match=r"must begin with <unk>, <s>, </s>.*Received: <pad>"):
        SentencePieceTokenizer.from_hugging_face(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"no model")
    with pytest.raises(ConfigError, match=r"spiece.model: `model` must be a serialized .* 8 bytes"):
        SentencePieceTokenizer.from_hugging_face(tmp_path)
    proto = parse_model(trained.read_bytes())
    proto.trainer_spec.byte_fallback = True
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigError, match=r"must be a unigram model without byte fallback"):
        SentencePieceTokenizer.from_hugging_face(tmp_path)


def test_one_model_of_another_name(trained, tmp_path):
    (tmp_path / "other.model").write_bytes(trained.read_bytes())
    tokenizer = SentencePieceTokenizer.from_hugging_face(tmp_path)
    assert tokenizer.vocabulary_size == 19 + 100
    assert tokenizer.id_to_token(118) == "<extra_id_0>"
    bare = SentencePieceTokenizer.from_file(trained)
    assert bare.tokenize(["to be"]).to_list() == tokenizer.tokenize(["to be"]).to_list()
    assert tokenizer.tokenize(["</s>"]).to_list() == [[1]] != bare.tokenize(["</s>"]).to_list()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.trainer_spec, "byte_fallback", True), "have no byte fallback"),
        (lambda m: setattr(m.pieces[-1], "type", USER_DEFINED), "have no user-defined pieces"),
        (lambda m: setattr(m.normalizer_spec, "add_dummy_prefix", False), "add a prefix"),
        (lambda m: m.normalizer_spec.ClearField("precompiled_charsmap"), "turn ▁ into a blank"),
    ],
)
def test_models_that_cannot_leave(trained, change, message):
    proto = parse_model(trained.read_bytes())
    change(proto)
    content = proto.SerializeToString()
    with pytest.raises(ConfigError, match=f"`model` must {message}"):
        write_unigram(content, None, max_length_tokens=None)


def test_rules(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"`rules` must be what `UnigramRules.to_json` gives"):
        UnigramRules.from_json({})
    rules = read(tmp_path, SOUND).settings()["rules"]
    assert UnigramRules.from_json(rules).to_json() == rules
    with pytest.raises(ConfigError, match=r"`rules` must be .*words='tabs'"):
        UnigramRules.from_json({**rules, "words": "tabs"})
    with pytest.raises(ConfigError, match=r"`rules` has no field 'more'"):
        UnigramRules.from_json({**rules, "more": 1})
    proto = parse_model(trained.read_bytes())
    proto.pieces[3].type = UNKNOWN
    with pytest.raises(ConfigError, match=r"`model` must have one unknown piece. Received: 2"):
        SentencePieceTokenizer(proto.SerializeToString(), rules=UnigramRules.from_json(rules))
    gap = UnigramRules.from_json(
        {**rules, "special_tokens": [{"id": 99, "content": "x"}, *rules["special_tokens"]]}
    )
    with pytest.raises(ConfigError, match=r"`rules` must give ids without a gap.*up to 99"):
        SentencePieceTokenizer(trained.read_bytes(), rules=gap)


def test_assets_with_unknown_settings(tmp_path):
    read(tmp_path, SOUND).save_assets(tmp_path / "ours")
    path = tmp_path / "ours" / "tokenizer.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "config": {"other": 1}}))
    with pytest.raises(ConfigError, match=r"must hold the setting `rules`. Received: other"):
        SentencePieceTokenizer.from_assets(tmp_path / "ours")
    path.write_text(json.dumps(value))
    (tmp_path / "ours" / "vocabulary.spm").unlink()
    with pytest.raises(ConfigError, match=r"vocabulary.spm: must be a readable SentencePiece mod"):
        SentencePieceTokenizer.from_assets(tmp_path / "ours")


def test_words():
    with pytest.raises(ConfigError, match=r"`pieces` must be distinct.*Received: 'a' as id 2"):
        UnigramWords([("<unk>", 0.0), ("a", -1.0), ("a", -2.0)], unknown_id=0)
    with pytest.raises(ConfigError, match=r"`unknown_id` must be the id of one of the 1 pieces"):
        UnigramWords([("<unk>", 0.0)], unknown_id=1)


def test_character_map_of_no_bytes_is_empty():
    assert read_charsmap(b"", max_bytes=5) == {}
    assert parse_model(b"").pieces.add().type == NORMAL
