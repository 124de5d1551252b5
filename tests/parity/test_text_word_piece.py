"""The same token ids as Hugging Face's `tokenizers` (Rust), on real texts and on traps."""

import gzip
import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tfde.text.word_piece.characters import ORDERED_MARKS
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ASSIGNED = [c for c in POINTS if unicodedata.category(chr(c)) not in ("Cn", "Co")]
TRAPS = [
    "",
    "   ",
    "\t\n\r",
    "Crème brûlée à la façon de Zoë, naïve coöperation",
    "日本語テキスト 中文，标点。 㐀 豈 𠀀 𪜀 𫠠 𫤠 丽 ⼀ 々 〇",
    "한국어 각 \u1100\u1161\u11a8 ᄒᆞᆫ글",
    "ＦＵＬＬ　ｗｉｄｔｈ！ ﾊﾝｶｸ ﾊﾞ",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 ✈️ 👍🏽 1️⃣",
    "a\x00b\x01c\x07d\x1be\x7ff\x80g\x85h\x9fi",
    "wait… ﬁne ﬂow ½ ② ™ ﷺ",
    "İstanbul ISPARTA ıI i̇ Į́ J̃ Ì",
    "ΟΔΥΣΣΕΥΣ ὈΔΥΣΣΕΎΣ ς Σ",
    "zero\u200bwidth\u200cnon\u200djoin\u2060er\ufeff",
    "a\u00a0b\u1680c\u2003d\u2028e\u2029f\u202fg\u205fh\u3000i\x0bj\x0ck",
    "soft\u00adhyphen non‑breaking‐hyphen",
    "\u0301",
    "\u0301a \u0301\u0327 a\u0327\u0301",
    "x" * 100 + " " + "y" * 101 + " z",
    "ж" * 51 + " " + "ж" * 100 + " " + "ж" * 101,
    "é" * 100 + " " + "é" * 101 + " " + "e\u0301" * 100,
    "中" * 150 + "a" * 101,
    "a" * 150 + "-" + "b" * 101 + "...c",
    "[MASK]",
    "say[MASK]this [SEP]and[CLS]that [UNK] [PAD] [mask] [ MASK ] [MA\u00adSK] [[MASK]]",
    "[MA\U000f1000SK] \U000f1004 \U000f0000 \U000f2000 \ue000 \U0010fffd",
    "\ufffd \ufffe \U0001ffff \u0378 \U000e0041",
    "ǅ ẞ ſ K Å ﬀ ŉ ΐ",
    "≠ ≮ ` ; · \u037e \u0387 \u1fef",
    "don't stop-it, $5.00 + 3^2 ~ `x` | <y> = z_1",
    "\u1b44\U0001d165 \U0001e944\U0001e94a a\u302e\U0001e94a\u0301 ཱི\U0001e000",
]


def peer(vocabulary: list[str], *, lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def first_difference(ours: WordPieceTokenizer, theirs: Tokenizer, texts: list[str]) -> str | None:
    tokenize = tf.function(ours.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    for begin in range(0, len(texts), 1024):
        batch = texts[begin : begin + 1024]
        received = tokenize(tf.constant(batch, tf.string)).to_list()
        expected = theirs.encode_batch(batch, add_special_tokens=False)
        for text, ids, encoding in zip(batch, received, expected, strict=True):
            if ids != encoding.ids:
                return f"{text!r}: {ids} instead of {encoding.ids}"
    return None


@pytest.fixture(scope="module")
def characters() -> list[str]:
    """A vocabulary of single characters: every difference between texts changes the ids."""
    wanted = [
        chr(c)
        for c in ASSIGNED
        if c > 0x20 and not (0x3500 <= c < 0x9F00 or 0xAC00 <= c < 0xD7A4 or c > 0x20100)
    ]
    return [*SPECIAL, *wanted, *(f"##{c}" for c in wanted)]


CASES = [(True, None), (False, None), (True, False), (False, True)]


@pytest.fixture(
    scope="module", params=CASES, ids=["uncased", "cased", "lowercase only", "accents only"]
)
def pair(request, characters) -> tuple[WordPieceTokenizer, Tokenizer]:
    lowercase, strip_accents = request.param
    return (
        WordPieceTokenizer(characters, lowercase=lowercase, strip_accents=strip_accents),
        peer(characters, lowercase=lowercase, strip_accents=strip_accents),
    )


def test_every_code_point_inside_a_word(pair):
    words = [f"a{chr(c)}b" for c in POINTS if c < 0x33480 or 0xDFFFF < c < 0xE1000 or c % 61 == 0]
    texts = [" ".join(words[i : i + 16]) for i in range(0, len(words), 16)]
    assert first_difference(*pair, texts) is None


def test_unicode_traps(pair):
    assert first_difference(*pair, TRAPS) is None


def test_random_code_points(pair):
    rng = random.Random(17)
    marks = [c for c in ASSIGNED if unicodedata.combining(chr(c))]
    ordered = sorted(ORDERED_MARKS)

    def character() -> str:
        kind = rng.random()
        if kind < 0.3:
            return chr(rng.choice(POINTS))
        if kind < 0.6:
            return chr(rng.choice(ASSIGNED))
        if kind < 0.7:
            return chr(rng.choice(marks))
        if kind < 0.8:
            return chr(rng.choice(ordered))
        return rng.choice([*"aÀé .-\n[]", *SPECIAL, "한", "中", "\xad", "\u200d"])

    texts = ["".join(character() for _ in range(rng.randrange(24))) for _ in range(6000)]
    assert first_difference(*pair, texts) is None


def test_random_long_words(pair):
    rng = random.Random(18)
    texts = []
    for _ in range(500):
        letters = rng.choice(["ab", "aж", "é한", "ab中", "𝒳ﬁ"])
        breaks = rng.choice([0.0, 0.005, 0.02])
        texts.append(
            "".join(
                rng.choice([" ", "-", "[SEP]"]) if rng.random() < breaks else rng.choice(letters)
                for _ in range(rng.randrange(99, 500))
            )
        )
    assert first_difference(*pair, texts) is None


def test_random_vocabularies():
    # Longest match first, over vocabularies in which it often fails half way through a word.
    rng = random.Random(19)
    for _ in range(8):
        pieces = {
            rng.choice(["", "##"]) + "".join(rng.choices("abé", k=rng.randint(1, 4)))
            for _ in range(25)
        }
        vocabulary = [*SPECIAL, *sorted(pieces)]
        ours = WordPieceTokenizer(vocabulary, lowercase=False)
        theirs = peer(vocabulary, lowercase=False, strip_accents=None)
        texts = [
            " ".join("".join(rng.choices("abé", k=rng.randint(1, 9))) for _ in range(6))
            for _ in range(400)
        ]
        assert first_difference(ours, theirs, texts) is None


def read_texts(directory: Path) -> Iterator[str]:
    for name in ("corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz"):
        path = directory / name
        if path.is_file():
            content = path.read_bytes()
            content = gzip.decompress(content) if name.endswith(".gz") else content
            for line in content.decode("utf-8").split("\n"):
                if line:
                    record = json.loads(line)
                    yield f"{record.get('title', '')} {record['text']}".strip()


@pytest.fixture(scope="module")
def real_texts(data_dir) -> list[str]:
    """10,000 texts: half in eleven languages, half in English."""
    multilingual = list(read_texts(data_dir / "xquad_multi"))
    english = [
        text
        for name in ("squad", "scifact", "medquad")
        for text in random.Random(3).sample(list(read_texts(data_dir / name)), 1700)
    ]
    return random.Random(4).sample(multilingual, 5000) + english[:5000]


@pytest.mark.parametrize("lowercase", [True, False])
def test_real_texts(real_texts, lowercase):
    learner = peer(SPECIAL, lowercase=lowercase, strip_accents=None)
    learner.train_from_iterator(
        real_texts[::5],
        trainers.WordPieceTrainer(
            vocab_size=12_000, special_tokens=SPECIAL, show_progress=False, limit_alphabet=4000
        ),
    )
    ids = learner.get_vocab()
    vocabulary = sorted(ids, key=ids.__getitem__)
    assert len(real_texts) == 10_000
    ours = WordPieceTokenizer(vocabulary, lowercase=lowercase)
    theirs = peer(vocabulary, lowercase=lowercase, strip_accents=None)
    assert first_difference(ours, theirs, real_texts) is None


@pytest.mark.peers
def test_all_minilm_vocabulary(real_texts, minilm):
    theirs = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    ours = WordPieceTokenizer.from_hugging_face(minilm)
    assert first_difference(ours, theirs, [*TRAPS, *real_texts]) is None
    from_text = WordPieceTokenizer.from_vocabulary_file(minilm / "vocab.txt")
    assert from_text.fingerprint_bytes() == ours.fingerprint_bytes()
