import json
from collections import Counter

import pytest

from tfde.data.pages import Page, Section, read_pages, write_pages
from tfde.errors import ConfigError, CorruptError, DataError
from tfde.pretraining.build_store import build_store, page_store
from tfde.pretraining.link_columns import MAX_PASSAGES
from tfde.pretraining.page_store import PageStore, split_page
from tfde.storage.intake import Intake

LONG = " ".join(["word"] * 25) + "."
PAGES = [
    Page("a", "A", (Section("", ("One. Two.", LONG)), Section("Why?", ("So.",))), ("b", "c", "b")),
    Page("b", "Bé", (Section("", ("Only.",)),), ("a", "b")),
    Page("c", "", (Section("Was ist das?", ("Das. Dies. Jenes.",)), Section("Wo?", ("Da.",)))),
]


@pytest.fixture
def pages(tmp_path):
    write_pages(tmp_path / "pages.jsonl", PAGES)
    return tmp_path / "pages.jsonl"


def same(stored, page):
    expected = split_page(page)
    assert list(stored.passages) == list(expected.passages)
    assert stored._replace(passages=()) == expected._replace(passages=())


def test_pages_come_back_cut(pages, tmp_path):
    store = build_store(pages, tmp_path / "store")
    assert len(store) == 3
    for number, page in enumerate(PAGES):
        same(store.page(number), page)
    assert [store.ict_passages(number).tolist() for number in range(3)] == [[0], [], [0]]
    assert [store.crop_passages(number).tolist() for number in range(3)] == [[1], [], []]
    assert store.ict_counts.tolist() == [1, 0, 1]
    assert store.crop_counts.tolist() == [1, 0, 0]
    assert store.question_counts.tolist() == [1, 0, 2]
    # Links of a page to itself and links twice count once or not at all.
    assert [store.linking_pages(number).tolist() for number in range(3)] == [[1], [0], [0]]
    names = ("pages", "sections", "passages", "sentences", "links")
    assert [store.about[name] for name in names] == [3, 5, 6, 9, 3]
    with pytest.raises(IndexError, match=r"`number` must be in \[0, 3\)\. Received: 3"):
        store.page(0).passages[3]
    assert [passage.text for passage in store.page(0).passages[1:]] == [LONG, "So."]


def test_a_link_belongs_to_its_passages_or_to_those_that_name_the_title(tmp_path):
    cases = (
        "Iron rusts. IRON!",
        "Irony is no iron-y metal",
        "Some iron\u00fcs.",
        "The mercury rises.",
        "Nothing.",
    )
    pages = [
        Page("iron", "Iron", (Section("", ("Of iron.",)),)),
        Page("mercury", "Mercury (metal)", (Section("", ("Of mercury.",)),)),
        Page("none", "", (Section("", ("No title.",)),)),
        Page("p", "P", (Section("", cases),), ("iron", "mercury", "none", "known")),
        Page("known", "Nothing", (Section("", ("k",)),)),
        Page(
            "q",
            "Q",
            (
                Section("", ("Iron.", "A metal.", "It rusts.")),
                Section("S", ("x", "y"), (("known",), ("iron", "known"))),
                Section("T", ("Iron.",)),
            ),
            ("p",),
        ),
    ]
    write_pages(tmp_path / "pages.jsonl", pages)
    store = build_store(tmp_path / "pages.jsonl", tmp_path / "store")
    links = {
        (pages[source].page_id, pages[number].page_id): store.linking_passages(
            number, place
        ).tolist()
        for number in range(len(store))
        for place, source in enumerate(store.linking_pages(number).tolist())
    }
    assert links == {
        ("p", "iron"): [0, 1],
        ("p", "mercury"): [3],
        ("p", "none"): [],
        ("p", "known"): [4],
        # Where the link stands counts, not where the name does.
        ("q", "iron"): [4],
        ("q", "known"): [3, 4],
        ("q", "p"): [],
    }
    names = ("links", "links_in_passages", "links_by_title")
    assert [store.about[name] for name in names] == [7, 2, 3]


def test_a_page_that_names_others_everywhere_takes_no_more_than_some_passages(tmp_path):
    names = [f"John ({number})" for number in range(60)]
    pages = [Page(f"p{number}", name, (Section("", ("x",)),)) for number, name in enumerate(names)]
    hub = Section("", tuple(["John was here. John went."] * 60))
    pages.append(Page("hub", "Hub", (hub,), tuple(page.page_id for page in pages)))
    write_pages(tmp_path / "pages.jsonl", pages)
    store = build_store(tmp_path / "pages.jsonl", tmp_path / "store")
    found = [store.linking_passages(number, 0).tolist() for number in range(60)]
    assert found == [list(range(MAX_PASSAGES))] * 60


def test_an_existing_store_is_used_again_unless_it_is_of_another_file(pages, tmp_path):
    store = page_store(pages, tmp_path / "store")
    written = (tmp_path / "store" / "store.json").stat().st_mtime_ns
    assert page_store(pages, tmp_path / "store").about == store.about
    assert (tmp_path / "store" / "store.json").stat().st_mtime_ns == written
    with pytest.raises(ConfigError, match=r"store: was made with another `language`"):
        page_store(pages, tmp_path / "store", language="de")
    write_pages(pages, PAGES[:2])
    with pytest.raises(ConfigError, match=r"store: was made with another `sha256`"):
        page_store(pages, tmp_path / "store")


def test_a_damaged_store_is_named(pages, tmp_path):
    with pytest.raises(ConfigError, match=r"no: a page store must hold store\.json"):
        PageStore(tmp_path / "no")
    build_store(pages, tmp_path / "store")
    texts = tmp_path / "store" / "texts.data"
    whole = texts.read_bytes()
    texts.write_bytes(whole[:-1])
    message = rf"texts\.data: must have {len(whole)} bytes\. Received: {len(whole) - 1}"
    with pytest.raises(CorruptError, match=message):
        PageStore(tmp_path / "store")
    texts.unlink()
    with pytest.raises(CorruptError, match=r"texts\.data: must have \d+ bytes\. Received: None"):
        PageStore(tmp_path / "store")
    about = tmp_path / "store" / "store.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "version": 99}))
    with pytest.raises(ConfigError, match=r"store\.json: the version must be 2; .* Received: 99"):
        PageStore(tmp_path / "store")


@pytest.mark.parametrize(
    ("bad", "message", "kind", "count"),
    [
        (PAGES[0], r"pages\.jsonl:4: field 'id' must be unique\. Received: 'a'", "id that", 1),
        (
            Page("d", "", (Section("", ("x",)),), ("a", "no", "never")),
            r"pages\.jsonl:4: field 'links' must hold ids of pages of this file\. Received: 'no'",
            "link to nowhere",
            2,
        ),
        (Page("d", "", ()), r"pages\.jsonl:4: a page must have text", "page without text", 1),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_page_is_named_and_skipped_only_when_asked(
    tmp_path, workers, bad, message, kind, count
):
    path = tmp_path / "pages.jsonl"
    write_pages(path, [*PAGES, bad])
    with pytest.raises(DataError, match=message):
        build_store(path, tmp_path / "store", workers=workers)
    assert [file.name for file in tmp_path.iterdir()] == ["pages.jsonl"]
    intake = Intake(skip_bad=True)
    store = build_store(path, tmp_path / "store", workers=workers, intake=intake)
    assert store.about["links"] == (4 if kind == "link to nowhere" else 3)
    assert len(store) == (4 if kind == "link to nowhere" else 3)
    assert {name.startswith(kind): n for name, n in intake.kinds.items()} == {True: count}
    assert store.about["skipped"] == dict(intake.kinds)


def test_a_bad_page_makes_its_links_lead_to_nowhere(tmp_path):
    path = tmp_path / "pages.jsonl"
    write_pages(path, [Page("a", "", (Section("", ("x",)),), ("b",)), Page("b", "", ())])
    intake = Intake(skip_bad=True)
    assert build_store(path, tmp_path / "store", intake=intake).about["links"] == 0
    assert intake.kinds == Counter({"page without text": 1, "link to nowhere": 1})


def test_an_empty_corpus_and_impossible_options_are_refused(tmp_path, pages):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty\.jsonl: must hold at least one page with text"):
        build_store(tmp_path / "empty.jsonl", tmp_path / "store")
    with pytest.raises(ConfigError, match=r"`workers` must be at least 1\. Received: 0"):
        build_store(pages, tmp_path / "store", workers=0)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("")
    with pytest.raises(ConfigError, match=r"store: the output exists and is not empty"):
        build_store(pages, tmp_path / "store")


def test_real_pages_are_the_same_from_one_worker_and_from_two(data_dir, tmp_path):
    path = data_dir / "peps" / "pages.jsonl.gz"
    one = build_store(path, tmp_path / "one")
    two = build_store(path, tmp_path / "two", workers=2)
    files = sorted(file.name for file in one.path.iterdir())
    assert files == sorted(file.name for file in two.path.iterdir())
    for name in files:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    pages = list(read_pages(path))
    for number in range(0, len(pages), 50):
        same(one.page(number), pages[number])
    numbers = {page.page_id: number for number, page in enumerate(pages)}
    linking = {(numbers[page.page_id], numbers[link]) for page in pages for link in page.links}
    expected = {(source, target) for source, target in linking if source != target}
    assert {
        (int(source), target) for target in range(len(one)) for source in one.linking_pages(target)
    } == expected
    assert one.about["links"] == len(expected)
