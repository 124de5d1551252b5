import json

import pytest

from tfde.errors import ConfigError
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.read_tokenizer import read_hugging_face_tokenizer, read_tokenizer
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "ab": 7}


def test_the_files_say_the_kind(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a"]))
    assert isinstance(read_tokenizer(tmp_path / "vocab.txt"), WordPieceTokenizer)
    assert isinstance(read_tokenizer(tmp_path), WordPieceTokenizer)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(ROBERTA))
    (tmp_path / "merges.txt").write_text("a b\n")
    byte_pairs = read_tokenizer(tmp_path)
    assert isinstance(byte_pairs, BytePairTokenizer)
    assert byte_pairs.tokenize(["ab"]).to_list() == [[7]]


@pytest.mark.parametrize(
    "tokenizer",
    [
        WordPieceTokenizer([*SPECIAL, "a"]),
        BytePairTokenizer(list(ROBERTA), merges=[("a", "b")], special_tokens=["<pad>", "<mask>"]),
    ],
    ids=["WordPiece", "BPE"],
)
def test_what_hugging_face_files_say(tmp_path, tokenizer):
    for name, content in tokenizer.hugging_face_files(max_length_tokens=7).items():
        (tmp_path / name).write_bytes(content)
    again = read_tokenizer(tmp_path)
    assert type(again) is type(tokenizer)
    assert again.settings() == tokenizer.settings()
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 7
    tokenizer.save_assets(tmp_path)  # ours take the place of tokenizer.json
    assert read_tokenizer(tmp_path).fingerprint_bytes() == tokenizer.fingerprint_bytes()


def test_files_without_a_special_pad_token():
    tokenizer = BytePairTokenizer(list(ROBERTA), merges=[], special_tokens=["<mask>"])
    with pytest.raises(ConfigError, match=r"must hold the pad token.* 1 tokens without '<pad>'"):
        tokenizer.hugging_face_files(max_length_tokens=None)


def test_directories_of_no_known_kind(tmp_path):
    with pytest.raises(ConfigError, match="missing: a tokenizer file or directory must stand here"):
        read_tokenizer(tmp_path / "missing")
    with pytest.raises(
        ConfigError, match=r"must hold a tokenizer \(tokenizer.json of WordPiece, B"
    ):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}')
    with pytest.raises(ConfigError, match=r"`model.type` must be WordPiece, BPE or .*'WordLevel'"):
        read_hugging_face_tokenizer(tmp_path)
    broken = {"model": {"type": "WordPiece"}, "post_processor": {"type": "TemplateProcessing"}}
    broken["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    broken["model"] |= {"vocab": dict.fromkeys(SPECIAL, 0)}
    broken |= {"normalizer": {"type": "BertNormalizer", "clean_text": True}}
    broken["normalizer"]["handle_chinese_chars"] = True
    broken |= {"pre_tokenizer": {"type": "BertPreTokenizer"}}
    for content, reason in ((broken, "KeyError: 'single'"), ({"model": ["x"]}, "AttributeError")):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        message = rf"tokenizer.json: must be as Hugging Face's tokenizers writes it \({reason}"
        with pytest.raises(ConfigError, match=message):
            read_hugging_face_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer.json: must be a JSON object"):
        read_hugging_face_tokenizer(tmp_path)
