"""Unigram tokenizers of Hugging Face's directories: ids of `tokenizers` and `transformers`."""

import gzip
import importlib
import io
import json
import random
import shutil
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf

from tfde.text.read_tokenizer import load_tokenizer, read_hugging_face_tokenizer
from tfde.text.sentence_piece.model import CONTROL, UNKNOWN, parse_model
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece

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
    return importlib.import_module("transformers")


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


def in_order_of_xlm_roberta(model):
    proto = parse_model(model)
    for piece, (name, kind) in zip(
        proto.pieces, (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)), strict=False
    ):
        piece.piece, piece.type = name, kind
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id, proto.trainer_spec.eos_id = range(3)
    proto.trainer_spec.pad_id = -1
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def directories(peer, texts, tmp_path_factory):
    """Name -> a directory of each kind."""
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

    root = tmp_path_factory.mktemp("directories")
    t5 = trained(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    xlm_roberta = in_order_of_xlm_roberta(t5)
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
    write_as_transformers_4(root)

    # The classic files.
    for name, file, content in (
        ("t5", "spiece.model", t5),
        ("xlm_roberta", "sentencepiece.bpe.model", xlm_roberta),
    ):
        (root / f"classic_{name}").mkdir()
        (root / f"classic_{name}" / file).write_bytes(content)
    return root


def write_as_transformers_4(root):
    """Directories as popular models on the hub hold them, from memory, of those that are there."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    truncation = {"max_length": 128, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_type_id": 0}
    padding |= {"pad_to_multiple_of": None, "pad_token": "<pad>"}
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    of_t5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    of_t5 |= {"extra_ids": 100, "additional_special_tokens": sentinels}
    mask = {"content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False}
    mask |= {"normalized": True, "__type": "AddedToken"}
    of_xlm = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    of_xlm |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    bert = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **bert}
    for name, source, model_type, changes, options in (
        ("t5_small", "t5", "t5", {"model": {"type": None}}, {"model_max_length": 512}),
        (
            "gtr_t5_base",
            "gtr",
            "t5",
            {"truncation": truncation, "padding": {**padding, "pad_id": 0}},
            {**of_t5, "tokenizer_class": "T5Tokenizer", "add_prefix_space": None},
        ),
        (
            "multilingual_e5_small",
            "e5",
            "bert",
            {"pre_tokenizer": metaspace},
            {**of_xlm, "mask_token": mask, "tokenizer_class": "XLMRobertaTokenizer"},
        ),
        (
            "paraphrase_multilingual_minilm",
            "xlm_roberta",
            "bert",
            {"truncation": truncation, "padding": {**padding, "pad_id": 1}},
            {**general, **{k: v for k, v in of_xlm.items() if k != "pad_token"}},
        ),
    ):
        value = json.loads((root / source / "tokenizer.json").read_text(encoding="utf-8"))
        if source in ("t5", "xlm_roberta"):
            value["pre_tokenizer"] = words
        for key, change in changes.items():
            value[key] = {**(value[key] or {}), **change}
        if value["model"]["type"] is None:
            del value["model"]["type"], value["model"]["byte_fallback"]
        (root / name).mkdir()
        for file, content in (
            ("tokenizer.json", value),
            ("tokenizer_config.json", options),
            ("config.json", {"model_type": model_type}),
        ):
            (root / name / file).write_text(json.dumps(content), encoding="utf-8")


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


@pytest.mark.parametrize("name", ["t5", "xlm_roberta", "gtr", "e5"])
def test_same_ids_as_both_libraries(peer, directories, texts, hard_texts, tmp_path, name):
    """And directory -> ours -> our files -> ours again -> Hugging Face's files -> AutoTokenizer."""
    import tokenizers

    tokenizer = SentencePieceTokenizer.from_hugging_face(directories / name)
    hub = peer.AutoTokenizer.from_pretrained(directories / name)
    low = tokenizers.Tokenizer.from_file(str(directories / name / "tokenizer.json"))
    every = (texts if name == "t5" else texts[::20]) + hard_texts
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
    first, second = tokenizer.tokenize(["one text", "another"]).to_list()
    pair = [*first, *tokenizer.pair_separator_ids, *second]
    assert framed(tokenizer, [pair])[0] == hub("one text", "another")["input_ids"]
    tokens = hub.convert_ids_to_tokens(list(range(len(hub))))
    assert [tokenizer.id_to_token(i) for i in range(len(hub))] == tokens

    tokenizer.save_assets(tmp_path / "ours")
    write(load_tokenizer(tmp_path / "ours"), tmp_path / "theirs")
    back = peer.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert not differences(again, hub(again)["input_ids"], back(again)["input_ids"])
    assert back("one", "two")["input_ids"] == hub("one", "two")["input_ids"]
    assert back.model_max_length == 12
    assert (back.pad_token, back.eos_token) == ("<pad>", "</s>")
    assert len(back(texts[0] * 9, truncation=True)["input_ids"]) == 12
    same = SentencePieceTokenizer.from_hugging_face(tmp_path / "theirs")
    assert same.fingerprint_bytes() == tokenizer.fingerprint_bytes()


@pytest.mark.parametrize(
    "name", ["t5_small", "gtr_t5_base", "multilingual_e5_small", "paraphrase_multilingual_minilm"]
)
def test_directories_of_transformers_4(peer, directories, texts, name):
    tokenizer = read_hugging_face_tokenizer(directories / name)
    hub = peer.AutoTokenizer.from_pretrained(directories / name)
    every = TRAPS + texts[::100]
    received = framed(tokenizer, tokenizer.tokenize(tf.constant(every)).to_list())
    wrong = differences(every, hub(every)["input_ids"], received)
    assert not wrong, (len(wrong), wrong[:3])
    assert (tokenizer.vocabulary_size, tokenizer.pad_id) == (len(hub), hub.pad_token_id)


@pytest.mark.parametrize("name", ["t5", "xlm_roberta"])
def test_classic_files(directories, name):
    """The ids of what transformers 5 makes of them."""
    tokenizer = SentencePieceTokenizer.from_hugging_face(directories / f"classic_{name}")
    converted = SentencePieceTokenizer.from_hugging_face(directories / name)
    assert tokenizer.fingerprint_bytes() == converted.fingerprint_bytes()


def test_way_back_of_our_own_model(peer, texts, tmp_path):
    path = train_sentencepiece(texts[4500:5700], tmp_path / "m.model", vocabulary_size=5000)
    tokenizer = SentencePieceTokenizer.from_file(path)
    write(tokenizer, tmp_path / "theirs")
    theirs = peer.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    every = texts[::10]
    received = framed(tokenizer, ours(tokenizer)(every))
    wrong = differences(every, theirs(every)["input_ids"], received)
    # The library adds float32 numbers over the whole text, so near ties may fall otherwise; and
    # it composes letters and marks which Hugging Face leaves apart.
    assert len(wrong) <= 1, (len(wrong), wrong[:3])
    assert len(theirs) == tokenizer.vocabulary_size


def write(tokenizer, directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in tokenizer.hugging_face_files(max_length_tokens=12).items():
        (directory / name).write_bytes(content)
