import pytest
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.read_tokenizer import load_tokenizer
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"]


def test_each_kind_comes_back(tmp_path):
    model = train_sentencepiece(["ab ab a"] * 3, tmp_path / "m", vocabulary_size=7)
    for tokenizer in (WordPieceTokenizer(VOCABULARY), SentencePieceTokenizer.from_file(model)):
        tokenizer.save_assets(tmp_path)
        again = load_tokenizer(tmp_path)
        assert type(again) is type(tokenizer)
        texts = tf.constant(["ab", "a"])
        assert again.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()


def test_fingerprint_covers_assets_and_settings():
    tokenizers = [
        WordPieceTokenizer(VOCABULARY),
        WordPieceTokenizer([*VOCABULARY, "c"]),
        WordPieceTokenizer(VOCABULARY, lowercase=False),
    ]
    assert len({t.fingerprint_bytes() for t in tokenizers}) == 3
    assert WordPieceTokenizer(VOCABULARY).fingerprint_bytes() == tokenizers[0].fingerprint_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a tokenizer description written by tfde. Received: no such file"),
        ("[1", "must be a tokenizer description .* Received: DataError"),
        ('{"version": "1.0", "model": {}}', r"Received: KeyError \(\"'class_name'\"\)"),
        ('{"class_name": "WordPieceTokenizer", "config": 3}', "Received: TypeError"),
        (
            '{"class_name": "X", "config": {}}',
            "`class_name` must be one of WordPieceTokenizer, .*'X'",
        ),
    ],
)
def test_directories_without_a_tokenizer(tmp_path, content, message):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"tokenizer.json: .*{message}"):
        load_tokenizer(tmp_path)


def test_wrong_class_and_unknown_setting(tmp_path):
    tokenizer = WordPieceTokenizer(VOCABULARY)
    tokenizer.save_assets(tmp_path)
    with pytest.raises(ConfigError, match=r"must describe a SentencePieceTokenizer. .*'WordPiece"):
        SentencePieceTokenizer.from_assets(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("lowercase", "lower"))
    with pytest.raises(ConfigError, match=r"tokenizer.json: has no setting 'lower'"):
        load_tokenizer(tmp_path)
