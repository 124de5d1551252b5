"""Accuracy of open-domain retrieval: does one of the first k documents hold an answer's words?"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import regex

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.ranking import first_documents
from tfde.errors import ConfigError, require
from tfde.types import Document, Run

CUTOFFS = (1, 5, 20, 100)

# Runs of letters, digits and marks; any other character that is neither white space nor control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


class AnswerTexts(NamedTuple):
    """What `Answer@k` asks for beyond judgements.

    Attributes:
        by_query: Query -> accepted answers.
        documents: Gives the corpus that was searched, each time anew.
    """

    by_query: Mapping[str, Sequence[str]]
    documents: Callable[[], Iterable[Document]]

    @classmethod
    def of(
        cls,
        dataset: DatasetDirectory,
        query_ids: Iterable[str],
        documents: Callable[[], Iterable[Document]] | None = None,
    ) -> AnswerTexts:
        """Reads the answers to queries from a dataset directory.

        Args:
            dataset: The dataset.
            query_ids: The queries that are measured.
            documents: What is searched, where that is not the whole corpus and nothing more.

        Raises:
            ConfigError: a query has no answer, or there is no file of answers.
            DataError: as `DatasetDirectory.answers`.
        """
        texts, query_ids = dataset.answers(), list(query_ids)
        missing = [query_id for query_id in query_ids if not texts.get(query_id)]
        if missing:
            raise ConfigError(
                f"{dataset.file('answers.jsonl')}: `Answer@k` among measures needs answers to every"
                f" query that is measured. Received: {len(missing):,} of {len(query_ids):,} without"
                f" any, such as {missing[0]!r}"
            )
        by_query = {query_id: texts[query_id] for query_id in query_ids}
        return cls(by_query, documents or dataset.documents)


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Returns whether the tokens of an answer stand in the text, one after the other.

    Tokens are runs of letters, digits and combining marks, and single other characters, of the
    text in Unicode's decomposed form (NFD), in lower case; accents count. An answer without a
    token is held by no text (in DPR's own code it is held by every one).

    Source: Karpukhin et al. 2020, section 5, as github.com/facebookresearch/DPR measures it.
    """
    line = _token_line(text)
    return any(token_line in line for token_line in _answer_lines(answers))


def answer_ranks(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    documents: Iterable[Document],
    *,
    depth: int,
) -> dict[str, int | None]:
    """Returns query -> rank (from 1) of its first document that holds an answer, or `None`.

    Documents are read once and none is kept. Only the text counts, not the title, as for DPR.

    Args:
        run: Query -> document -> score; ties are broken as trec_eval does.
        answers: Query -> accepted answers; these queries are measured, with results or without.
        documents: The corpus.
        depth: How many of a query's first documents are looked at.

    Raises:
        ConfigError: there are no answers, or a document of the run is not in the corpus.
    """
    if not answers:
        raise ConfigError("`answers` must hold at least one query. Received: none")
    wanted: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for query_id in answers:
        for rank, doc_id in enumerate(first_documents(run.get(query_id, {}), depth), start=1):
            wanted[doc_id].append((query_id, rank))
    lines = {query_id: _answer_lines(texts) for query_id, texts in answers.items()}
    ranks: dict[str, int | None] = dict.fromkeys(answers)
    for document in documents:
        line = ""
        for query_id, rank in wanted.pop(document.doc_id, ()):
            best = ranks[query_id]
            if best is None or rank < best:
                line = line or _token_line(document.text)
                if any(token_line in line for token_line in lines[query_id]):
                    ranks[query_id] = rank
    if wanted:
        raise ConfigError(
            f"`run` must name documents of the corpus. Received: {next(iter(wanted))!r}"
        )
    return ranks


def answer_accuracy(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    documents: Iterable[Document],
    *,
    cutoffs: Sequence[int] = CUTOFFS,
) -> dict[str, float]:
    """Returns `Answer@k` -> share of the questions with an answer in the first k documents.

    Arguments and errors as `answer_ranks`; each of `cutoffs` is at least 1.
    """
    holds = len(cutoffs) > 0 and min(cutoffs) >= 1
    require(holds, "cutoffs", "at least 1", tuple(cutoffs))
    ranks = answer_ranks(run, answers, documents, depth=max(cutoffs))
    return {
        f"Answer@{cutoff}": sum((rank or math.inf) <= cutoff for rank in ranks.values())
        / len(ranks)
        for cutoff in cutoffs
    }


def _answer_lines(answers: Iterable[str]) -> list[str]:
    return [line for line in map(_token_line, answers) if line.strip()]


def _token_line(text: str) -> str:
    """Returns the tokens with a space before, between and after; no token holds a space."""
    tokens = _TOKEN.findall(unicodedata.normalize("NFD", text))
    return " ".join(["", *(token.lower() for token in tokens), ""])
