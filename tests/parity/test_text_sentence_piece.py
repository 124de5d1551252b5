"""The same token ids as the sentencepiece library."""

import random

import sentencepiece
import tensorflow as tf

from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "A tokenizer gives the same ids in the graph as outside of it.",
]
TRAPS = [
    "",
    "   ",
    "a  b\tc\nd",
    "ＦＵＬＬ ﬁ … ½",
    "</s> <pad> <unk> [SEP]",
    "▁a ▁",
    "\u200b\u00a0\ufeff",
    "e\u0301 é 각",
    "👩‍👩‍👧",
    "\x00\x01",
]


def test_same_ids_as_the_library(tmp_path):
    path = train_sentencepiece(SENTENCES * 5, tmp_path / "t5.model", vocabulary_size=110)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = SentencePieceTokenizer.from_file(path)
    rng = random.Random(5)
    characters = [*sorted(set("".join(SENTENCES))), "Ω", "\u0301", "中", "\u200d"]
    texts = [
        *SENTENCES,
        *TRAPS,
        *("".join(rng.choices(characters, k=rng.randrange(60))) for _ in range(500)),
    ]
    received = tf.function(ours.tokenize)(tf.constant(texts)).to_list()
    assert received == [theirs.encode(text) for text in texts]
    invalid = b"a\xffb \xe4\xb8"
    assert ours.tokenize(tf.constant([invalid])).to_list() == [theirs.encode(invalid)]
