"""Few plain queries without a graph: the graph's rows and counts, or none at all."""

import random
import string

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tfde.config.model import TextConfig
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.native_queries import native_queries
from tfde.text.preprocessor import TextPreprocessor, cut_counts
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

WORDS = ["who", "wrote", "the", "play", "about", "denmark?", "it's", "3.14%", "(or", "not)"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *string.ascii_lowercase]
SPELLED = ["[SEP]", "[MASK]", "[CLS]", "</s>", "<mask>", "<s>", "##", "##a", "x" * 101]


def strings(count: int, seed: int) -> list[str]:
    """Words, special tokens and every printable character, blanks at the ends too."""
    rng = random.Random(seed)
    printable = [chr(code) for code in range(0x20, 0x7F)]
    parts = [*WORDS, *SPELLED, *printable, " ", "  "]
    joined = [rng.choice(["", " "]).join(rng.choices(parts, k=rng.randrange(30)))
              for _ in range(count)]  # fmt: skip
    return ["", " ", *printable, *joined]


def word_piece(directory):
    pieces = [f"##{letter}" for letter in string.ascii_lowercase] + [
        "wrote",
        "play",
        "prin",
        "##ce",
    ]
    return WordPieceTokenizer([*BERT, *pieces], special_tokens=BERT[:5])


def cased_word_piece(directory):
    return WordPieceTokenizer(
        [*BERT, *string.ascii_uppercase, "##A", "##x"],
        lowercase=False,
        special_tokens=BERT[:5],
        normalized_tokens=["X"],
    )


def byte_pair(directory):
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([" ".join(WORDS)] * 5, trainer)
    library.model.save(str(directory))
    lines = (directory / "merges.txt").read_text().splitlines()[1:]
    ids = library.get_vocab()
    return BytePairTokenizer(
        sorted(ids, key=ids.get),
        merges=[tuple(line.split(" ")) for line in lines],
        special_tokens=special,
    )


@pytest.mark.parametrize("make", [word_piece, cased_word_piece, byte_pair])
@pytest.mark.parametrize(
    "text",
    [
        {},
        {"query_prompt": "query: ", "query_max_length_tokens": 9, "buckets": (4, 6)},
        {"query_max_length_tokens": 6, "marked": True},
    ],
    ids=["plain", "prompt", "mark"],
)
def test_rows_and_counts_are_those_of_the_graph(tmp_path, make, text):
    tokenizer = make(tmp_path)
    text = dict(text)
    if text.pop("marked", False):
        text |= {"query_mark": tokenizer.id_to_token(tokenizer.end_id), "query_fill": "a"}
        if tokenizer.token_id("a") is None:
            del text["query_fill"]
    preprocessor = TextPreprocessor(tokenizer, TextConfig(**text))
    native = native_queries(preprocessor)
    texts = [text for text in strings(500, seed=1) if native([text]) is not None]
    assert len(texts) > 250
    for start in range(0, len(texts), 4):
        some = texts[start : start + 4]
        found = native(some)
        assert found is not None
        token_ids, padding_mask, lengths = preprocessor.measured_queries(some)
        for ours, graph in zip(found, (token_ids, padding_mask, cut_counts(lengths)), strict=True):
            np.testing.assert_array_equal(ours, graph.numpy(), err_msg=repr(some))
        assert found.token_ids.dtype == found.padding_mask.dtype == np.int32


@pytest.mark.parametrize(
    "texts",
    [
        *(["caf\u00e9"], ["a\tb"], ["a\nb"], ["a\x7f"], ["\ud800"], ["a[SEP]"], ["[mask]"]),
        *(["a" * 1001], ["a"] * 9),
    ],
    ids=ascii,
)
def test_what_is_left_to_the_graph(tmp_path, texts):
    native = native_queries(TextPreprocessor(word_piece(tmp_path), TextConfig()))
    assert native(texts) is None
    assert native(["a"]) is not None


def test_prompts_that_are_not_plain_leave_all_to_the_graph(tmp_path):
    text = TextConfig(query_prompt="qu\u00e9: ")
    assert native_queries(TextPreprocessor(word_piece(tmp_path), text))(["a"]) is None


def test_tokenizers_that_hugging_face_does_not_know(tmp_path):
    tokenizer = WordPieceTokenizer(BERT, special_tokens=["[MASK]"])  # texts may spell out [PAD]
    assert native_queries(TextPreprocessor(tokenizer, TextConfig()))(["a"]) is None


def test_sentence_piece_is_left_to_the_graph(tmp_path):
    # Of "00" + "000" and "000" + "00" rounding decides, and two programs round in two ways.
    path = train_sentencepiece(["0 00 000 a b"] * 9, tmp_path / "m.model", vocabulary_size=9)
    tokenizer = SentencePieceTokenizer.from_file(path)
    assert native_queries(TextPreprocessor(tokenizer, TextConfig())) is None


def test_nothing_is_made_for_texts_that_the_graph_makes(tmp_path):
    native = native_queries(TextPreprocessor(word_piece(tmp_path), TextConfig()))
    for texts in (["caf\u00e9"], ["a"] * 9):
        native(texts)
    assert "_library" not in vars(native)
    native(["a"])
    assert "_library" in vars(native)
