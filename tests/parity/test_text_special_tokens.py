"""Spelled-out special tokens as in the `tokenizers` library, in random texts."""

import random

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from tfde.errors import ConfigError
from tfde.text.special_tokens import SpecialToken, SpecialTokens

CHARACTERS = "abxy_1é▁ \t\n\u00a0\u3000\u0301\u200d中<>/.s(*"
OPTIONS = {
    "<s>": {},
    "</s>": {},
    "<sa>": {"lstrip": True},
    "<s": {"rstrip": True},
    "a.": {"single_word": True},
    "a.b": {"single_word": True, "lstrip": True, "rstrip": True},
    "中(*": {"lstrip": True, "rstrip": True},
    "é": {"single_word": True, "rstrip": True},
}
UNKNOWN = 0


def peer(spellings):
    vocabulary = [("?", 0.0), *((c, -1.0) for c in CHARACTERS)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, UNKNOWN, False))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace("▁", "always", split=False)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(s, normalized=False, **OPTIONS[s]) for s in spellings]
    )
    return tokenizer


def characters(chunks):
    """Ids of the characters of each chunk, which begins with `▁` as Metaspace has it."""
    table = np.zeros(0x110000, "int32")
    for index, character in enumerate(CHARACTERS, start=1):
        table[ord(character)] = index
    chunks = tf.strings.regex_replace(chunks, " ", "▁")
    chunks = tf.strings.regex_replace(chunks, "^([^▁])", r"▁\1")
    return tf.ragged.map_flat_values(
        lambda codes: tf.gather(table, codes), tf.strings.unicode_decode(chunks, "UTF-8")
    )


@pytest.mark.parametrize("part", [list(OPTIONS)[:2], list(OPTIONS)[:4], list(OPTIONS)])
def test_same_ids_as_tokenizers(part):
    theirs = peer(part)
    tokens = {s: SpecialToken(theirs.token_to_id(s), **OPTIONS[s]) for s in part}
    ours = SpecialTokens(tokens)
    rng = random.Random(3)
    texts = ["", " ", "<s>", " <s> <s>", "<s></s>", "x a. y", "a.b", "<sa> \n<sa>", "a.a.", "中(*"]
    for _ in range(3000):
        parts = rng.choices([*CHARACTERS, " ", " "], k=rng.randrange(12))
        for _ in range(rng.randrange(4)):
            parts.insert(rng.randint(0, len(parts)), rng.choice(part))
        texts.append("".join(parts))
    tokenize = tf.function(lambda t: ours.tokenize(t, characters))
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    received = tokenize(tf.constant(texts)).to_list()
    wrong = [x for x in zip(texts, expected, received, strict=True) if x[1] != x[2]]
    assert not wrong, (len(wrong), wrong[:3])
    assert sum(any(i > len(CHARACTERS) for i in row) for row in received) > 1000


def test_batches_without_tokens_and_empty_batches():
    ours = SpecialTokens({"<s>": SpecialToken(90)})
    tokenize = tf.function(lambda t: ours.tokenize(t, characters))
    texts = ["ab", "", "< s>", "1"]
    expected = characters(tf.constant(texts)).to_list()
    assert tokenize(tf.constant(texts)).to_list() == expected
    assert tokenize(tf.constant([], tf.string)).to_list() == []
    assert tokenize(tf.constant([*texts, "<s>"])).to_list() == [*expected, [90]]
    assert SpecialTokens({}).tokenize(tf.constant(["<s>"]), characters).to_list() == [
        characters(tf.constant(["<s>"])).to_list()[0]
    ]


def test_bytes_that_are_not_utf8():
    ours = SpecialTokens({"<s>": SpecialToken(90)})
    received = ours.tokenize(tf.constant([b"\xff<s>\xe4\xb8"]), characters).to_list()[0]
    assert received.count(90) == 1
    assert received.index(90) == characters(tf.constant([b"\xff"])).row_lengths()[0]


@pytest.mark.parametrize("spelling", ["", "\ud800"])
def test_impossible_spellings(spelling):
    with pytest.raises(ConfigError, match=r"`tokens` must be spelled in one or more Unicode"):
        SpecialTokens({spelling: SpecialToken(1)})
