import gzip
import json

import pytest

from tfde.data.pages import Page, Section, read_pages, write_pages
from tfde.errors import DataError
from tfde.storage.intake import Intake

GOOD = {"id": "a", "title": "A", "sections": [{"heading": "", "passages": ["x"]}], "links": ["b"]}


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_what_was_written_comes_back(tmp_path):
    pages = [
        Page("a", "Ä 汉", (Section("", ("One. Two.",)), Section("H?", ("x", "y"))), ("b",)),
        Page("b", "", (Section("", ("z", "y"), ((), ("a", "c"))), Section("", ("x",))), ("a", "c")),
    ]
    for name in ("pages.jsonl", "pages.jsonl.gz", "pages.jsonl.zst"):
        assert write_pages(tmp_path / name, pages) == 2
        assert list(read_pages(tmp_path / name)) == pages


def test_what_may_be_absent(tmp_path):
    sections = [{"passages": []}, {"passages": ["x"]}]
    path = lines(tmp_path / "p.jsonl", {"id": "a", "sections": sections, "url": 7, "links": None})
    assert list(read_pages(path)) == [Page("a", "", (Section("", ("x",)),), ())]


def test_links_of_passages_are_links_of_the_page(tmp_path):
    sections = [{"passages": ["x", "y"], "links": [["b"], ["c", "b"]]}]
    path = lines(tmp_path / "p.jsonl", {"id": "a", "sections": sections, "links": ["d"]})
    (page,) = read_pages(path)
    assert page.sections[0].links == (("b",), ("c", "b"))
    assert page.links == ("d", "b", "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sections": [{"passages": ["x", "y"], "links": [["b"]]}]},
            r"jsonl:2: field 'links' of a section must have 2 lists, one a passage\. Received: 1",
        ),
        (
            {"sections": [{"passages": ["x"], "links": ["b"]}]},
            r"p\.jsonl:2: field 'links' must be a list\. Received: 'b'",
        ),
        ({"id": ""}, r"p\.jsonl:2: field 'id' must not be empty"),
        ({"id": "a b"}, r"p\.jsonl:2: field 'id' must not hold white space"),
        ({"title": 7}, r"p\.jsonl:2: field 'title' must be a string\. Received: 7"),
        ({"sections": "x"}, r"p\.jsonl:2: field 'sections' must be a list\. Received: 'x'"),
        ({"sections": ["x"]}, r"p\.jsonl:2: field 'sections' must hold objects with 'heading'"),
        ({"sections": [{}]}, r"p\.jsonl:2: field 'passages' is missing"),
        ({"sections": [{"passages": [" "]}]}, r"p\.jsonl:2: field 'passages' must not be empty"),
        ({"sections": []}, r"p\.jsonl:2: a page must have text: a section with a passage\. .*'c'"),
        ({"links": "b"}, r"p\.jsonl:2: field 'links' must be a list\. Received: 'b'"),
        ({"links": [7]}, r"p\.jsonl:2: field 'links' must be a string\. Received: 7"),
    ],
)
def test_a_bad_page_is_named_and_skipped_only_when_asked(tmp_path, change, message):
    path = lines(tmp_path / "p.jsonl", GOOD, {**GOOD, "id": "c", **change}, {**GOOD, "id": "d"})
    with pytest.raises(DataError, match=message) as caught:
        list(read_pages(path))
    assert "\n" not in str(caught.value)
    intake = Intake(skip_bad=True)
    assert [page.page_id for page in read_pages(path, intake)] == ["a", "d"]
    assert intake.skipped == sum(intake.kinds.values()) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "caf\xe9"}', r"p\.jsonl:2: must be UTF-8 \(byte 11 of the line is not\)"),
        (b'{"id": ', r"p\.jsonl:2: must be JSON"),
        (b"[1]", r"p\.jsonl:2: must be a JSON object\. Received: \[1\]"),
    ],
)
def test_a_broken_line_is_named_and_skipped_only_when_asked(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(good + b"\n" + line + b"\n" + good.replace(b'"a"', b'"d"'))
    with pytest.raises(DataError, match=message):
        list(read_pages(path))
    assert len(list(read_pages(path, Intake(skip_bad=True)))) == 2


def test_a_cut_file_is_named_and_read_up_to_the_cut_only_when_asked(tmp_path):
    records = [{**GOOD, "id": f"p{number}", "title": f"{number * 7919}"} for number in range(5000)]
    whole = gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"p\.jsonl\.gz:\d+: the gzip stream must be whole"):
        list(read_pages(path))
    intake = Intake(skip_bad=True)
    found = list(read_pages(path, intake))
    assert 1000 < len(found) < 4000
    # The cut line itself may come out as half a line, which is bad too.
    assert 1 <= intake.skipped <= 2


def test_wrong_compression_is_named(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    with pytest.raises(DataError, match=r"p\.jsonl: is packed with gzip, so its name must end in"):
        list(read_pages(tmp_path / "p.jsonl"))
    lines(tmp_path / "p.jsonl.gz", GOOD)
    with pytest.raises(DataError, match=r"p\.jsonl\.gz:1: the gzip stream must be whole"):
        list(read_pages(tmp_path / "p.jsonl.gz"))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_corpus_is_an_error_even_where_bad_pages_are_skipped(tmp_path, content):
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"p\.jsonl: must hold at least one page with text"):
        list(read_pages(path, Intake(skip_bad=True)))


# Counts as the README and the SOURCE.md files beside the data say.
COUNTS = {
    "wikispeedia": (4592, 48_538, 137_258, 119_615),
    "peps": (702, 10_999, 24_333, 1582),
}
# Number of the page, its id and title, how its text begins, and its last link.
RECORDS = {
    "wikispeedia": [
        (0, "10th_century", "10th century", "As a means of recording the passage", "Viking"),
        (9, "16th_century", "16th century", "As a means of recording", "William_the_Silent"),
        (-1, "€2_commemorative_coins", "€2 commemorative coins", "€2 commemorative coins", "Zeus"),
    ],
    "peps": [
        (0, "pep-0001", "PEP 1: PEP Purpose and Guidelines", "PEP stands for", "pep-0676"),
        (9, "pep-0013", "PEP 13: Python Language Governance", "This PEP defines", "pep-8106"),
        (-1, "pep-8107", "PEP 8107: 2026 Term Steering Council election", "This", "pep-0013"),
    ],
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_pages_whole(data_dir, name):
    pages = list(read_pages(data_dir / name / "pages.jsonl.gz"))
    sections = [section for page in pages for section in page.sections]
    passages = [passage for section in sections for passage in section.passages]
    links = [link for page in pages for link in page.links]
    assert (len(pages), len(sections), len(passages), len(links)) == COUNTS[name]
    for number, page_id, title, start, link in RECORDS[name]:
        page = pages[number]
        assert (page.page_id, page.title, page.links[-1]) == (page_id, title, link)
        assert page.sections[0].passages[0].startswith(start)
