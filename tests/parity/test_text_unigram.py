"""Unigram tokenizers against the `tokenizers` library, without transformers."""

import base64
import io
import json
import random
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from tfde.text.sentence_piece.model import parse_model
from tfde.text.sentence_piece.normalizer import (
    JOINED,
    PREPENDED,
    CharsmapNormalizer,
    grapheme_kinds,
)
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.sentence_piece.words import UnigramWords

SENTENCES = [
    "The quick brown fox jumps over the lazy dog 1,000,000 times; 333 or 2000...",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "एक लोमड़ी कुत्ते पर कूदती है",
    "نص حكيم له سر قاطع وذو شأن عظيم",
]


@pytest.fixture(scope="module")
def model():
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([*SENTENCES * 4, *(x for s in SENTENCES for x in s.split())]),
        model_writer=content,
        vocab_size=170,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return content.getvalue()


@pytest.fixture(scope="module")
def charsmap(model):
    return parse_model(model).normalizer_spec.precompiled_charsmap


@pytest.fixture(scope="module")
def nasty():
    """Random texts of letters, marks of several bytes, controls, ligatures and white space."""
    rng = random.Random(2)
    kinds = grapheme_kinds()
    marks = [c for c in map(chr, range(0x110000)) if kinds[ord(c)] == JOINED and c > "\u02ff"]
    short = [c for c in marks if c < "\u0800"]
    before = [c for c in map(chr, range(0x110000)) if kinds[ord(c)] == PREPENDED]
    named = [c for c in map(chr, range(0xE000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    pools = [
        "aeiouAn",
        "ªﬁ…™ｶｂ½Å",
        marks,
        short,
        before,
        named,
        "\r\n\t \u200b\u00ad\x00",
        *SENTENCES,
    ]
    return [
        "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(9)))
        for _ in range(20000)
    ]


def texts_of(*more):
    rng = random.Random(4)
    characters = sorted(set("".join(SENTENCES))) + list("ΩЖ中\u0301\u200d \u00a0▁")
    drawn = ("".join(rng.choices(characters, k=rng.randrange(40))) for _ in range(2000))
    return [*SENTENCES, "", " ", *drawn, *more]


def test_character_map(charsmap, nasty):
    ours = CharsmapNormalizer(charsmap)
    theirs = normalizers.Precompiled(charsmap)
    expected = [theirs.normalize_str(text) for text in nasty]
    received = [text.decode() for text in ours(tf.constant(nasty)).numpy()]
    wrong = [x for x in zip(nasty, expected, received, strict=True) if x[1] != x[2]]
    assert not wrong, (len(wrong), wrong[:3])
    one_by_one = [ours(tf.constant([text])).numpy()[0].decode() for text in nasty[:50]]
    assert one_by_one == expected[:50]
    assert ours(tf.constant([], tf.string)).shape == (0,)


def test_where_the_library_differs(charsmap, model):
    """Tells that the previous test is not one of the library's own rules."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = CharsmapNormalizer(charsmap)
    text = "e\u0302\u0301"
    assert library.normalize(text) == "▁\u1ebf"
    assert ours(tf.constant([text])).numpy()[0].decode() == "\u00ea"


def test_equally_good_segmentations():
    """Of two the order decides, as with float64; float32 sums would let rounding decide."""
    rng = random.Random(6)
    alphabet = "0123ab中"
    pieces = [("<unk>", 0.0), *((c, -rng.uniform(6, 14)) for c in alphabet)]
    for c in alphabet:
        single = dict(pieces)[c]
        pieces += [(c * n, single * n * rng.uniform(0.5, 0.9)) for n in (2, 3)]
    pieces += [("ab", -9.1), ("ba", -9.1), ("b0", -8.0), ("中Ω", -13.7), ("Ω0", -15.0)]
    # As a model file holds them; sums of such numbers are exact in float64.
    pieces = [(piece, float(np.float32(score))) for piece, score in pieces]
    words = [c * n for c in alphabet for n in range(1, 60)]
    words += ["".join(rng.choices(alphabet + "Ω", k=rng.randrange(1, 30))) for _ in range(3000)]
    words += ["ΩΩ", "Ω" * 50, "<unk>", "Ω<unk><unk>Ω", "中Ω0", "a<unk>Ω"]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    received = UnigramWords(pieces, unknown_id=0)(tf.constant(words)).to_list()
    expected = [encoding.ids for encoding in theirs.encode_batch(words)]
    wrong = [x for x in zip(words, expected, received, strict=True) if x[1] != x[2]]
    assert not wrong, (len(wrong), wrong[:3])


def description(tokenizer, directory, **options):
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", **options}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return directory


BLANKS = tokenizers.Regex(" {2,}")
FORMS = {
    "t5": lambda charsmap: (
        [normalizers.Precompiled(charsmap)],
        [pre_tokenizers.WhitespaceSplit()],
    ),
    "gtr": lambda charsmap: (
        [normalizers.Precompiled(charsmap), normalizers.Replace(BLANKS, " ")],
        [],
    ),
    "stripped": lambda charsmap: (
        [
            normalizers.Precompiled(charsmap),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(BLANKS, "▁"),
        ],
        [],
    ),
    "replaced": lambda charsmap: (
        [normalizers.Replace("``", '"'), normalizers.Replace("\\", "\\1"), normalizers.Strip()],
        [pre_tokenizers.Split(" ", "removed")],
    ),
    "none": lambda charsmap: ([], [pre_tokenizers.WhitespaceSplit()]),
}


@pytest.mark.parametrize("form", FORMS)
def test_tokenizer_json_and_back(model, charsmap, nasty, tmp_path, form):
    steps, before = FORMS[form](charsmap)
    pieces = [(p.piece, p.score) for p in parse_model(model).pieces]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2, False))
    theirs.normalizer = normalizers.Sequence(steps) if steps else None
    metaspace = pre_tokenizers.Metaspace("▁", "always", split=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([*before, metaspace]) if before else metaspace
    theirs.add_special_tokens([tokenizers.AddedToken(t) for t in ("<pad>", "</s>", "<unk>")])
    theirs.add_tokens(
        [
            tokenizers.AddedToken("ﬁx", lstrip=True, normalized=True),
            tokenizers.AddedToken("fox", single_word=True, normalized=False),
        ]
    )
    theirs.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    ours = SentencePieceTokenizer.from_hugging_face(description(theirs, tmp_path / "a"))
    spelled = ["a </s>b", " ﬁx fix foxy fox", "``x`` \\ ", "<unk>", "＜unk＞＜unk＞Ω", "\t a \n "]
    texts = texts_of(*spelled, *nasty[:3000])
    tokenize = tf.function(ours.tokenize)
    received = [[*row, ours.end_id] for row in tokenize(tf.constant(texts)).to_list()]
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    wrong = [x for x in zip(texts, expected, received, strict=True) if x[1] != x[2]]
    assert not wrong, (len(wrong), wrong[:3])

    for name, content in ours.hugging_face_files(max_length_tokens=9).items():
        (tmp_path / name).write_bytes(content)
    back = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [encoding.ids for encoding in back.encode_batch(texts)] == expected
    assert back.encode("a", "b").ids == theirs.encode("a", "b").ids
    again = SentencePieceTokenizer.from_hugging_face(tmp_path)
    assert again.fingerprint_bytes() == ours.fingerprint_bytes()


def test_bytes_that_are_not_utf8(model, tmp_path):
    rng = random.Random(9)
    parts = [b"a", b"\xc3", b"\xa9", b"\xe4\xb8", b"\xad", b"\xff", b"\xf0\x9f", b"\xed\xa0", b" "]
    texts = [b"".join(rng.choices(parts, k=rng.randrange(8))) for _ in range(2000)]
    for number, steps in enumerate(([], [{"type": "Precompiled"}])):
        directory = tmp_path / str(number)
        own = train_directory(model, directory, steps)
        theirs = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        expected = theirs.encode_batch([t.decode(errors="replace") for t in texts])
        received = own.tokenize(tf.constant(texts)).to_list()
        assert received == [encoding.ids[:-1] for encoding in expected]


def train_directory(model, directory, steps):
    """Writes our own model's files with the given normalizer, and reads them."""
    directory.mkdir()
    files = library(model).hugging_face_files(max_length_tokens=None)
    value = json.loads(files["tokenizer.json"])
    charsmap = parse_model(model).normalizer_spec.precompiled_charsmap
    for step in steps:
        step["precompiled_charsmap"] = base64.b64encode(charsmap).decode()
    value["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (directory / "tokenizer.json").write_text(json.dumps(value))
    (directory / "tokenizer_config.json").write_bytes(files["tokenizer_config.json"])
    return SentencePieceTokenizer.from_hugging_face(directory)


def library(model):
    return SentencePieceTokenizer(model)


def test_our_own_model_leaves(tmp_path):
    path = train_sentencepiece(SENTENCES * 5, tmp_path / "m.model", vocabulary_size=150)
    ours = SentencePieceTokenizer.from_file(path)
    files = ours.hugging_face_files(max_length_tokens=64)
    theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    texts = [*SENTENCES, "", "  a \u0085 b\t\n", "Ω Ω", "ＦＵＬＬ ▁ ½ …", "a\u200bb"]
    received = [[*row, 1] for row in ours.tokenize(tf.constant(texts)).to_list()]
    assert received == [encoding.ids for encoding in theirs.encode_batch(texts)]
    assert json.loads(files["tokenizer_config.json"])["model_max_length"] == 64
