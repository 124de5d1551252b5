"""The same token ids as `transformers.AutoTokenizer`, with special tokens and truncation.

Hugging Face directories of many shapes -> our tokenizer -> Hugging Face's files -> AutoTokenizer.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tfde.config.model import TextConfig
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.read_tokenizer import read_hugging_face_tokenizer, read_tokenizer

pytestmark = pytest.mark.peers

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LIMIT = 24
TRAPS = [
    *("", " ", "  a \t b\n "),
    "wait… ﬁne ½ ② ™ İstanbul ΟΔΥΣΣΕΥΣ ẞ Crème brûlée e\u0301 \u0301",
    "日本語テキスト 中文，标点。 한국어 ＦＵＬＬ　ｗｉｄｔｈ！",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 ✈️ 👍🏽 1️⃣",
    "a\x00b\x01c\x07d\x1be\x7ff\x80g\x85h\x9fi zero\u200bwidth\u2060er\ufeff \ufffd \ue000",
    "I'm you're HE'S we've 'tis ''s  's\n's a\u00a0\u00a0b\u3000\u3000c  \n\n  d",
    "say[MASK]this [SEP]and[CLS]that [UNK] [PAD] [mask] [ MASK ] [MA\u00adSK] [[MASK]] [Mask]",
    "a<mask>b  <mask>  c\n<mask>\u3000<mask> d </s>e<s> <pad>  x <unk>\u00a0y <S>",
    "<MASK> <m\u00e0sk> [Mask] [màsk] FAMILY family fam\u00adily",
    "x" * 5000,
    "ab" * 60 + " " + "中" * 500,
]


def read_texts(directory: Path) -> Iterator[str]:
    for name in ("corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz"):
        path = directory / name
        if path.is_file():
            content = path.read_bytes()
            content = gzip.decompress(content) if name.endswith(".gz") else content
            for line in content.decode("utf-8").split("\n"):
                if line:
                    yield json.loads(line)["text"].strip()


@pytest.fixture(scope="module")
def real_texts(data_dir) -> list[str]:
    rng = random.Random(11)
    return [
        text
        for name in ("xquad_multi", "squad_sent")
        for text in rng.sample(list(read_texts(data_dir / name)), 150)
    ]


@pytest.fixture(scope="module")
def word_pieces(real_texts) -> dict[str, list[str]]:
    """Vocabularies, of words in lower case and of words as they are, without special tokens."""
    found = {}
    for name, lowercase in (("lower", True), ("cased", False)):
        learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        learner.train_from_iterator(
            real_texts, trainers.WordPieceTrainer(vocab_size=4000, show_progress=False)
        )
        found[name] = sorted(learner.get_vocab())
    return found


@pytest.fixture(scope="module")
def byte_pairs(real_texts) -> tuple[dict[str, int], list[tuple[str, str]]]:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.train_from_iterator(
        real_texts,
        trainers.BpeTrainer(
            vocab_size=4000,
            special_tokens=ROBERTA,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


@pytest.fixture(scope="module")
def classes():
    import transformers  # after tensorflow

    return transformers


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def added(token: str, index: int | None = None, **flags: bool) -> dict:
    names = ("single_word", "lstrip", "rstrip", "normalized")
    value = {"content": token, "special": True, **{n: flags.get(n, False) for n in names}}
    return value if index is None else {"id": index, **value}


def bert_json(vocabulary: list[str], tokens: list[dict], post_processor: dict, **options) -> dict:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": options.get("strip_accents"),
            "lowercase": options.get("lowercase", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(vocabulary)},
        },
    }


def bert_processing(vocabulary: list[str]) -> dict:
    return {
        "type": "BertProcessing",
        "sep": ["[SEP]", vocabulary.index("[SEP]")],
        "cls": ["[CLS]", vocabulary.index("[CLS]")],
    }


def saved_bert(directory: Path, fixtures: dict) -> None:
    """What transformers 5 saves."""
    ids = {t: i for i, t in enumerate([*BERT, *fixtures["words"]["lower"]])}
    fixtures["classes"].BertTokenizer(vocab=ids).save_pretrained(directory)


def saved_cased_bert(directory: Path, fixtures: dict) -> None:
    ids = {t: i for i, t in enumerate([*BERT, *fixtures["words"]["cased"]])}
    fixtures["classes"].BertTokenizer(vocab=ids, do_lower_case=False).save_pretrained(directory)


def saved_distilbert(directory: Path, fixtures: dict) -> None:
    ids = {t: i for i, t in enumerate([*BERT, *fixtures["words"]["lower"]])}
    fixtures["classes"].DistilBertTokenizer(vocab=ids, strip_accents=False).save_pretrained(
        directory
    )


def classic_bert(directory: Path, fixtures: dict) -> None:
    """vocab.txt and nothing but the model's type."""
    (directory / "vocab.txt").write_text("\n".join([*BERT, *fixtures["words"]["lower"], ""]))
    write_json(directory / "config.json", {"model_type": "bert"})


def classic_cased_bert(directory: Path, fixtures: dict) -> None:
    vocabulary = [*BERT, *fixtures["words"]["cased"]]
    (directory / "vocab.txt").write_text("\n".join([*vocabulary, ""]))
    tokens = [added(t, i) for i, t in enumerate(BERT)]
    value = bert_json(vocabulary, tokens, bert_processing(vocabulary), lowercase=False)
    write_json(directory / "tokenizer.json", value)
    write_json(directory / "config.json", {"model_type": "bert"})
    write_json(
        directory / "tokenizer_config.json", {"do_lower_case": False, "model_max_length": 512}
    )


def bert_that_contradicts_itself(directory: Path, fixtures: dict) -> None:
    """tokenizer.json is cased; the class's default is not, and it counts."""
    vocabulary = [*BERT, *fixtures["words"]["lower"]]
    tokens = [added(t, i) for i, t in enumerate(BERT)]
    value = bert_json(vocabulary, tokens, bert_processing(vocabulary), lowercase=False)
    write_json(directory / "tokenizer.json", value)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast"})


def general_that_contradicts_itself(directory: Path, fixtures: dict) -> None:
    """The same with a general class: tokenizer.json counts."""
    bert_that_contradicts_itself(directory, fixtures)
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "do_lower_case": True,
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "unk_token": "[UNK]",
        },
    )


def bert_base_uncased(directory: Path, fixtures: dict) -> None:
    """As the hub holds it: a model without a type, and of options the letter case alone."""
    vocabulary = [*BERT, *fixtures["words"]["lower"]]
    tokens = [added(t, i) for i, t in enumerate(BERT)]
    value = bert_json(vocabulary, tokens, bert_processing(vocabulary))
    del value["model"]["type"]
    write_json(directory / "tokenizer.json", value)
    write_json(directory / "config.json", {"model_type": "bert"})
    write_json(
        directory / "tokenizer_config.json", {"do_lower_case": True, "model_max_length": 512}
    )


def general_with_padding(directory: Path, fixtures: dict) -> None:
    """Nothing but the padding names the pad token."""
    bert_base_uncased(directory, fixtures)
    value = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    value["truncation"] = {"max_length": 128, "strategy": "LongestFirst", "stride": 0}
    value["padding"] = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_type_id": 0}
    value["padding"] |= {"pad_to_multiple_of": None, "pad_id": 0, "pad_token": "[PAD]"}
    write_json(directory / "tokenizer.json", value)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def classic_bert_with_new_tokens(directory: Path, fixtures: dict) -> None:
    """Files of slow tokenizers: one new token with an id, one that only is said to be special."""
    classic_bert(directory, fixtures)
    size = len([*BERT, *fixtures["words"]["lower"]])
    write_json(directory / "added_tokens.json", {"[mask]": size, "<MASK>": size + 1})
    special = {"additional_special_tokens": ["<MASK>", "[ MASK ]"], "mask_token": "[MASK]"}
    write_json(directory / "special_tokens_map.json", special)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})


def bert_with_new_tokens(directory: Path, fixtures: dict) -> None:
    """Tokens added by a user, of those that are looked for in the normalized text."""
    vocabulary = [*BERT, *fixtures["words"]["lower"]]
    tokens = [added(t, i) for i, t in enumerate(BERT)]
    tokens += [
        added("[Mask]", len(vocabulary), normalized=True),
        added("<MASK>", len(vocabulary) + 1, normalized=True, rstrip=True),
        added("family", len(vocabulary) + 2),
        added("tan", len(vocabulary) + 3, normalized=True),
        added("tanbul", len(vocabulary) + 4, normalized=True),
        added("HE'S we", len(vocabulary) + 5, normalized=True),
    ]
    vocabulary = [t for t in vocabulary if t != "family"] + ["filler"] * ("family" in vocabulary)
    write_json(
        directory / "tokenizer.json", bert_json(vocabulary, tokens, bert_processing(vocabulary))
    )
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "added_tokens_decoder": {
                str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in tokens
            },
        },
    )


def mpnet_vocabulary(fixtures: dict) -> list[str]:
    return [*MPNET[:5], *fixtures["words"]["lower"], "<mask>"]


def saved_mpnet(directory: Path, fixtures: dict) -> None:
    ids = {t: i for i, t in enumerate(mpnet_vocabulary(fixtures))}
    fixtures["classes"].MPNetTokenizer(vocab=ids).save_pretrained(directory)


def classic_mpnet(directory: Path, fixtures: dict) -> None:
    """As sentence-transformers' all-mpnet-base-v2 is: normalized special tokens, mask strips."""
    vocabulary = mpnet_vocabulary(fixtures)
    tokens = [added(t, i, normalized=t in ("<s>", "</s>")) for i, t in enumerate(MPNET[:5])]
    tokens.append(added("<mask>", len(vocabulary) - 1, lstrip=True))
    roberta = {"sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True}
    roberta |= {"type": "RobertaProcessing", "add_prefix_space": False}
    write_json(directory / "tokenizer.json", bert_json(vocabulary, tokens, roberta))
    mask = added("<mask>", lstrip=True)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"unk_token": "[UNK]", "pad_token": "<pad>"}
    write_json(directory / "special_tokens_map.json", {**names, "mask_token": mask})
    write_json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True, **names},
    )


def saved_roberta(directory: Path, fixtures: dict) -> None:
    ids, merges = fixtures["pairs"]
    fixtures["classes"].RobertaTokenizer(vocab=ids, merges=merges).save_pretrained(directory)


def saved_roberta_with_prefix(directory: Path, fixtures: dict) -> None:
    ids, merges = fixtures["pairs"]
    tokenizer = fixtures["classes"].RobertaTokenizer(
        vocab=ids, merges=merges, add_prefix_space=True
    )
    tokenizer.save_pretrained(directory)


def classic_roberta(directory: Path, fixtures: dict) -> None:
    """vocab.json and merges.txt, and a mask that takes the blanks before it."""
    ids, merges = fixtures["pairs"]
    write_json(directory / "vocab.json", ids)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (directory / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    write_json(directory / "config.json", {"model_type": "roberta"})
    write_json(directory / "special_tokens_map.json", {"mask_token": added("<mask>", lstrip=True)})


def classic_roberta_json(directory: Path, fixtures: dict) -> None:
    """tokenizer.json with merges as strings."""
    ids, merges = fixtures["pairs"]
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    value = json.loads(tokenizer.to_str())
    value["model"]["merges"] = [" ".join(pair) for pair in merges]
    value["added_tokens"] = [added(t, i, normalized=True) for i, t in enumerate(ROBERTA[:4])]
    value["added_tokens"].append(added("<mask>", 4, lstrip=True))
    write_json(directory / "tokenizer.json", value)
    write_json(directory / "config.json", {"model_type": "roberta"})
    write_json(directory / "tokenizer_config.json", {"model_max_length": 512})


def general_byte_pairs(directory: Path, fixtures: dict) -> None:
    """A general class with a template of its own."""
    ids, merges = fixtures["pairs"]
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_special_tokens(ROBERTA)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"pad_token": "<pad>", "tokenizer_class": "TokenizersBackend"}
    write_json(directory / "tokenizer_config.json", names)


DIRECTORIES: list[Callable[[Path, dict], None]] = [
    saved_bert,
    saved_cased_bert,
    saved_distilbert,
    classic_bert,
    classic_cased_bert,
    bert_that_contradicts_itself,
    general_that_contradicts_itself,
    bert_base_uncased,
    general_with_padding,
    classic_bert_with_new_tokens,
    bert_with_new_tokens,
    saved_mpnet,
    classic_mpnet,
    saved_roberta,
    saved_roberta_with_prefix,
    classic_roberta,
    classic_roberta_json,
    general_byte_pairs,
]


def ids_of(tokenizer, texts: list[str], limit: int) -> list[list[int]]:
    """Token ids with special tokens, cut at the limit, as a tower gets them."""
    config = TextConfig(
        query_max_length_tokens=limit, document_max_length_tokens=limit, buckets=(limit,)
    )
    preprocessor = TextPreprocessor(tokenizer, config)
    token_ids, padding_mask = preprocessor.queries(tf.constant(texts, tf.string))
    rows = tf.ragged.boolean_mask(token_ids, tf.cast(padding_mask, tf.bool))
    return rows.to_list()


@pytest.mark.parametrize("write", DIRECTORIES, ids=lambda f: f.__name__)
def test_directories_there_and_back(write, tmp_path, real_texts, word_pieces, byte_pairs, classes):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    write(source, {"words": word_pieces, "pairs": byte_pairs, "classes": classes})
    theirs = classes.AutoTokenizer.from_pretrained(str(source))
    ours = read_hugging_face_tokenizer(source)
    for name, content in ours.hugging_face_files(max_length_tokens=LIMIT).items():
        (target / name).write_bytes(content)
    back = classes.AutoTokenizer.from_pretrained(str(target))
    again = read_tokenizer(target)
    assert back.model_max_length == LIMIT
    assert again.settings() == ours.settings()

    texts = [*TRAPS, *real_texts]
    start = [] if ours.start_id is None else [ours.start_id]
    # All rows in one graph, which takes long to trace.
    rows = tf.function(ours.tokenize)(tf.constant(texts, tf.string)).to_list()
    expected = theirs(texts)["input_ids"]
    of_files = back(texts)["input_ids"]
    for text, row, a, b in zip(texts, rows, expected, of_files, strict=True):
        assert [*start, *row, ours.end_id] == a, f"{text!r}"
        assert b == a, f"{text!r}, from our files"
    # What stands between two.
    for tokenizer in (theirs, back):
        pair = tokenizer("a b", "c")["input_ids"]
        first, second = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in ("a b", "c"))
        assert pair == [*start, *first, *ours.pair_separator_ids, *second, ours.end_id]
    kinds = [t("a b", "c").get("token_type_ids") for t in (theirs, back)]
    if kinds[0] is not None and 1 in kinds[0]:
        assert kinds[1] == kinds[0]


@pytest.mark.parametrize("write", [saved_bert, saved_roberta], ids=lambda f: f.__name__)
def test_rows_of_a_tower_are_cut_alike(
    write, tmp_path, real_texts, word_pieces, byte_pairs, classes
):
    write(tmp_path, {"words": word_pieces, "pairs": byte_pairs, "classes": classes})
    theirs = classes.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [*TRAPS, *real_texts]
    expected = theirs(texts, truncation=True, max_length=LIMIT)["input_ids"]
    assert ids_of(read_hugging_face_tokenizer(tmp_path), texts, LIMIT) == expected


def test_all_minilm(real_texts, classes, minilm, tmp_path):
    theirs = classes.AutoTokenizer.from_pretrained(str(minilm))
    ours = read_hugging_face_tokenizer(minilm)
    for name, content in ours.hugging_face_files(max_length_tokens=256).items():
        (tmp_path / name).write_bytes(content)
    back = classes.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [*TRAPS, *real_texts]
    expected = theirs(texts, truncation=True, max_length=256)["input_ids"]
    assert ids_of(ours, texts, 256) == expected
    assert back(texts, truncation=True)["input_ids"] == expected
    assert back("a", "b") == theirs("a", "b")
