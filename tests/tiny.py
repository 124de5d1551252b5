"""Small real things for tests: a vocabulary, models, a dataset directory."""

import functools
import json
from pathlib import Path

from tfde.config.backbones import BagOfWordsConfig, BertConfig, T5Config
from tfde.config.model import TextConfig
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.towers.dual_encoder import DualEncoder

WORDS = """
red green blue yellow black white apple pear plum cherry grape lemon cat dog bird fish horse cow
river lake sea hill road house tree stone north south east west one two three four five
""".split()  # noqa: SIM905
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
VOCABULARY += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]

T5 = T5Config(
    vocabulary_size=120, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12,
    key_value_dim=3, relative_buckets=8, relative_max_distance=16, dropout=0.1,
)  # fmt: skip
BERT = BertConfig(
    vocabulary_size=120, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12,
    max_sequence_length=32, dropout=0.1,
)  # fmt: skip
BAG_OF_WORDS = BagOfWordsConfig(vocabulary_size=120, embedding_dim=8, hidden_dim=6)


@functools.cache  # its graph is traced once for all models that have it
def tokenizer() -> WordPieceTokenizer:
    """A WordPiece tokenizer of 35 words and the letters."""
    return WordPieceTokenizer(VOCABULARY)


def dual_encoder(backbone=BAG_OF_WORDS, **options) -> DualEncoder:
    """A dual encoder with random weights."""
    options.setdefault("text", TextConfig(query_max_length_tokens=8, document_max_length_tokens=16))
    options.setdefault("seed", 1)
    model = DualEncoder.from_backbone(backbone, tokenizer=tokenizer(), **options)
    _PREPROCESSORS.setdefault(model.preprocessor.fingerprint_bytes(), model.preprocessor)
    return model


# Kept, so that what is traced for one model serves all later ones.
_PREPROCESSORS: dict[bytes, TextPreprocessor] = {}


def document_texts() -> list[str]:
    """All 35 x 34 / 2 pairs of words as texts, each with a third word."""
    texts = []
    for i, first in enumerate(WORDS):
        texts += [f"{first} {second} {WORDS[(i + 7) % len(WORDS)]}" for second in WORDS[i + 1 :]]
    return texts


def write_dataset(directory: Path, *, documents: int = 200) -> Path:
    """A dataset directory whose queries are the first two words of a document, swapped."""
    directory.mkdir(parents=True)
    (directory / "qrels").mkdir()
    rows = [(f"d{i}", text) for i, text in enumerate(document_texts()[:documents])]
    with (directory / "corpus.jsonl").open("w") as file:
        for doc_id, text in rows:
            file.write(json.dumps({"_id": doc_id, "title": "", "text": text}) + "\n")
    with (directory / "queries.jsonl").open("w") as file:
        for i, (_, text) in enumerate(rows):
            first, second, _ = text.split()
            file.write(json.dumps({"_id": f"q{i}", "text": f"{second} {first}"}) + "\n")
    for split, chosen in (("train", lambda i: i % 5), ("dev", lambda i: i % 5 == 0)):
        with (directory / "qrels" / f"{split}.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"q{i}\td{i}\t1\n" for i in range(len(rows)) if chosen(i))
    return directory
