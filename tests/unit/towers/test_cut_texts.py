"""How many texts a model cuts, and what they lose: counted where they are tokenized anyway."""

import pytest
import tiny
from tokenizers import Tokenizer

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.dataset import PairDataset
from tfde.text.cut_texts import cut_line
from tfde.text.preprocessor import cut_counts
from tfde.towers.checkpoint_rules import load_preprocessor
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import WEIGHTS_FILE
from tfde.types import Document, Pair, Query

# A query may have 8 tokens and a document 16, two of them special: 6 and 14 words.
LONG = "red green blue yellow black white apple pear"


def test_what_encoding_cuts():
    model = tiny.dual_encoder()
    assert cut_line(model.cut_texts()) == ""
    model.encode_queries(["red", "", LONG], batch_size=2)
    model.encode_documents([Document("d", "cat", LONG)] * 3)
    assert cut_line(model.cut_texts()) == (
        "1 of 3 queries (33.3%) cut at 8 tokens, which lost 25.0% of theirs;"
        " none of 3 documents cut at 16 tokens"
    )
    model.encode_queries([LONG])
    # Another length is counted apart: 9 words, of which 3 stay.
    model.encode_documents([Document("d", "cat", LONG)] * 2, max_length_tokens=5)
    queries, documents, shorter = model.cut_texts()
    assert (queries.texts, queries.cut, queries.tokens, queries.lost) == (4, 2, 16, 4)
    assert (documents.texts, documents.cut) == (3, 0)
    assert (shorter.texts, shorter.cut, shorter.tokens, shorter.lost) == (2, 2, 18, 12)
    assert shorter.max_length_tokens == 5


def test_what_training_cuts(caplog):
    model = tiny.dual_encoder()
    short, long = Document("s", "", "cat"), Document("l", "cat", f"{LONG} {LONG}")
    rows = [
        Pair(Query("1", "red"), short, (long,), ("s",)),
        Pair(Query("2", LONG), long, (), ("l",)),
        Pair(Query("3", "blue"), short, (), ("s",)),
    ]
    batches = PairDataset(rows, batch_size=3, negatives_per_query=1, shuffle=False)
    model.compile("sgd")
    with caplog.at_level("INFO", logger="tfde"):
        model.fit(batches, epochs=2, verbose=0)
    queries, documents = model.trained_texts()
    assert (queries.texts, queries.cut, queries.tokens, queries.lost) == (6, 2, 16, 4)
    # Of three places for a negative one is taken; 17 tokens of a long document, 14 stay.
    assert (documents.texts, documents.cut, documents.tokens, documents.lost) == (8, 4, 68, 12)
    assert caplog.messages[-1] == (
        "in training: 2 of 6 queries (33.3%) cut at 8 tokens, which lost 25.0% of theirs; 4 of 8"
        " documents (50.0%) cut at 16 tokens, which lost 17.6% of theirs"
    )


@pytest.mark.peers
def test_tokens_are_counted_as_their_own_library_does(minilm, data_dir):
    texts = [document.text for document in DatasetDirectory(data_dir / "covid_faq").documents()]
    theirs = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    lengths = [len(row.ids) for row in theirs.encode_batch(texts)]
    preprocessor = load_preprocessor(minilm)
    *_, found = preprocessor.measured_documents([""] * len(texts), texts)
    cut = [length for length in lengths if length > 256]
    tokens, lost = sum(cut) - 2 * len(cut), sum(cut) - 256 * len(cut)
    assert cut_counts(found).numpy().tolist() == [len(texts), len(cut), tokens, lost]
    assert 0 < len(cut) < len(texts)


def test_a_preprocessor_without_its_model(tmp_path):
    model = tiny.dual_encoder(tiny.BERT)
    model.save_to_preset(tmp_path / "ours")
    (tmp_path / "ours" / WEIGHTS_FILE).unlink()  # none is read
    ours = load_preprocessor(tmp_path / "ours")
    assert ours.fingerprint_bytes() == model.preprocessor.fingerprint_bytes()


@pytest.mark.peers
def test_a_preprocessor_of_a_checkpoint(minilm):
    whole = DualEncoder.load(minilm).preprocessor
    assert load_preprocessor(minilm).fingerprint_bytes() == whole.fingerprint_bytes()
