"""Markup that would keep a parser busy for years costs its own page; links stay in the folder."""

import contextlib
import gzip
import os
import pickle

import pytest

from tfde.cli.main import main
from tfde.data import folder_files
from tfde.errors import DataError
from tfde.pretraining.folder import read_folder
from tfde.pretraining.guarded_map import Lost, guarded_map
from tfde.pretraining.mediawiki import MAX_TEXT_CHARACTERS, read_mediawiki
from tfde.storage.intake import Intake

ENDLESS = {"ref": "<ref>" * 40_000, "links": "[http://a " * 40_000}


def dump(path, texts):
    pages = "".join(
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><text>"
        f"{text.replace('&', '&amp;').replace('<', '&lt;')}</text></revision></page>\n"
        for number, (title, text) in enumerate(texts.items(), start=1)
    )
    path.write_text(f"<mediawiki>\n{pages}</mediawiki>\n")
    return path


def test_wikitext_that_takes_too_long_is_a_bad_page(tmp_path):
    texts = {"first": "Some words.", **ENDLESS, "last": "Other words."}
    path = dump(tmp_path / "dump.xml", texts)
    intake = Intake(skip_bad=True)
    pages = list(read_mediawiki(path, intake, workers=2, page_seconds=0.5))
    assert [page.title for page in pages] == ["first", "last"]
    assert intake.kinds == {"page too complex": 2}


def test_the_first_such_page_is_named(tmp_path):
    path = dump(tmp_path / "dump.xml", {"a": ENDLESS["ref"]})
    rule = (
        r"dump.xml:2: the markup must be parsable within 0.5 seconds of processor time. Rec.* 'a'"
    )
    with pytest.raises(DataError, match=rule):
        list(read_mediawiki(path, page_seconds=0.5))


def test_a_page_that_is_too_large_is_a_bad_page(tmp_path):
    path = dump(tmp_path / "dump.xml", {"a": "word " * (MAX_TEXT_CHARACTERS // 4), "b": "Words."})
    intake = Intake(skip_bad=True)
    assert [page.title for page in read_mediawiki(path, intake)] == ["b"]
    assert intake.kinds == {"page too large": 1}


def test_html_that_takes_too_long_or_is_too_large_is_a_bad_page(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text("<p>Some words.")
    (tmp_path / "b.html").write_text("<ul><li>" * 100_000 + "deep words")
    (tmp_path / "c.md").write_bytes(b"word " * (folder_files.MAX_FILE_BYTES // 4))
    intake = Intake(skip_bad=True)
    assert [page.page_id for page in read_folder(tmp_path, intake, page_seconds=1)] == ["a.html"]
    assert intake.kinds == {"page too complex": 1, "page too large": 1}
    with pytest.raises(DataError, match=r"b.html: a file must be parsable within 1 seconds of pro"):
        list(read_folder(tmp_path, page_seconds=1))


def test_links_that_leave_the_folder_are_counted_and_told(tmp_path, caplog, capsys):
    root, outside = tmp_path / "site", tmp_path / "outside"
    for place in (root / "inner", outside):
        place.mkdir(parents=True)
        (place / "page.html").write_text("<p>Words of a page.")
    (root / "out.html").symlink_to(outside / "page.html")
    (root / "gone.html").symlink_to(outside / "nothing.html")
    (root / "folder").symlink_to(outside)
    (root / "again.html").symlink_to("inner/page.html")
    os.mkfifo(root / "pipe.html")  # reading it would never end
    (root / "picture.png").write_bytes(b"")
    intake = Intake()
    pages = [page.page_id for page in read_folder(root, intake)]
    assert pages == ["again.html", "inner/page.html"]
    assert intake.left_out == {
        "symbolic links out of the folder": 2,
        "symbolic links to folders": 1,
        "files of other kinds": 2,
    }
    for name in ("folder", "gone.html", "out.html"):
        assert f"{root / name}: is not followed; it is one of the symbolic links" in caplog.text
    assert main(["make-pages", "--input", str(root), "--output", str(tmp_path / "p.jsonl.gz")]) == 0
    assert "2 symbolic links out of the folder" in capsys.readouterr().out
    assert len(gzip.decompress((tmp_path / "p.jsonl.gz").read_bytes()).splitlines()) == 2


def die(item):
    if item == 3:
        os._exit(9)
    if item == 4:
        raise MemoryError
    if item == 5:
        for number in range(3, 9):  # as code in a parser that was taken over might
            with contextlib.suppress(OSError):
                os.write(number, pickle.dumps(item) + b"\n")
    return item * 2


def test_a_process_that_is_lost_costs_the_item_at_work():
    chunks = [[1, 2, 3], [4, 5], [6], [(7, 8)]]
    found = [answer for chunk in guarded_map(die, chunks, workers=2, seconds=5) for answer in chunk]
    assert [answer for _, answer in found] == [
        2,
        4,
        Lost("by a process of its own, which ended with 9"),
        Lost("within 4 GiB of memory"),
        Lost("by a process of its own, which ended with -9"),
        12,
        [7, 8, 7, 8],
    ]
