import shutil

import pytest
import sentencepiece
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece

TEXTS = ["to be or not to be that is the question", "a rose is a rose is a rose"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.model"
    return train_sentencepiece(TEXTS * 3, path, vocabulary_size=19)


def test_special_ids_are_those_of_t5(model_path):
    tokenizer = SentencePieceTokenizer.from_file(model_path)
    assert tokenizer.vocabulary_size == 19
    assert (tokenizer.pad_id, tokenizer.start_id) == (0, None)
    assert (tokenizer.end_id, tokenizer.separator_id) == (1, 1)
    assert [tokenizer.id_to_token(i) for i in range(3)] == ["<pad>", "</s>", "<unk>"]
    with pytest.raises(ValueError, match=r"`token_id` must be in \[0, 19\). .*token_id=19"):
        tokenizer.id_to_token(19)


def test_pieces_spell_the_text(model_path):
    tokenizer = SentencePieceTokenizer.from_file(model_path)
    ids = tokenizer.tokenize(tf.constant(["the rose", "", "to be"]))
    assert ids.dtype == tf.int32
    spelled = ["".join(map(tokenizer.id_to_token, row)) for row in ids.to_list()]
    assert spelled == ["▁the▁rose", "", "▁to▁be"]


@pytest.mark.parametrize("place", ["spiece.model", "assets/tokenizer/vocabulary.spm"])
def test_foreign_directories(model_path, tmp_path, place):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(model_path, tmp_path / place)
    tokenizer = SentencePieceTokenizer.from_directory(tmp_path)
    expected = SentencePieceTokenizer.from_file(model_path)
    assert tokenizer.fingerprint_bytes() == expected.fingerprint_bytes()


def test_assets_keep_everything(model_path, tmp_path):
    tokenizer = SentencePieceTokenizer.from_file(model_path)
    tokenizer.save_assets(tmp_path)
    again = SentencePieceTokenizer.from_assets(tmp_path)
    assert again.fingerprint_bytes() == tokenizer.fingerprint_bytes()


def test_unfit_models(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold a SentencePiece model .*Received: none"):
        SentencePieceTokenizer.from_directory(tmp_path)
    with pytest.raises(ConfigError, match=r"no.model: must be a readable SentencePiece model"):
        SentencePieceTokenizer.from_file(tmp_path / "no.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"bad.model: `model` must be a serialized .* 11 bytes"):
        SentencePieceTokenizer.from_file(tmp_path / "bad.model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_id": -1, "eos_id": 1, "bos_id": -1, "unk_id": 0}, "must have a padding id"),
        ({"pad_id": 0, "eos_id": -1, "bos_id": -1, "unk_id": 1}, "must have the piece </s>"),
    ],
)
def test_models_without_the_special_pieces(tmp_path, options, message):
    prefix = tmp_path / "other"
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS * 3), model_prefix=str(prefix), vocab_size=17, **options
    )
    with pytest.raises(ConfigError, match=message):
        SentencePieceTokenizer.from_file(f"{prefix}.model")
