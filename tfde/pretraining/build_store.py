"""From a file of pages to a page store, streamed, on one process or several."""

from __future__ import annotations

import contextlib
import functools
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.batched import batched
from tfde.data.ids import KnownIds, key_of
from tfde.data.pages import Page, empty_corpus, fault_kind, parse_page
from tfde.errors import ConfigError, DataError, require
from tfde.pretraining.guarded_map import ordered_map
from tfde.pretraining.link_columns import LINK, write_links
from tfde.pretraining.page_store import (
    NUMBER,
    STORE_FILE,
    STORE_VERSION,
    PageStore,
    RaggedWriter,
    read_about,
    split_page,
)
from tfde.pretraining.tasks import has_ict, has_span_crop
from tfde.progress import progress_bar
from tfde.storage.atomic import atomic_directory
from tfde.storage.compressed import read_lines
from tfde.storage.files import sha256
from tfde.storage.intake import Intake

_LINES_A_CHUNK = 32
_RAGGED = ("page_ids", "titles", "page_passages", "texts", "sentences", "questions", "headings")
_FLAT = ("num_first", "ict_counts", "crop_counts", "croppable")


def page_store(
    pages: str | Path,
    directory: str | Path,
    *,
    language: str = "en",
    workers: int = 1,
    intake: Intake | None = None,
) -> PageStore:
    """Returns the page store in `directory`, which is built first if there is none.

    Args:
        pages: The file of pages.
        directory: Where the store lies or is to lie.
        language: As `build_store`.
        workers: As `build_store`.
        intake: As `build_store`; of an existing store it counts what was skipped then.

    Raises:
        ConfigError: a store stands there that was made of another file or in another language.
        DataError: as `build_store`.
    """
    if not (Path(directory) / STORE_FILE).is_file():
        return build_store(pages, directory, language=language, workers=workers, intake=intake)
    about = read_about(Path(directory))
    for name, value in _origin(Path(pages), language).items():
        if about[name] != value:
            raise ConfigError(
                f"{directory}: was made with another `{name}`; remove it or choose another"
                f" directory. Received: {value!r}, there {about[name]!r}"
            )
    if intake is not None:
        intake.kinds.update(about["skipped"])
        intake.skipped += sum(about["skipped"].values())
    return PageStore(directory)


def build_store(
    pages: str | Path,
    directory: str | Path,
    *,
    language: str = "en",
    workers: int = 1,
    intake: Intake | None = None,
) -> PageStore:
    """Cuts a file of pages into sentences and writes them as a page store.

    The store appears whole or not at all, and is the same whatever the number of workers. In
    memory are a few pages a worker, some 30 bytes a page and, at the end, 70 bytes a link, and 12
    more for each passage that names the linked page.

    Args:
        pages: The file of pages, as `tfde.data.pages.read_pages` reads it.
        directory: Where the store is to lie.
        language: ISO 639 code of the pages' language, for the sentences.
        workers: Processes that parse and cut.
        intake: Takes bad pages and links to nowhere; `None` raises the first.

    Raises:
        ConfigError: `directory` holds something; `workers` is below 1.
        DataError: as `read_pages`; an id comes twice; a link leads to no page of the file.
    """
    require(workers >= 1, "workers", "at least 1", workers)
    path, intake = Path(pages), intake or Intake()
    with atomic_directory(directory) as temporary:
        counts = _write_pages(path, temporary, language, workers, intake)
        about = {
            "version": STORE_VERSION,
            **counts,
            **_origin(path, language),
            "file": path.name,
            "skipped": dict(intake.kinds),
            "files": {file.name: file.stat().st_size for file in sorted(temporary.iterdir())},
        }
        (temporary / STORE_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return PageStore(directory)


class _CutPage(NamedTuple):
    """What a page adds to the store's columns."""

    line: int
    page_id: str
    rows: dict[str, tuple[list[int], bytes]]
    flat: dict[str, bytes]
    links: bytes
    counts: tuple[int, int, int]


class _Fault(NamedTuple):
    """A `DataError` on its way from a worker."""

    line: int
    rule: str
    value: object


def _origin(path: Path, language: str) -> dict[str, str]:
    splitter = f"sentencex {version('sentencex')}"
    return {"sha256": sha256(path), "language": language, "splitter": splitter}


def _write_pages(
    path: Path, directory: Path, language: str, workers: int, intake: Intake
) -> dict[str, int]:
    """Writes all columns; returns the counts."""
    counts: Counter[str] = Counter()
    seen, keys, link_counts = KnownIds(), array("q"), array("q")
    links_file = directory / "links.tmp"
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(RaggedWriter(directory, name)) for name in _RAGGED}
        files = {
            name: stack.enter_context(open(directory / f"{name}.data", "wb")) for name in _FLAT
        }
        links = stack.enter_context(open(links_file, "wb"))
        progress = stack.enter_context(progress_bar(desc=path.name, unit=" pages"))
        for page in _cut_pages(path, language, workers, intake):
            if not seen.add(page.page_id):
                rule = "field 'id' must be unique."
                intake.bad(DataError(path, page.line, rule, page.page_id), "id that comes twice")
                continue
            keys.append(key_of(page.page_id))
            for name, (lengths, data) in page.rows.items():
                writers[name].append(lengths, data)
            for name, data in page.flat.items():
                files[name].write(data)
            links.write(page.links)
            link_counts.append(len(page.links) // LINK.itemsize)
            names = ("sections", "passages", "sentences")
            counts.update(dict(zip(names, page.counts, strict=True)))
            progress.update()
    if not keys:
        raise empty_corpus(path)
    targets = np.fromfile(links_file, LINK)
    links_file.unlink()
    sources = np.repeat(np.arange(len(keys)), np.array(link_counts))
    numbers = _page_numbers(path, np.array(keys), targets["target"], intake)
    known = numbers >= 0
    found = write_links(directory, sources[known], numbers[known], targets["passage"][known])
    return {"pages": len(keys), **counts, **found}


def _cut_pages(path: Path, language: str, workers: int, intake: Intake) -> Iterator[_CutPage]:
    lines = read_lines(path, intake)
    chunks = batched(lines, _LINES_A_CHUNK)
    cut = functools.partial(_cut_chunk, path, language)
    for pages in ordered_map(cut, chunks, workers=workers):
        for page in pages:
            if isinstance(page, _Fault):
                intake.bad(DataError(path, *page), fault_kind(page.rule))
            else:
                yield page


def _cut_chunk(path: Path, language: str, lines: list[tuple[int, str]]) -> list[_CutPage | _Fault]:
    """Parses and cuts a few lines; runs in a worker."""
    pages: list[_CutPage | _Fault] = []
    for number, line in lines:
        try:
            pages.append(_cut_page(path, language, number, line))
        except DataError as error:
            pages.append(_Fault(number, error.rule, error.value))
    return pages


def _cut_page(path: Path, language: str, number: int, line: str) -> _CutPage:
    page = parse_page(path, number, line)
    split = split_page(page, language=language)
    sentences = [np.array(passage.sentences, NUMBER) for passage in split.passages]
    bounds = np.array([(start, stop) for _, start, stop in split.questions], NUMBER)
    crops = [has_span_crop(passage) for passage in split.passages]
    rows = {
        "page_ids": _texts([page.page_id]),
        "titles": _texts([page.title]),
        "page_passages": ([len(split.passages)], b""),
        "texts": _texts([passage.text for passage in split.passages]),
        "sentences": (
            [spans.size for spans in sentences],
            b"".join(spans.tobytes() for spans in sentences),
        ),
        "questions": ([bounds.size], bounds.tobytes()),
        "headings": _texts([question.heading for question in split.questions]),
    }
    flat = {
        "num_first": NUMBER.type(split.num_first).tobytes(),
        "ict_counts": NUMBER.type(sum(map(has_ict, split.passages))).tobytes(),
        "crop_counts": NUMBER.type(sum(crops)).tobytes(),
        "croppable": bytes(crops),
    }
    links = np.array(
        [(key_of(target), place) for target, place in _links(page) if target != page.page_id], LINK
    ).tobytes()
    total = sum(len(passage.sentences) for passage in split.passages)
    return _CutPage(
        number, page.page_id, rows, flat, links, (len(page.sections), len(split.passages), total)
    )


def _texts(texts: Iterable[str]) -> tuple[list[int], bytes]:
    encoded = [text.encode() for text in texts]
    return [len(text) for text in encoded], b"".join(encoded)


def _links(page: Page) -> Iterator[tuple[str, int]]:
    """Yields each page that `page` links to with each passage that does, -1 where none is known."""
    rows = [
        row for section in page.sections for row in section.links or ((),) * len(section.passages)
    ]
    known = {target for row in rows for target in row}
    for place, row in enumerate(rows):
        yield from ((target, place) for target in dict.fromkeys(row))
    yield from ((target, -1) for target in dict.fromkeys(page.links) if target not in known)


def _page_numbers(path: Path, keys: np.ndarray, targets: np.ndarray, intake: Intake) -> np.ndarray:
    """Returns the number of the page that each link leads to, -1 for nowhere.

    Args:
        path: The file of pages.
        keys: Key of each page.
        targets: Key of the page that each link leads to.
        intake: Takes links to nowhere.
    """
    order = np.argsort(keys)
    places = np.searchsorted(keys, targets, sorter=order)
    numbers = order[np.minimum(places, len(keys) - 1)]
    known = keys[numbers] == targets
    if not known.all():
        error = _dead_link(path, set(targets[~known].tolist()))
        intake.bad(error, "link to nowhere", int(np.count_nonzero(~known)))
    return np.where(known, numbers, -1)


def _dead_link(path: Path, keys: set[int]) -> DataError:
    """Returns the error that names the first link to one of `keys`; only reading again finds it."""
    for number, line in read_lines(path, Intake(skip_bad=True)):
        with contextlib.suppress(DataError):
            for target in parse_page(path, number, line).links:
                if key_of(target) in keys:
                    rule = "field 'links' must hold ids of pages of this file."
                    return DataError(path, number, rule, target)
    return DataError(path, None, "every link must lead to a page of this file.")
