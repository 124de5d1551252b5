import hashlib
import os

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pages import Page, Section
from tfde.data.pairs.read_pairs import read_pairs
from tfde.demo.demo_dataset import CLOZES_FILE, SUMMARIES_FILE, demo_dataset
from tfde.errors import ConfigError
from tfde.storage.json_lines import read_json_lines

PAIRS = (SUMMARIES_FILE, CLOZES_FILE)
PARTS = ["arm", "eye", "ear", "leg", "toe", "lip", "hip", "rib", "jaw", "gum", "chin", "shin"]
NUMBERS = ["one", "two", "three", "four", "five", "six"]
NUMBERS += ["seven", "eight", "nine", "ten", "eleven", "twelve"]


def page(name, summary, *, extra=""):
    own = " ".join(f"{name}{part}" for part in PARTS)
    body = f"The body speaks of {own} at length. It ends with {name} again."
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


def test_held_out_pages_stand_in_the_corpus_without_the_summary_that_asks_for_them(pages, tmp_path):
    counts, served = demo_dataset(pages, tmp_path / "d", num_dev=2, num_test=3)
    dataset = DatasetDirectory(tmp_path / "d")
    dataset.validate()
    assert (counts.documents, counts.dev_queries, counts.test_queries) == (16, 2, 3)
    assert counts.document_words == sum(len(document.text.split()) for document in served)
    assert [document.doc_id for document in served] == [page.page_id for page in pages]
    assert len(list(read_json_lines(tmp_path / "d" / "pages.jsonl.gz"))) == 16
    body = (
        "More of one stands in the very same paragraph.\n"
        f"The body speaks of {' '.join(f'one{part}' for part in PARTS)} at length. It ends with one"
        " again.\n"
        "Returns: What comes back from one."
    )
    queries = {query.query_id: query.text for query in dataset.queries()}
    held_out = {doc_id for split in ("dev", "test") for doc_id in judged(dataset, split)}
    assert sorted(dataset.splits) == ["dev", "test"]
    assert set(queries) == {f"q-{doc_id}" for doc_id in held_out}
    for whole, there in zip(served, dataset.documents(), strict=True):
        summary = "Does what number" in whole.text
        assert summary or whole.doc_id not in held_out
        if whole.doc_id in held_out:
            assert whole.text.startswith(queries[f"q-{whole.doc_id}"] + " ")
            assert there.text == whole.text.removeprefix(queries[f"q-{whole.doc_id}"] + " ")
        else:
            assert there == whole
    assert served[0].title == "shop.one"
    assert served[0].text == f"Does what number one does. {body}"


def judged(dataset, split):
    return [doc_id for found in dataset.qrels(split).values() for doc_id in found]


def test_nothing_of_a_held_out_page_is_trained_on(pages, tmp_path):
    demo_dataset(pages, tmp_path / "d", num_dev=2, num_test=4)
    dataset = DatasetDirectory(tmp_path / "d")
    held_out = {*judged(dataset, "dev"), *judged(dataset, "test")}
    assert len(held_out) == 6
    # Two pages with one summary would make either answer right.
    assert not held_out & {"shop.alpha", "shop.beta", "shop.headed", "shop.short"}
    pairs = [pair for name in PAIRS for pair in read_pairs(tmp_path / "d" / name)]
    trained = {pair.positive.title for pair in pairs}
    assert not trained & held_out
    assert trained | held_out == {page.page_id for page in pages} - {"shop.headed", "shop.short"}


def test_pages_that_say_nearly_the_same_are_not_held_out(pages, tmp_path):
    # Nearly the summary of one page and nearly the whole text of two: a copy of what would be
    # held out could be trained on, and would be as right an answer.
    words = [f"colour{number}" for number in range(13)]
    near = Section("", (f"Paints {' and '.join(words[:9])}.", f"Takes {' then '.join(words)}."))
    nearly = near._replace(passages=(near.passages[0], near.passages[1].replace("colour12", "tin")))
    similar = Section("", ("Does what number one does now.", "Speaks of nothing else. " * 5))
    extra = [
        Page(f"shop.{n}", f"shop.{n}", (s,))
        for n, s in zip("xyz", (near, nearly, similar), strict=True)
    ]
    demo_dataset([*pages, *extra], tmp_path / "d", num_dev=1, num_test=4, seed=1)
    dataset = DatasetDirectory(tmp_path / "d")
    for seed in range(5):
        demo_dataset(
            [*pages, *extra], tmp_path / "d", num_dev=1, num_test=4, seed=seed, overwrite=True
        )
        held_out = {*judged(dataset, "dev"), *judged(dataset, "test")}
        assert not held_out & {"shop.x", "shop.y", "shop.z", "shop.one"}


def test_a_cloze_is_a_sentence_for_the_rest_without_it(pages, tmp_path):
    counts, served = demo_dataset(pages, tmp_path / "d", num_dev=1, num_test=1)
    whole = {document.title: document.text for document in served}
    assert len(read_pairs(tmp_path / "d" / PAIRS[0])) == counts.summary_pairs == 12
    clozes = read_pairs(tmp_path / "d" / PAIRS[1])
    assert len(clozes) == counts.cloze_pairs == 2 * 12
    for query, positive, *_ in clozes:
        text = whole[positive.title]
        summary = text.split(". ")[0] + "."
        assert query.text in text
        assert query.text not in positive.text
        assert summary not in positive.text
        words = f"{summary} {query.text} {positive.text}".split()
        assert sorted(words) == sorted(text.split())


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("csv.DictReader", "csv.DictReader (dict reader)"),
        ("shutil.copytree", "shutil.copytree"),
        ("keras.ReduceLROnPlateau", "keras.ReduceLROnPlateau (reduce lr on plateau)"),
        ("keras.layers.Conv2D", "keras.layers.Conv2D (conv 2d)"),
        ("os.walk", "os.walk"),
        ("OrderedDict.move_to_end", "OrderedDict.move_to_end (ordered dict move to end)"),
        ("zipfile.Path", "zipfile.Path"),
    ],
)  # fmt: skip
def test_a_title_has_the_words_of_its_name(pages, tmp_path, name, title):
    page = Page(name, name, (Section("", ("Does something.",)),))
    _, served = demo_dataset([*pages, page], tmp_path / "d", num_dev=1, num_test=1)
    assert (served[-1].doc_id, served[-1].title) == (name, title)


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
    assert other["pages.jsonl.gz"] == first["pages.jsonl.gz"]
    assert all(other[name] != first[name] for name in PAIRS)
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
