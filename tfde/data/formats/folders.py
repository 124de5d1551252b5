"""Texts that nobody has asked anything about: folders of files, and files of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from tfde.data.folder_files import (
    MARKDOWN_SUFFIXES,
    encoding_error,
    files_within,
    read_bounded,
    title_of,
    without_front_matter,
)
from tfde.data.formats.records import Source
from tfde.data.pages import read_pages
from tfde.errors import DataError
from tfde.storage.intake import Intake
from tfde.types import Document

SUFFIXES = (".txt", ".rst", *MARKDOWN_SUFFIXES)


def read(sources: Sequence[Source], intake: Intake) -> Iterator[Document]:
    """Yields a document for each text and Markdown file of folders, in the order of their paths.

    Its id is the path in the folder, as it would stand in a URL; its title the heading that a
    Markdown file begins with, else the file's name without its suffix; its text what else the file
    holds, as it stands there, without Markdown's front matter. Files without text are left out and
    counted, as are files of other kinds; see `files_within`.

    Args:
        sources: Folders, or files.
        intake: The place, and what becomes of bad files.

    Raises:
        DataError: a file is not UTF-8, or larger than `MAX_FILE_BYTES`; there is none with text.
    """
    for source in sources:
        intake.at(source.path)
        skipped, found = intake.skipped, False
        alone = source.path.is_file()
        root = source.path.parent if alone else source.path
        names = [source.path.name] if alone else files_within(root, SUFFIXES, intake)
        for name in names:
            intake.at(root / name)
            document = intake.take(_document, root, name)
            if document is None:
                continue
            if document.text:
                found = True
                yield document
            else:
                intake.leave_out("files without text")
        if not found and intake.skipped == skipped:
            rule = f"must hold a file of {', '.join(SUFFIXES)} with text."
            rule += " HTML becomes pages first: `tfde make-pages`, then `--format pages`."
            raise DataError(source.path, None, rule)


def read_page_files(sources: Sequence[Source], intake: Intake) -> Iterator[Document]:
    """Yields a document for each page of files of pages: its headings, `## ...`, and passages.

    Raises:
        DataError: as `tfde.data.pages.read_pages`.
    """
    for source in sources:
        for page in read_pages(source.path, intake):
            parts: list[str] = []
            for section in page.sections:
                parts += [f"## {section.heading}"] if section.heading else []
                parts += section.passages
            yield Document(page.page_id, page.title, "\n\n".join(parts))


def _document(root: Path, name: str) -> Document:
    path = root / name
    raw = read_bounded(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise encoding_error(path, raw, "UTF-8", error.start) from error
    text = text.replace("\r\n", "\n")
    title = title_of(name)
    if path.suffix.lower() in MARKDOWN_SUFFIXES:
        text = without_front_matter(text).lstrip()
        line, _, rest = text.partition("\n")
        heading = line[2:].rstrip().rstrip("#").strip() if line.startswith("# ") else ""
        if heading:
            title, text = heading, rest
    return Document(quote(os.fsencode(name)), title, text.strip())
