import os
import shutil
from pathlib import Path

import pytest

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.folder_files import MAX_FILE_BYTES
from tfde.types import Document

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "plain_text.txt").write_bytes(b"\xef\xbb\xbfOne.\r\n\r\n# no heading\r\n")
    (folder / "a.md").write_text(
        "---\ntitle: front\n---\n\n# The C# language #\n\nText.\n\n## Part\n"
    )
    (folder / "sub dir" / "b.markdown").write_text("Intro.\n\n# Later\n")
    (folder / "sub dir" / "c.rst").write_text("#hashtag\n")
    (folder / "only.md").write_text("# A title\n")
    (folder / ".hidden.md").write_text("hidden")
    (folder / "page.html").write_text("<p>text")
    return folder


def convert(*arguments):
    return main(["convert", *map(str, arguments)])


def test_each_text_file_is_a_document(notes, tmp_path, capsys):
    assert convert("--format", "folder", "--input", notes, "--output", tmp_path / "d") == 0
    assert list(DatasetDirectory(tmp_path / "d").documents()) == [
        Document("a.md", "The C# language", "Text.\n\n## Part"),
        Document("plain_text.txt", "plain text", "One.\n\n# no heading"),
        Document("sub%20dir/b.markdown", "b", "Intro.\n\n# Later"),
        Document("sub%20dir/c.rst", "c", "#hashtag"),
    ]
    said = capsys.readouterr().out
    assert "4 documents, 0 queries" in said
    assert "files of other kinds 1" in said
    assert "files without text 1" in said


def test_one_file_is_a_document(notes, tmp_path):
    file = notes / "plain_text.txt"
    assert convert("--format", "folder", "--input", file, "--output", tmp_path / "d") == 0
    [document] = DatasetDirectory(tmp_path / "d").documents()
    assert document.doc_id == "plain_text.txt"


def test_files_that_cannot_be_read_are_named(notes, tmp_path, capsys):
    (notes / "latin.txt").write_bytes("gut\ngrün".encode("latin-1"))
    (notes / "long.txt").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    arguments = "--format", "folder", "--input", notes, "--output", tmp_path / "d"
    assert convert(*arguments) == 1
    assert "latin.txt:2: must be UTF-8 (byte 6 of the file is not)" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
    assert convert(*arguments, "--skip_bad") == 0
    said = capsys.readouterr()
    assert "2 bad records skipped" in said.out
    assert "long.txt: a file must have at most 16 MiB" in said.err
    assert len(list(DatasetDirectory(tmp_path / "d").documents())) == 4


def test_a_folder_without_text_files_says_what_reads_html(notes, tmp_path, capsys):
    for file in [*notes.glob("*.md"), *notes.glob("*.txt")]:
        file.unlink()
    shutil.rmtree(notes / "sub dir")
    assert convert("--format", "folder", "--input", notes, "--output", tmp_path / "d") == 1
    assert "tfde make-pages" in capsys.readouterr().err


def test_pages_are_documents_with_their_headings(tmp_path):
    (tmp_path / "site").mkdir()
    page = "<h1>A page</h1><p>One.</p><p>Two.</p><h2>Part</h2><p>Three.</p>"
    (tmp_path / "site" / "a.html").write_text(page)
    pages = tmp_path / "pages.jsonl"
    assert main(["make-pages", "--input", str(tmp_path / "site"), "--output", str(pages)]) == 0
    assert convert("--format", "pages", "--input", pages, "--output", tmp_path / "d") == 0
    assert list(DatasetDirectory(tmp_path / "d").documents()) == [
        Document("a.html", "A page", "One.\n\nTwo.\n\n## Part\n\nThree.")
    ]


def test_the_projects_own_pages_are_read(tmp_path):
    assert convert("--format", "folder", "--input", DOCS, "--output", tmp_path / "d") == 0
    documents = {d.doc_id: d for d in DatasetDirectory(tmp_path / "d").documents()}
    assert sorted(documents) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    source = (DOCS / "data.md").read_text()
    assert f"# {documents['data.md'].title}\n" in source
    assert documents["data.md"].text in source


def test_a_file_name_may_be_no_text(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / os.fsdecode(b"\xe9t\xe9.txt")).write_text("warm")
    arguments = "--format", "folder", "--input", tmp_path / "in", "--output", tmp_path / "d"
    assert convert(*arguments) == 0
    (document,) = DatasetDirectory(tmp_path / "d").documents()
    assert document.doc_id == "%E9t%E9.txt"
