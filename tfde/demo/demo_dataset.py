"""Pages as a retrieval data set with training pairs: what the demo trains and is measured on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.atomic import atomic_directory
from tfde.data.dataset_directory import write_dataset_directory
from tfde.data.pages import Page, write_pages
from tfde.data.read_pairs import write_pairs
from tfde.data.sentences import split_sentences
from tfde.errors import ConfigError
from tfde.types import Document, Pair, Qrels, Query

MIN_BODY_WORDS = 8
QUERY_WORDS = range(4, 41)
# Two sentences of a page: with more, long pages would outweigh the others.
CLOZES_PER_PAGE = 2

PAIRS_FILE = "pairs.jsonl.gz"
PAGES_FILE = "pages.jsonl.gz"


class DemoCounts(NamedTuple):
    """How much of what a demo data set holds."""

    pages: int
    documents: int
    document_words: int
    summary_pairs: int
    cloze_pairs: int
    dev_queries: int
    test_queries: int


class _Entry(NamedTuple):
    """A page of the corpus: its summary sentence (may be empty) and the rest."""

    summary: str
    document: Document
    passages: tuple[str, ...]


def demo_dataset(
    pages: Iterable[Page],
    output: str | Path,
    *,
    seed: int = 0,
    num_dev: int = 200,
    num_test: int = 500,
    overwrite: bool = False,
) -> DemoCounts:
    """Writes the demo's dataset directory, with the pages and the training pairs beside it.

    A document is a page without its summary, the first sentence; its title is the page's. The
    summary is the query that the document answers. The pages of `test` and `dev` are held out:
    their documents stand in the corpus, but no training pair comes from them, and no other page
    has their summary or their text. Training pairs (`pairs.jsonl.gz`) are, of every other page,
    summary -> document and inverse cloze: a sentence of the body -> the body without it.
    `qrels/train.tsv` judges the summaries of the training pages.

    Args:
        pages: The pages, in an order that is the same each time.
        output: The directory.
        seed: Which pages are held out and which sentences are clozes.
        num_dev: Held-out pages to tune on.
        num_test: Held-out pages to report on.
        overwrite: Whether a directory that holds something is replaced.

    Raises:
        ConfigError: there are too few pages to hold out so many; `output` exists.
    """
    pages = list(pages)
    entries = [entry for page in pages if (entry := _entry(page)) is not None]
    generator = np.random.Generator(np.random.PCG64(seed))
    candidates = _unmistakable(entries)
    # Half may be held out: with more, hardly anything would be left to train on.
    if len(candidates) < 2 * (num_dev + num_test):
        raise ConfigError(
            f"`pages` must have at least {2 * (num_dev + num_test)} with a summary and a body of"
            f" their own to hold out {num_dev} + {num_test}. Received: {len(candidates)}"
        )
    drawn = [int(row) for row in generator.permutation(candidates)[: num_dev + num_test]]
    dev, test = sorted(drawn[:num_dev]), sorted(drawn[num_dev:])
    held_out = set(drawn)
    train = [row for row, e in enumerate(entries) if e.summary and row not in held_out]
    rows = {"train": train, "dev": dev, "test": test}
    clozes = [
        pair
        for row, entry in enumerate(entries)
        if row not in held_out
        for pair in _clozes(entry, generator)
    ]
    summaries = [_summary_pair(entries[row]) for row in train]
    mixed = [*summaries, *clozes]
    with atomic_directory(output, overwrite=overwrite) as temporary:
        write_dataset_directory(
            temporary,
            (entry.document for entry in entries),
            (_query(entries[row]) for split in rows.values() for row in split),
            {split: _qrels(entries[row] for row in chosen) for split, chosen in rows.items()},
        )
        write_pages(temporary / PAGES_FILE, pages)
        write_pairs(
            temporary / PAIRS_FILE, (mixed[place] for place in generator.permutation(len(mixed)))
        )
    words = sum(len(entry.document.text.split()) for entry in entries)
    return DemoCounts(
        len(pages), len(entries), words, len(summaries), len(clozes), len(dev), len(test)
    )


def _entry(page: Page) -> _Entry | None:
    """Returns the page as a document, or `None` if its body is too short to be found by."""
    sections = list(page.sections)
    summary = ""
    if sections and not sections[0].heading:
        first = sections[0].passages[0]
        start, stop = split_sentences(first)[0]
        if _is_prose(first[start:stop]):
            summary, rest = first[start:stop], first[stop:].strip()
            passages = (rest, *sections[0].passages[1:]) if rest else sections[0].passages[1:]
            sections[0] = sections[0]._replace(passages=passages)
    texts = []
    for section in sections:
        text = " ".join(section.passages)
        if text:
            texts.append(f"{section.heading}: {text}" if section.heading else text)
    body = " ".join(texts)
    if len(body.split()) < MIN_BODY_WORDS:
        return None
    passages = tuple(passage for section in sections for passage in section.passages)
    return _Entry(summary, Document(page.page_id, page.title, body), passages)


def _is_prose(sentence: str) -> bool:
    """Whether a sentence has the length of a query and is not mostly numbers and signs."""
    letters = sum(character.isalpha() for character in sentence)
    return len(sentence.split()) in QUERY_WORDS and letters > 0.6 * len(sentence)


def _unmistakable(entries: list[_Entry]) -> list[int]:
    """Returns the rows whose summary and whose text no other entry has."""
    summaries = Counter(entry.summary.lower() for entry in entries)
    bodies = Counter(entry.document.text for entry in entries)
    return [
        row
        for row, entry in enumerate(entries)
        if entry.summary
        and summaries[entry.summary.lower()] == 1
        and bodies[entry.document.text] == 1
    ]


def _query(entry: _Entry) -> Query:
    return Query(f"q-{entry.document.doc_id}", entry.summary)


def _qrels(entries: Iterable[_Entry]) -> Qrels:
    return {_query(entry).query_id: {entry.document.doc_id: 1} for entry in entries}


def _summary_pair(entry: _Entry) -> Pair:
    return Pair(_query(entry), entry.document, (), (entry.document.doc_id,))


def _clozes(entry: _Entry, generator: np.random.Generator) -> Iterator[Pair]:
    """Yields a few sentences of the body, each as a query for the body without it."""
    sentences = [
        passage[start:stop]
        for passage in entry.passages
        for start, stop in split_sentences(passage)
        if _is_prose(passage[start:stop])
    ]
    body = entry.document.text
    count = min(CLOZES_PER_PAGE, len(sentences))
    for place in generator.choice(len(sentences), count, replace=False):
        sentence = sentences[place]
        rest = " ".join(body.replace(sentence, "").split())
        if len(rest.split()) >= MIN_BODY_WORDS:
            doc_id = f"{entry.document.doc_id}#{place}"
            yield Pair(
                Query(f"c-{doc_id}", sentence),
                Document(doc_id, entry.document.title, rest),
                (),
                (doc_id,),
            )
