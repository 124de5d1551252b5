import hashlib
import os

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.json_lines import read_json_lines
from tfde.data.pages import Page, Section
from tfde.data.read_pairs import read_pairs
from tfde.demo.demo_dataset import demo_dataset
from tfde.errors import ConfigError

NUMBERS = ["one", "two", "three", "four", "five", "six"]
NUMBERS += ["seven", "eight", "nine", "ten", "eleven", "twelve"]


def page(name, summary, *, extra=""):
    body = f"The body of {name} speaks of its own matters at length. It ends with {name} again."
    sections = (
        Section("", (f"{summary} More of {name} stands in the very same paragraph.", body)),
        Section("Returns", (f"What comes back from {name}{extra}.",)),
    )
    return Page(f"shop.{name}", f"shop.{name}", sections)


@pytest.fixture
def pages():
    return [
        *(page(name, f"Does what number {name} does.") for name in NUMBERS),
        page("alpha", "Does the very same thing."),
        page("beta", "Does the very same thing."),
        Page("shop.short", "shop.short", (Section("", ("Has a summary and no body.",)),)),
        Page("shop.headed", "shop.headed", (Section("Notes", ("It has no summary, " * 3,)),)),
    ]


def test_documents_lack_their_summary_and_queries_are_the_summaries(pages, tmp_path):
    counts = demo_dataset(pages, tmp_path / "d", num_dev=2, num_test=3)
    dataset = DatasetDirectory(tmp_path / "d")
    dataset.validate()
    store = dataset.document_store()
    assert len(store) == counts.documents == 15
    assert "shop.short" not in store
    assert store["shop.one"] == (
        "shop.one",
        "shop.one",
        "More of one stands in the very same paragraph. The body of one speaks of its own matters"
        " at length. It ends with one again. Returns: What comes back from one.",
    )
    queries = {query.query_id: query.text for query in dataset.queries()}
    assert queries["q-shop.one"] == "Does what number one does."
    for split, count in (("train", 9), ("dev", 2), ("test", 3)):
        qrels = dataset.qrels(split)
        assert len(qrels) == count
        assert all(judged == {query_id[2:]: 1} for query_id, judged in qrels.items())
    assert (counts.summary_pairs, counts.dev_queries, counts.test_queries) == (9, 2, 3)
    assert counts.document_words == sum(len(d.text.split()) for d in store.values())
    assert len(list(read_json_lines(tmp_path / "d" / "pages.jsonl.gz"))) == counts.pages == 16


def test_nothing_of_a_held_out_page_is_trained_on(pages, tmp_path):
    demo_dataset(pages, tmp_path / "d", num_dev=2, num_test=4)
    dataset = DatasetDirectory(tmp_path / "d")
    held_out = {
        doc_id
        for split in ("dev", "test")
        for judged in dataset.qrels(split).values()
        for doc_id in judged
    }
    assert len(held_out) == 6
    # Two pages with one summary would make either answer right.
    assert not held_out & {"shop.alpha", "shop.beta", "shop.headed"}
    titles = {pair.positive.title for pair in read_pairs(tmp_path / "d" / "pairs.jsonl.gz")}
    assert not titles & held_out
    assert titles | held_out == set(dataset.document_store()) - {"shop.headed"}


def test_a_cloze_is_a_sentence_for_the_body_without_it(pages, tmp_path):
    counts = demo_dataset(pages, tmp_path / "d", num_dev=1, num_test=1)
    store = DatasetDirectory(tmp_path / "d").document_store()
    pairs = read_pairs(tmp_path / "d" / "pairs.jsonl.gz")
    assert len(pairs) == counts.summary_pairs + counts.cloze_pairs
    clozes = [pair for pair in pairs if not pair.query.text.startswith("Does ")]
    assert len(clozes) == counts.cloze_pairs == 2 * 12
    for query, positive, *_ in clozes:
        whole = store[positive.title].text
        assert query.text in whole
        assert query.text not in positive.text
        assert sorted((query.text + " " + positive.text).split()) == sorted(whole.split())


def test_seed_decides_everything(pages, tmp_path):
    def digests(name, seed):
        demo_dataset(pages, tmp_path / name, seed=seed, num_dev=2, num_test=3)
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((tmp_path / name).rglob("*.*"))
        }

    first = digests("a", 1)
    assert digests("b", 1) == first
    other = digests("c", 2)
    assert other["corpus.jsonl.gz"] == first["corpus.jsonl.gz"]
    assert other["pairs.jsonl.gz"] != first["pairs.jsonl.gz"]
    assert other["test.tsv"] != first["test.tsv"]


def test_too_few_pages_are_refused(pages, tmp_path):
    with pytest.raises(ConfigError, match=r"`pages` must have at least 14 .* Received: 12"):
        demo_dataset(pages, tmp_path / "d", num_dev=3, num_test=4)
    assert os.listdir(tmp_path) == []


def test_existing_output_is_kept(pages, tmp_path):
    demo_dataset(pages, tmp_path / "d", num_dev=1, num_test=1)
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        demo_dataset(pages, tmp_path / "d", num_dev=1, num_test=1)
    demo_dataset(pages, tmp_path / "d", num_dev=1, num_test=1, overwrite=True)
