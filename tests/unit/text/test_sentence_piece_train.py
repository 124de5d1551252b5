import pytest
import sentencepiece

from tfde.errors import ConfigError
from tfde.text.sentence_piece.train import train_sentencepiece

TEXTS = [
    "the cat sat on the mat\nthe dog sat on the log\n\n",
    "a cat and a dog met on a mat; the cat left.",
]


def test_layout_of_ids_and_size(tmp_path):
    path = train_sentencepiece(iter(TEXTS * 4), tmp_path / "new" / "a.model", vocabulary_size=24)
    assert path == tmp_path / "new" / "a.model"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert pieces.vocab_size() == 24
    assert (pieces.pad_id(), pieces.eos_id(), pieces.unk_id(), pieces.bos_id()) == (0, 1, 2, -1)
    assert pieces.decode(pieces.encode("the cat and the dog")) == "the cat and the dog"
    assert [p.name for p in path.parent.iterdir()] == ["a.model"]


def test_same_texts_give_the_same_model(tmp_path):
    first = train_sentencepiece(TEXTS * 4, tmp_path / "1", vocabulary_size=24).read_bytes()
    again = train_sentencepiece(tuple(TEXTS * 4), tmp_path / "2", vocabulary_size=24).read_bytes()
    assert again == first


def test_long_texts_and_nul_are_learnt_from(tmp_path):
    path = train_sentencepiece(
        ["ab " * 5000, "c\x00d", "e f " * 20_000],
        tmp_path / "long.model",
        vocabulary_size=11,
        character_coverage=1.0,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert pieces.unk_id() not in pieces.encode("ab c d e f")


def test_largest_possible_size_is_named_and_works(tmp_path):
    with pytest.raises(ConfigError, match=r"`vocabulary_size` must be at most \d+ ") as error:
        train_sentencepiece(TEXTS, tmp_path / "a", vocabulary_size=5000)
    assert "for this corpus of 3 sentences. Received: 5000" in str(error.value)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    train_sentencepiece(TEXTS, tmp_path / "a", vocabulary_size=largest)


def test_smallest_possible_size_is_named_and_works(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold every character .*: 10; \d+ are") as error:
        train_sentencepiece(TEXTS, tmp_path / "a", vocabulary_size=10)
    smallest = int(str(error.value).split("; ")[1].split()[0])
    train_sentencepiece(TEXTS, tmp_path / "a", vocabulary_size=smallest)


@pytest.mark.parametrize("texts", [[], ["", "  \n\t "]])
def test_empty_corpus(tmp_path, texts):
    with pytest.raises(ConfigError, match=r"at least one text that is not empty. Received: none"):
        train_sentencepiece(texts, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_tiny_size(tmp_path):
    with pytest.raises(ConfigError, match=r"`vocabulary_size` must be at least 4. Received: 3"):
        train_sentencepiece(TEXTS, tmp_path / "a", vocabulary_size=3)


def test_error_of_the_corpus_itself_comes_through(tmp_path):
    def broken():
        yield TEXTS[0]
        raise KeyError("no such record")

    with pytest.raises(KeyError, match="no such record"):
        train_sentencepiece(broken(), tmp_path / "a")
