"""The same token ids as Hugging Face's `tokenizers` (Rust) for byte-level BPE."""

import gzip
import itertools
import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from tfde.text.byte_pair.merges import BytePairMerges, byte_characters
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.byte_pair.words import Gpt2Words

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u200b", "\u2028", "\x85"]
TRAPS = [
    "",
    *BLANKS,
    *(f"{a}word{b}" for a, b in itertools.product(BLANKS, BLANKS)),
    *(f"a{a}{b}'s 1{a}{b}! {a}2{b}" for a, b in itertools.product(BLANKS, BLANKS)),
    "I'm you're he's we've they'd I'll don't 'tis 's't 're'll",
    "I'M YOU'RE HE'S WE'VE THEY'D I'LL DON'T 'TIS",
    "' 's ''s '''s 's's 's'S x's' 1's !'s \n's \n\n's  's ' s 'r 'l 'v 're",
    "it’s ’s ‘t",
    "½ ² ³x x½ 1½ Ⅷ ① ٣ 一二 ४५ 𝟘 10,000.5",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 ✈️ 👍🏽 1️⃣",
    "e\u0301 a\u0327\u0301 \u0301 x\u0301\u0302 किताब ทดสอบ",
    "日本語テキスト 中文，标点。 한국어 各 \u1100\u1161",
    "a\x00b\x01c\x1cd\x1de\x1ef\x1fg\x7fh",
    "\ufffd \ufeffx \u0378 \U000e0041 \U0010ffff \ue000",
    "<s>",
    "<s></s><mask>",
    "a<mask>b  <mask>  c\n<mask>\u3000<mask> d </s> e<s> <pad>  x <unk>\u00a0y",
    "<S> < s> <s <mask <<mask>> <mas<mask>k>",
    "x" * 5000,
    "ab" * 2500 + " " + "中" * 5000,
    " " * 5000 + "x",
    "don't stop-it, $5.00 + 3^2 ~ `x` | <y> = z_1  ",
    "https://example.org/a?b=c&d=%20#e  foo_bar.baz()\t\tif x:\n\n    return\r\n",
]
TRAP_BYTES = [
    b"\xff",
    b"a\xe4\xb8 x\xc3",
    b"\xed\xa0\x80x",
    b"\xf0\x9f\x98 <mask>\x80",
    b"\xc0\xaf",
]


def first_difference(ours, theirs: Tokenizer, texts: list[str]) -> str | None:
    tokenize = tf.function(ours.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    for begin in range(0, len(texts), 1024):
        batch = texts[begin : begin + 1024]
        received = tokenize(tf.constant(batch, tf.string)).to_list()
        expected = theirs.encode_batch(batch, add_special_tokens=False)
        for text, ids, encoding in zip(batch, received, expected, strict=True):
            if ids != encoding.ids:
                return f"{text!r}: {ids} instead of {encoding.ids}"
    return None


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
    rng = random.Random(3)
    return [
        text
        for name in ("xquad_multi", "squad_sent")
        for text in rng.sample(list(read_texts(data_dir / name)), 5000)
    ]


def peer(model: models.BPE, *, prefix: bool, tokens: list[AddedToken | str]) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.add_special_tokens(tokens)
    return tokenizer


ROBERTA = [*(t for t in SPECIAL[:4]), AddedToken("<mask>", lstrip=True)]


def trained(texts: list[str], *, prefix: bool, size: int) -> Tokenizer:
    tokenizer = peer(models.BPE(), prefix=prefix, tokens=[])
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens(ROBERTA)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


@pytest.mark.parametrize("prefix", [False, True])
def test_real_texts_and_traps(real_texts, tmp_path, prefix):
    theirs = trained(real_texts[::5], prefix=prefix, size=12_000)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = BytePairTokenizer.from_hugging_face(tmp_path)
    assert len(real_texts) == 10_000
    # The blank before a text changes nothing but its first word: fewer will do.
    texts = real_texts[::20] if prefix else real_texts
    assert first_difference(ours, theirs, [*TRAPS, *texts]) is None
    for text in TRAP_BYTES:
        expected = theirs.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        assert ours.tokenize(tf.constant([text])).to_list() == [expected]
    # The way back.
    for name, content in ours.hugging_face_files(max_length_tokens=64).items():
        (tmp_path / name).write_bytes(content)
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*TRAPS, *real_texts[::20]):
        assert again.encode(text).ids == theirs.encode(text).ids
    assert BytePairTokenizer.from_hugging_face(tmp_path).settings() == ours.settings()


def words_of(texts: list[str]) -> list[list[str]]:
    ragged = Gpt2Words()(tf.constant(texts, tf.string))
    return [[word.decode() for word in row] for row in ragged.to_list()]


def words_of_peer(texts: list[str]) -> list[list[str]]:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of = {c: i for i, c in enumerate(byte_characters())}
    return [
        [bytes(bytes_of[c] for c in word).decode() for word, _ in splitter.pre_tokenize_str(text)]
        for text in texts
    ]


def test_words_at_every_code_point():
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    points = [c for c in points if c < 0x33480 or 0xDFFFF < c < 0xE0200 or c % 509 == 0]
    texts = [
        "".join(f"x{chr(c)}1{chr(c)}! {chr(c)}\n{chr(c)}'s" for c in points[i : i + 64])
        for i in range(0, len(points), 64)
    ]
    assert words_of(texts) == words_of_peer(texts)


def test_words_of_random_texts():
    rng = random.Random(5)
    assigned = [c for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    plain = [*"  \n\t''''stmdrevlSTx1!.", "\u00a0", "\u3000", "é", "中", "½", "\u0301"]
    texts = [
        "".join(
            chr(rng.choice(assigned)) if rng.random() < 0.2 else rng.choice(plain)
            for _ in range(rng.randrange(20))
        )
        for _ in range(8000)
    ]
    assert words_of(texts) == words_of_peer(texts)


@pytest.mark.parametrize("learned", [True, False])
def test_random_merges(learned):
    # Merges as a learner finds them, and in an order in which a merge makes lower pairs.
    rng = random.Random(7)
    for _ in range(5):
        tokens = list("abc")
        merges: list[tuple[str, str]] = []
        while len(merges) < 30:
            pair = (rng.choice(tokens), rng.choice(tokens))
            if pair not in merges and len("".join(pair)) < 12:
                merges.append(pair)
                if "".join(pair) not in tokens:
                    tokens.append("".join(pair))
        if not learned:
            rng.shuffle(merges)
        ids = {token: index for index, token in enumerate(tokens)}
        merge = BytePairMerges(ids, merges=merges, unknown_id=None)
        theirs = Tokenizer(models.BPE(ids, merges))
        words = ["".join(rng.choices("abc", k=rng.randint(1, 30))) for _ in range(500)]
        received = merge(tf.constant(words)).to_list()
        assert received == [theirs.encode(word).ids for word in words]


@pytest.mark.parametrize("unknown", [None, "<unk>"])
def test_bytes_that_the_vocabulary_lacks(tmp_path, unknown):
    ids = {token: index for index, token in enumerate([*SPECIAL, "a", "b", "ab", "\u0120"])}
    theirs = peer(models.BPE(ids, [("a", "b")], unk_token=unknown), prefix=False, tokens=SPECIAL)
    theirs.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    ours = BytePairTokenizer.from_hugging_face(tmp_path)
    assert first_difference(ours, theirs, ["axb abx", "é", "x", "", "aéb xx ba"]) is None


def test_overlapping_special_tokens(tmp_path):
    theirs = trained(["some text about nothing"] * 2, prefix=True, size=400)
    theirs.add_tokens([AddedToken("new", single_word=True), AddedToken(" wide ", rstrip=True)])
    theirs.add_tokens([AddedToken("new<s", normalized=True), AddedToken("s>x", normalized=False)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = BytePairTokenizer.from_hugging_face(tmp_path)
    texts = [*TRAPS, "new news <s>new new<s> news>x new<s>x", "a wide  b", "anew new\u0301 new,new"]
    assert first_difference(ours, theirs, texts) is None
