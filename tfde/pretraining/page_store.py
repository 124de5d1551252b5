"""Pages cut into passages and sentences, on the disk: any of them is read in microseconds.

The tasks need pages in random order, and for links two at a time. A file of pages gives them in
its own order only, and cutting sentences costs far more than drawing a pair. So pages are cut once
(`tfde.pretraining.build_store`) and their parts lie in flat files that are mapped: resident are
only the parts in use, and several processes share them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from tfde.data.pages import Page
from tfde.data.sentences import split_sentences
from tfde.errors import ConfigError, CorruptError

STORE_FILE = "store.json"
STORE_VERSION = 2
NUMBER = np.dtype("<i4")
_START = np.dtype("<i8")
_QUESTION_MARKS = ("?", "？", "؟")


class Passage(NamedTuple):
    """A paragraph and where each of its sentences starts and ends, white space left out."""

    text: str
    sentences: tuple[tuple[int, int], ...]


class Question(NamedTuple):
    """A heading that asks, and the first and last (exclusive) passage that answer it."""

    heading: str
    start: int
    stop: int


class SplitPage(NamedTuple):
    """A page as the tasks see it.

    `passages` are those of all sections in their order, `num_first` is how many of them are the
    first section, `questions` are the sections whose heading is a question.
    """

    page_id: str
    title: str
    passages: Sequence[Passage]
    num_first: int
    questions: Sequence[Question]


def split_page(page: Page, *, language: str = "en") -> SplitPage:
    """Returns the page cut into sentences.

    Args:
        page: The page; every section has a passage.
        language: ISO 639 code; languages unknown to sentencex are cut as their relatives are.
    """
    passages: list[Passage] = []
    questions = []
    num_first = 0
    for section in page.sections:
        start = len(passages)
        passages += [Passage(text, split_sentences(text, language)) for text in section.passages]
        if section.heading.rstrip().endswith(_QUESTION_MARKS):
            questions.append(Question(section.heading.strip(), start, len(passages)))
        num_first = num_first or len(passages)
    return SplitPage(page.page_id, page.title, passages, num_first, questions)


class PageStore:
    """Pages cut into sentences, with the pages that link to each.

    Args:
        directory: What `build_store` wrote.

    Raises:
        ConfigError: there is no page store in `directory`, or one of another version.
        CorruptError: a file is missing or of another size than was written.

    Attributes:
        about: What `store.json` says: counts of pages, sections, passages, sentences and links,
            what was left out, the file of pages and its sha256, the language; of the links, how
            many stand in a passage that is known (`links_in_passages`), and of the others, how
            many in a page with a passage that names the title (`links_by_title`).
        page_passages: Where each page's passages start, (pages + 1,) int64.
        ict_counts: Passages of at least two sentences of each page, (pages,) int32.
        crop_counts: Passages long enough for span cropping of each page, (pages,) int32.
        question_counts: Headings that are questions of each page, (pages,) int64.
        link_counts: How many other pages link to each page, (pages,) int64.
    """

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory)
        self.about = read_about(self.path)
        for name, size in self.about["files"].items():
            file = self.path / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                raise CorruptError(f"{file}: must have {size} bytes. Received: {found}")
        self._page_ids = RaggedColumn(self.path, "page_ids")
        self._titles = RaggedColumn(self.path, "titles")
        self._texts = RaggedColumn(self.path, "texts")
        self._sentences = RaggedColumn(self.path, "sentences", NUMBER)
        self._questions = RaggedColumn(self.path, "questions", NUMBER)
        self._headings = RaggedColumn(self.path, "headings")
        self._in_links = RaggedColumn(self.path, "in_links", NUMBER)
        self._link_passages = RaggedColumn(self.path, "link_passages", NUMBER)
        self._num_first = self._flat("num_first")
        self._croppable = self._flat("croppable", np.dtype("i1"))
        self.page_passages = RaggedColumn(self.path, "page_passages").starts
        self.ict_counts = self._flat("ict_counts")
        self.crop_counts = self._flat("crop_counts")
        self.question_counts = np.diff(self._questions.starts) // 2
        self.link_counts = np.diff(self._in_links.starts)

    def __len__(self) -> int:
        """Returns the number of pages."""
        return len(self._page_ids)

    def page(self, number: int) -> SplitPage:
        """Returns page `number`; its passages are read when they are looked at."""
        start, stop = self.page_passages[number : number + 2].tolist()
        first = int(self._questions.starts[number]) // 2
        questions = [
            Question(self._headings.text(first + place), *bounds)
            for place, bounds in enumerate(self._questions.row(number).reshape(-1, 2).tolist())
        ]
        return SplitPage(
            self._page_ids.text(number),
            self._titles.text(number),
            _StoredPassages(self, start, stop),
            int(self._num_first[number]),
            questions,
        )

    def ict_passages(self, number: int) -> np.ndarray:
        """Returns which passages of page `number` have at least two sentences."""
        start, stop = self.page_passages[number : number + 2]
        return np.flatnonzero(np.diff(self._sentences.starts[start : stop + 1]) > 2)

    def crop_passages(self, number: int) -> np.ndarray:
        """Returns which passages of page `number` are long enough for span cropping."""
        start, stop = self.page_passages[number : number + 2]
        return np.flatnonzero(self._croppable[start:stop])

    def linking_pages(self, number: int) -> np.ndarray:
        """Returns the numbers of the other pages that link to page `number`, ascending."""
        return self._in_links.row(number)

    def linking_passages(self, number: int, place: int) -> np.ndarray:
        """Returns which passages of the `place`-th page that links to page `number` do so.

        Those with the link; where that is not known, those that name the title of page `number`;
        none where there is none such either.
        """
        return self._link_passages.row(int(self._in_links.starts[number]) + place)

    def passage(self, number: int) -> Passage:
        """Returns passage `number` of all pages."""
        bounds = self._sentences.row(number).tolist()
        return Passage(self._texts.text(number), tuple(zip(bounds[::2], bounds[1::2], strict=True)))

    def _flat(self, name: str, dtype: np.dtype = NUMBER) -> np.ndarray:
        return flat_column(self.path / f"{name}.data", dtype)


class _StoredPassages(Sequence[Passage]):
    """The passages of one page."""

    def __init__(self, store: PageStore, start: int, stop: int) -> None:
        self._store, self._start, self._stop = store, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> list[Passage]: ...
    def __getitem__(self, number: int | slice) -> Passage | list[Passage]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(f"`number` must be in [0, {len(self)}). Received: {number}")
        return self._store.passage(self._start + number)


def read_about(directory: Path) -> dict[str, Any]:
    """Returns what `store.json` says.

    Raises:
        ConfigError: there is none, or it is of another version.
    """
    path = directory / STORE_FILE
    if not path.is_file():
        raise ConfigError(f"{directory}: a page store must hold {STORE_FILE}.")
    about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if about.get("version") != STORE_VERSION:
        raise ConfigError(
            f"{path}: the version must be {STORE_VERSION}; remove {directory}, it is made anew."
            f" Received: {about.get('version')!r}"
        )
    return about


class RaggedColumn:
    """Rows of bytes or numbers, read from the disk when they are asked for.

    Args:
        directory: Where `NAME.starts` (int64) and `NAME.data` lie.
        name: The column's name.
        dtype: Of the data.
    """

    def __init__(self, directory: str | Path, name: str, dtype: Any = np.uint8) -> None:
        self.starts = flat_column(Path(directory) / f"{name}.starts", _START)
        self._data = flat_column(Path(directory) / f"{name}.data", np.dtype(dtype))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> np.ndarray:
        """Returns a row's numbers."""
        return self._data[self.starts[number] : self.starts[number + 1]]

    def text(self, number: int) -> str:
        """Returns a row's bytes as text."""
        return self.row(number).tobytes().decode()


class RaggedWriter:
    """Writes a ragged column, row by row.

    Args:
        directory: Where it is to lie.
        name: The column's name.
    """

    def __init__(self, directory: str | Path, name: str) -> None:
        self._starts = open(Path(directory) / f"{name}.starts", "wb")  # noqa: SIM115
        self._data = open(Path(directory) / f"{name}.data", "wb")  # noqa: SIM115
        self._end = 0
        self._starts.write(_START.type(0).tobytes())

    def append(self, lengths: list[int], data: bytes) -> None:
        """Adds rows.

        Args:
            lengths: How many items each row has.
            data: The items of all these rows, one after the other.
        """
        ends = np.cumsum(lengths, dtype=_START) + self._end
        if len(ends):
            self._end = int(ends[-1])
        self._starts.write(ends.tobytes())
        self._data.write(data)

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._starts.close()
        self._data.close()


def flat_column(path: Path, dtype: np.dtype) -> np.ndarray:
    """Returns the numbers of a file, mapped; an empty file cannot be."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    # A plain array: indexing a `memmap` costs several times as much.
    return np.memmap(path, dtype, "r").view(np.ndarray)
