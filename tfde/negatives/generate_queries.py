"""`generate_queries`: documents -> queries, as training pairs or as a corpus that holds them.

Documents are worked on in the order of the corpus, a part at a time; a killed run goes on with the
next part.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from tfde.data.batched import batched
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.document_file import DocumentFile
from tfde.data.metadata import document_record
from tfde.errors import ConfigError, DataError, require
from tfde.negatives.candidate_sources import CandidateSource, Corpus
from tfde.progress import progress_bar
from tfde.storage.atomic import atomic_file, refuse_existing
from tfde.storage.files import link_or_copy, sha256
from tfde.storage.json_lines import json_line
from tfde.storage.resumable_file import PartedFile
from tfde.types import Document, Query

Form = Literal["pairs", "expansion"]


class QueryGenerator(Protocol):
    """Documents to queries."""

    def describe(self) -> dict[str, Any]:
        """Returns what the queries depend on, as JSON; work resumes only with an equal one."""
        ...

    def generate(self, documents: Sequence[Document]) -> list[list[str]]:
        """Returns the queries of each document; some may be empty or equal.

        What is drawn for a document depends on its id and the seed alone, not on its neighbours.
        """
        ...


class GenerationReport(NamedTuple):
    """What was written and what was left out.

    `queries` were written for `documents`, of which `bare` have none. Left out were queries
    without a word (`empty`), those that the document had already (`repeated`), and those by which
    it is not found (`missed`).
    """

    documents: int
    queries: int
    bare: int
    empty: int
    repeated: int
    missed: int

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> GenerationReport:
        """Returns the report of what was counted."""
        return cls(**{name: counts.get(name, 0) for name in cls._fields})


def generate_queries(
    dataset: DatasetDirectory,
    generator: QueryGenerator,
    output: str | Path,
    *,
    form: Form = "pairs",
    keep_rank: int | None = None,
    source: CandidateSource | None = None,
    documents_at_once: int = 256,
    show_progress: bool = False,
) -> GenerationReport:
    """Writes the queries of all documents of a corpus.

    Given again after a kill, it goes on with the next part; given again when all is done, it
    returns the report. Of the dataset only the corpus is needed.

    Args:
        dataset: The documents.
        generator: Who reads them and writes queries.
        output: For `pairs` a pair file that names documents by id, packed by its name. For
            `expansion` a dataset directory: the corpus with each document's queries after its
            text, everything else linked. Settings and counts lie beside pair file or corpus, as
            `.json`.
        form: `pairs` to train on (GenQ), or `expansion` to search in with BM25 (docT5query).
        keep_rank: Keeps a query only if `source` ranks its document at most so low; `None` keeps
            all.
        source: Who ranks the documents for `keep_rank`.
        documents_at_once: Documents a part.
        show_progress: Whether progress bars go to stderr.

    Raises:
        ConfigError: an impossible value, one of `keep_rank` and `source` without the other, or an
            output that holds something else.
        MismatchError: the killed run had other settings.
        DataError: the corpus is empty, or a document breaks a rule.
        CorruptError: a file of the killed run differs from what was written.

    Source:
        Nogueira and Lin 2019 (docT5query); Thakur et al. 2021 (GenQ); Dai et al. 2022
        (Promptagator: a query that finds its document is kept).
    """
    _check(form, keep_rank, source, documents_at_once)
    file = Path(output) / "corpus.jsonl.gz" if form == "expansion" else Path(output)
    settings = {
        "corpus": sha256(dataset.file("corpus.jsonl")),
        "generator": generator.describe(),
        "form": form,
        "keep_rank": keep_rank,
        "source": None if source is None else source.describe(),
        "documents_at_once": documents_at_once,
    }
    work = PartedFile(file, settings)
    done = work.finished()
    if done is not None:
        return GenerationReport.of(done)
    if form == "expansion" and not work.directory.exists():
        refuse_existing(output, overwrite=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(work.begin())
        if form == "expansion":
            _link_the_rest(dataset, Path(output))
        store: DocumentFile | None = None
        total = dataset.num_documents
        bar = progress_bar(total=total, unit="doc", desc="generate", disable=not show_progress)
        stack.enter_context(bar)
        parts = 0
        for documents in batched(dataset.documents(), documents_at_once):
            if work.part(parts) is None:
                if source is not None and store is None:
                    store = DocumentFile.build(dataset.documents(), work.directory / "documents")
                    stack.callback(store.close)
                    source.prepare(Corpus(dataset, store, work.directory, show_progress))
                queries, counts = _queries(documents, generator, keep_rank, source)
                lines = _lines(documents, queries, form)
                work.write_part(parts, map(json_line, lines), counts)
            parts += 1
            bar.update(len(documents))
        if not parts:
            raise DataError(dataset.file("corpus.jsonl"), None, "must hold at least one document.")
        return GenerationReport.of(work.finish(parts))


def text_of(document: Document) -> str:
    """Returns what a generator reads of a document: its title, a blank, its text."""
    return f"{document.title} {document.text}".strip()


def _check(
    form: Form, keep_rank: int | None, source: CandidateSource | None, documents_at_once: int
) -> None:
    require(form in ("pairs", "expansion"), "form", "pairs or expansion", form)
    if (keep_rank is None) != (source is None):
        raise ConfigError("`keep_rank` goes with `source`; give both or neither.")
    for name, value in (("keep_rank", keep_rank), ("documents_at_once", documents_at_once)):
        require(value is None or value >= 1, name, "at least 1", value)


def _queries(
    documents: Sequence[Document],
    generator: QueryGenerator,
    keep_rank: int | None,
    source: CandidateSource | None,
) -> tuple[list[list[str]], Counter[str]]:
    """Returns the queries of some documents, and the counts of `GenerationReport`."""
    counts = Counter(documents=len(documents))
    queries = []
    generated = iter(generator.generate([d for d in documents if _has_words(d)]))
    for document in documents:
        given = next(generated) if _has_words(document) else ()
        worded = [text for text in (" ".join(text.split()) for text in given) if text]
        queries.append(list(dict.fromkeys(worded)))
        counts["empty"] += len(given) - len(worded)
        counts["repeated"] += len(worded) - len(queries[-1])
    if keep_rank is not None and source is not None:
        before = sum(map(len, queries))
        queries = _those_that_find(documents, queries, keep_rank, source)
        counts["missed"] = before - sum(map(len, queries))
    counts["queries"] = sum(map(len, queries))
    counts["bare"] = sum(not texts for texts in queries)
    return queries, counts


def _has_words(document: Document) -> bool:
    return bool(document.title.strip() or document.text.strip())


def _those_that_find(
    documents: Sequence[Document],
    queries: Sequence[Sequence[str]],
    keep_rank: int,
    source: CandidateSource,
) -> list[list[str]]:
    pairs = [(row, text) for row, texts in enumerate(queries) for text in texts]
    asked = [Query(str(number), text) for number, (_, text) in enumerate(pairs)]
    rankings = source.search(asked, keep_rank) if asked else []
    kept: list[list[str]] = [[] for _ in documents]
    for (row, text), ranking in zip(pairs, rankings, strict=True):
        if documents[row].doc_id in dict(ranking):
            kept[row].append(text)
    return kept


def _lines(
    documents: Sequence[Document], queries: Sequence[Sequence[str]], form: Form
) -> Iterator[dict[str, Any]]:
    for document, texts in zip(documents, queries, strict=True):
        if form == "expansion":
            text = " ".join([document.text, *texts]).strip()
            yield document_record(document._replace(text=text))
        else:
            # Without a query id equal queries of two documents are one, with two positives.
            yield from ({"query": query, "positive": document.doc_id} for query in texts)


def _link_the_rest(dataset: DatasetDirectory, output: Path) -> None:
    """Puts what a dataset has beside its corpus into the output."""
    files = [dataset.file("queries.jsonl")] if dataset.has_queries else []
    files += [dataset.file("answers.jsonl")] if dataset.has_answers else []
    files += map(dataset.qrels_file, dataset.splits)
    files += map(dataset.pair_file, dataset.pair_splits)
    for file in files:
        with atomic_file(output / file.relative_to(dataset.path)) as temporary:
            link_or_copy(file, temporary)
