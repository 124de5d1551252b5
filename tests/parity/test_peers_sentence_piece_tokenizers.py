"""Unigram tokenizers of Hugging Face's directories: ids of `tokenizers` and `transformers`."""

import gzip
import io
import json
import random
import shutil
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf

from tfde.text.sentence_piece_model import parse_model
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import load_tokenizer
from tfde.text.train_sentencepiece import train_sentencepiece

pytestmark = pytest.mark.peers

TRAPS = [
    *(
        "",
        " ",
        "  ",
        "\t",
        " a  b\tc\nd\r\ne ",
        "\u00a0a\u00a0\u2003b\u3000",
        "\u200b \u200d\ufeff",
    ),
    *(
        "…",
        "ﬁ ﬂ",
        "ＦＵＬＬ　ｗｉｄｔｈ ｶﾞ",
        "½ ² Å ª\u0301 …\u0301",
        "e\u0301 e\u0302\u0301 e\u0301\u0302",
    ),
    *(
        "e\u0323\u0302 e\u0302\u0323 e" + "\u0301" * 9,
        "각 \u1100\u1161\u11a8 か\u3099",
        "नि क\u093c क्षि ที่",
    ),
    *("👩‍👩‍👧 👍🏽 🇩🇪 ❤️", "\ue000 \U000f0000 \U0010fffd", "\x00\x01\x7f\x85", "İ ǅ ß ẞ"),
    *("</s>", "a</s>b", "a </s> b", "<pad><unk>", "<mask>", "x <mask> y", "x<mask>y", "<s> <s>"),
    *(
        "<extra_id_0>",
        "a <extra_id_99><extra_id_1>, b",
        "＜/s＞ ＜unk＞＜unk＞",
        "</s",
        "<<s>>",
        "</S>",
    ),
    *("ऄऄऄ ऄ", "𓀀𓀁𓀂𓀃", "a𓀀b𓀀", "▁", "▁▁a▁ ▁b", "中" * 500, "Ω" * 2000),
]
RAW = [b"a\xffb", b"\xe4\xb8", b"\xed\xa0\x80x", b"\xf0\x9f\x98 \xc3", b"\xc0\x80", b"</s>\xff</s>"]


@pytest.fixture(scope="module")
def peer():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def texts(data_dir):
    """10,000 real texts, half of them in eleven languages, and the traps."""
    rng = random.Random(7)
    with gzip.open(data_dir / "squad_sent" / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        english = rng.sample([json.loads(line)["text"] for line in lines], 5000)
    with gzip.open(data_dir / "xquad_multi" / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        many = rng.sample([json.loads(line)["text"] for line in lines], 2000)
    with open(data_dir / "xquad_multi" / "queries.jsonl", encoding="utf-8") as lines:
        many += rng.sample([json.loads(line)["text"] for line in lines], 3000)
    return english + many


@pytest.fixture(scope="module")
def hard_texts(texts):
    """Traps, real texts with decomposed letters, and random texts of nasty characters."""
    rng = random.Random(8)
    marks = [c for c in map(chr, range(0x3000)) if unicodedata.category(c)[0] == "M"]
    pool = ["aeioun Aª…™ﬁ１½\u00a0  ", marks, "\r\n\u200b\u200c\u200d\u0600\u00ad", "가か中कกي"]
    nasty = [
        "".join(rng.choice(rng.choice(pool)) for _ in range(rng.randrange(9))) for _ in range(1500)
    ]
    long = ["".join(text.split()) for text in texts[:40]] + ["".join(texts[-5:]).replace(" ", "")]
    return TRAPS + long + [unicodedata.normalize("NFD", t) for t in texts[-300:]] + nasty


def trained(texts, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts[4500:5700]),
        model_writer=model,
        vocab_size=5000,
        character_coverage=0.9995,
        minloglevel=2,
        max_sentence_length=1 << 16,
        **options,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def directories(peer, texts, tmp_path_factory):
    """Name -> a directory of each kind."""
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

    root = tmp_path_factory.mktemp("directories")
    t5 = trained(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    xlm_roberta = trained(texts)
    charsmap = parse_model(t5).normalizer_spec.precompiled_charsmap
    sentinels = [f"<extra_id_{i}>" for i in range(99, -1, -1)]
    t5_pieces = [(p.piece, p.score) for p in parse_model(t5).pieces]
    t5_pieces += [(token, 0.0) for token in sentinels]
    xlm_pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    xlm_pieces += [(p.piece, p.score) for p in parse_model(xlm_roberta).pieces[3:]]
    xlm_pieces += [("<mask>", 0.0)]

    # What transformers 5 saves. (It cannot read a SentencePiece model beside protobuf 6.)
    peer.T5Tokenizer(vocab=t5_pieces, _spm_precompiled_charsmap=charsmap).save_pretrained(
        root / "t5"
    )
    peer.XLMRobertaTokenizer(
        vocab=xlm_pieces, _spm_precompiled_charsmap=charsmap, model_max_length=512
    ).save_pretrained(root / "xlm_roberta")

    # What transformers 4 converted, under a class that is read as it stands.
    def general(name, pieces, unknown_id, steps, before, special, single, pair):
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unknown_id, False))
        tokenizer.normalizer = normalizers.Sequence(steps) if steps else None
        metaspace = pre_tokenizers.Metaspace("▁", "always", True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, metaspace])
        tokenizer.add_special_tokens(special)
        ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[x for x in ids if x[1] is not None]
        )
        peer.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        ).save_pretrained(root / name)

    precompiled = normalizers.Precompiled(charsmap)
    blanks = tokenizers.Regex(" {2,}")
    added = tokenizers.AddedToken
    plain = [added(t, normalized=False) for t in ("<pad>", "</s>", "<unk>", *sentinels)]
    around = ("$A </s>", "$A </s> $B </s>")
    collapse = [precompiled, normalizers.Replace(blanks, " ")]
    general("gtr", t5_pieces, 2, collapse, [], plain, *around)
    strip = [precompiled, normalizers.Strip(False, True), normalizers.Replace(blanks, "▁")]
    masks = [added("<mask>", lstrip=True, normalized=True), added("wordly", single_word=True)]
    general(
        "e5",
        xlm_pieces,
        3,
        strip,
        [],
        [*(added(t, normalized=False) for t in ("<s>", "<pad>", "</s>", "<unk>")), *masks],
        "<s> $A </s>",
        "<s> $A </s> </s> $B </s>",
    )
    quotes = [normalizers.Replace("``", '"'), normalizers.Strip()]
    general("bare", t5_pieces, 2, quotes, [pre_tokenizers.WhitespaceSplit()], plain, *around)
    general("none", t5_pieces, 2, [], [pre_tokenizers.WhitespaceSplit()], plain, *around)

    # The classic files.
    for name, file, content in (
        ("t5", "spiece.model", t5),
        ("xlm_roberta", "sentencepiece.bpe.model", xlm_roberta),
    ):
        (root / f"classic_{name}").mkdir()
        (root / f"classic_{name}" / file).write_bytes(content)
    return root


def ours(tokenizer):
    function = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])

    def ids(texts):
        rows = []
        for start in range(0, len(texts), 500):
            rows += function(tf.constant(texts[start : start + 500])).to_list()
        return rows

    return ids


def framed(tokenizer, rows):
    start = [] if tokenizer.start_id is None else [tokenizer.start_id]
    return [[*start, *row, tokenizer.end_id] for row in rows]


def differences(texts, expected, received):
    assert len(texts) == len(expected) == len(received)
    return [x for x in zip(texts, expected, received, strict=True) if x[1] != x[2]]


@pytest.mark.parametrize("name", ["t5", "xlm_roberta", "gtr", "e5", "bare", "none"])
def test_same_ids_as_both_libraries(peer, directories, texts, hard_texts, name):
    import tokenizers

    tokenizer = SentencePieceTokenizer.from_hugging_face(directories / name)
    hub = peer.AutoTokenizer.from_pretrained(directories / name)
    low = tokenizers.Tokenizer.from_file(str(directories / name / "tokenizer.json"))
    every = (texts if name in ("t5", "xlm_roberta") else texts[::10]) + hard_texts
    received = framed(tokenizer, ours(tokenizer)(every))
    expected = [encoding.ids for encoding in low.encode_batch(every)]
    wrong = differences(every, expected, received)
    assert not wrong, (len(wrong), wrong[:3])
    again = every[::10] + TRAPS
    assert hub(again)["input_ids"] == [e.ids for e in low.encode_batch(again)]

    raw = framed(tokenizer, tokenizer.tokenize(tf.constant(RAW)).to_list())
    assert raw == hub([text.decode(errors="replace") for text in RAW])["input_ids"]

    assert tokenizer.vocabulary_size == len(hub)
    assert tokenizer.pad_id == hub.pad_token_id
    assert tokenizer.end_id == tokenizer.separator_id == hub.eos_token_id
    assert tokenizer.start_id == (0 if name in ("xlm_roberta", "e5") else None)
    first, second = ([tokenizer.tokenize([t]).to_list()[0]] for t in ("one text", "another"))
    pair = [*first[0], *tokenizer.pair_separator_ids, *second[0]]
    assert framed(tokenizer, [pair])[0] == hub("one text", "another")["input_ids"]
    tokens = hub.convert_ids_to_tokens(list(range(len(hub))))
    assert [tokenizer.id_to_token(i) for i in range(len(hub))] == tokens


@pytest.mark.parametrize("name", ["t5", "xlm_roberta"])
def test_classic_files(directories, name):
    """The ids of what transformers 5 makes of them."""
    tokenizer = SentencePieceTokenizer.from_hugging_face(directories / f"classic_{name}")
    converted = SentencePieceTokenizer.from_hugging_face(directories / name)
    assert tokenizer.fingerprint_bytes() == converted.fingerprint_bytes()


@pytest.mark.parametrize("name", ["t5", "xlm_roberta", "gtr", "e5", "bare", "none"])
def test_way_back(peer, directories, texts, hard_texts, tmp_path, name):
    """Directory -> ours -> our files -> ours again -> Hugging Face's files -> AutoTokenizer."""
    tokenizer = SentencePieceTokenizer.from_hugging_face(directories / name)
    tokenizer.save_assets(tmp_path / "ours")
    tokenizer = load_tokenizer(tmp_path / "ours")
    write(tokenizer, tmp_path / "theirs")
    before = peer.AutoTokenizer.from_pretrained(directories / name)
    after = peer.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    every = texts[::20] + hard_texts
    assert not differences(every, before(every)["input_ids"], after(every)["input_ids"])
    assert after("one", "two")["input_ids"] == before("one", "two")["input_ids"]
    assert after.model_max_length == 12
    assert (after.pad_token, after.eos_token) == ("<pad>", "</s>")
    assert len(after(texts[0] * 9, truncation=True)["input_ids"]) == 12
    again = SentencePieceTokenizer.from_hugging_face(tmp_path / "theirs")
    assert differences(every, ours(tokenizer)(every), ours(again)(every)) == []


def test_way_back_of_our_own_model(peer, texts, tmp_path):
    path = train_sentencepiece(texts[4500:5700], tmp_path / "m.model", vocabulary_size=5000)
    tokenizer = SentencePieceTokenizer.from_file(path)
    write(tokenizer, tmp_path / "theirs")
    theirs = peer.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    every = texts[::2]
    received = framed(tokenizer, ours(tokenizer)(every))
    wrong = differences(every, theirs(every)["input_ids"], received)
    # The library adds float32 numbers over the whole text, so near ties may fall otherwise; and
    # it composes letters and marks which Hugging Face leaves apart.
    assert len(wrong) <= 5, (len(wrong), wrong[:3])
    assert len(theirs) == tokenizer.vocabulary_size


def write(tokenizer, directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in tokenizer.hugging_face_files(max_length_tokens=12).items():
        (directory / name).write_bytes(content)
