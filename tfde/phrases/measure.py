"""What is answered, measured as SQuAD does: phrases, and beside them the best sentence taken whole.

`given`: the passage is given, as in reading comprehension. `open`: all passages are searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfde.data.sentences import split_sentences
from tfde.errors import MismatchError
from tfde.evaluation.answer_matching import holds_answer
from tfde.evaluation.answer_overlap import answer_overlap
from tfde.phrases.passages import answer_places
from tfde.phrases.phrase_encoder import PhraseEncoder
from tfde.phrases.phrase_index import PhraseIndex, best_span
from tfde.phrases.questions import AnswerCounts, AskedDocument
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.exact_index import ExactIndex
from tfde.types import Document, Query


class Answered(NamedTuple):
    """What a way of answering gives: question id -> the text, and the document it stands in."""

    name: str
    setting: str
    answers: dict[str, tuple[str, str]]


def measure(answered: Answered, asked: Sequence[AskedDocument]) -> dict[str, float]:
    """Returns `EM`, `F1`, `Answer@1` and `right passage`, means over all questions, in [0, 1].

    `Answer@1` is the share of texts that hold an answer's words (see `holds_answer`); `right
    passage` that of texts from the passage which the question was asked about. A question that got
    no answer counts 0.
    """
    accepted = {
        query.query_id: texts
        for part in asked
        for query, texts in zip(part.queries, part.answers, strict=True)
    }
    about = {q.query_id: part.document.doc_id for part in asked for q in part.queries}
    texts = {query_id: text for query_id, (text, _) in answered.answers.items()}
    held = sum(holds_answer(text, accepted[query_id]) for query_id, text in texts.items())
    right = sum(about[query_id] == doc_id for query_id, (_, doc_id) in answered.answers.items())
    shares = {"Answer@1": held / len(accepted), "right passage": right / len(accepted)}
    return {**answer_overlap(texts, accepted), **shares}


def count_answers(
    model: PhraseEncoder, asked: Sequence[AskedDocument], counts: AnswerCounts
) -> AnswerCounts:
    """Returns the counts with how many questions have an answer that the model can see."""
    read = model.reader.read([part.document for part in asked])
    for passage, part in zip(read, asked, strict=True):
        for answers in part.answers:
            longest = model.config.max_phrase_tokens
            counts.add(answer_places(passage, answers, max_tokens=longest))
    return counts


def answer_given(
    model: PhraseEncoder, asked: Sequence[AskedDocument], *, show_progress: bool = False
) -> Answered:
    """Answers each question with the best phrase of its passage."""
    passages = model.reader.read([part.document for part in asked])
    queries = _query_vectors(model, asked, show_progress)
    offsets = np.cumsum([0, *(len(part.queries) for part in asked)])
    answers: dict[str, tuple[str, str]] = {}
    for row, found in model.encode_passages(passages, show_progress=show_progress):
        document, spans = passages[row].document, passages[row].spans
        for place, query in enumerate(asked[row].queries):
            span = best_span(
                queries[offsets[row] + place],
                found,
                max_phrase_tokens=model.config.max_phrase_tokens,
            )
            if span is not None:
                text = document.text[spans[span[0], 0] : spans[span[1], 1]]
                answers[query.query_id] = text, document.doc_id
    return Answered("phrases", "given", answers)


def searched_documents(
    indexes: Mapping[str, PhraseIndex], asked: Sequence[AskedDocument]
) -> list[Document]:
    """Returns what every `open` way searches: the passages of the indexes, or those asked about.

    Raises:
        MismatchError: an index holds other passages than the first one, or not all that are asked
            about.
    """
    if not indexes:
        return [part.document for part in asked]
    first, documents = next((name, index.documents) for name, index in indexes.items())
    texts = {document.doc_id: document.text for document in documents}
    for name, index in indexes.items():
        if {document.doc_id: document.text for document in index.documents} != texts:
            raise MismatchError(f"`index`: {name} must hold the passages that {first} holds.")
    for part in asked:
        if texts.get(part.document.doc_id) != part.document.text:
            rule = f"{first} must hold every passage that a question is about"
            raise MismatchError(f"`index`: {rule}. It lacks: {part.document.doc_id}")
    return documents


def answer_open(
    name: str,
    model: PhraseEncoder,
    index: PhraseIndex,
    asked: Sequence[AskedDocument],
    *,
    tokens_per_query: int = 100,
    show_progress: bool = False,
) -> Answered:
    """Answers each question with the best phrase of all passages.

    Raises:
        MismatchError: another model made the index.
    """
    index.check_model(model)
    queries = _query_vectors(model, asked, show_progress)
    found = index.search(queries, 1, tokens_per_query=tokens_per_query)
    answers = {
        query.query_id: (phrases[0].text, phrases[0].document.doc_id)
        for query, phrases in zip(_queries(asked), found, strict=True)
        if phrases
    }
    return Answered(f"phrases, {name}", "open", answers)


class Sentences:
    """The sentences of passages; each way to choose one answers with it whole.

    Args:
        documents: The passages that `open` searches; those that are asked about among them.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self.sentences: list[Document] = []
        self._of: dict[str, list[int]] = {}
        for document in documents:
            first = len(self.sentences)
            for start, end in split_sentences(document.text):
                sentence_id = str(len(self.sentences))
                text = document.text[start:end]
                self.sentences.append(Document(sentence_id, document.title, text))
            self._of[document.doc_id] = list(range(first, len(self.sentences)))
        self._doc_ids = [doc_id for doc_id, rows in self._of.items() for _ in rows]

    def by_bm25(self, asked: Sequence[AskedDocument]) -> list[Answered]:
        """Returns the answers of BM25 over title and sentence, in both settings."""
        index = Bm25Index.build(self.sentences)
        queries, rows = _queries(asked), self._rows(asked)
        scores = index.score(
            [
                (query.text, str(row))
                for query, own in zip(queries, rows, strict=True)
                for row in own
            ]
        )
        ends = np.cumsum(list(map(len, rows)))
        of_query = np.split(np.array(scores), ends[:-1])
        found = index.search([query.text for query in queries], 1)
        best = [int(hits[0][0]) if hits else None for hits in found]
        return self._answered("BM25's sentence", queries, _best_rows(rows, of_query), best)

    def by_model(
        self, name: str, model: Any, asked: Sequence[AskedDocument], *, show_progress: bool = False
    ) -> list[Answered]:
        """Returns the answers of a dual encoder, in both settings."""
        embeddings = model.encode_documents(self.sentences, show_progress=show_progress)
        queries, rows = _queries(asked), self._rows(asked)
        asking = model.encode_queries([query.text for query in queries])
        of_query = [embeddings[own] @ vector for own, vector in zip(rows, asking, strict=True)]
        index = ExactIndex.build(embeddings, [sentence.doc_id for sentence in self.sentences])
        best = index.search_positions(asking, 1)[1][:, 0].tolist()
        return self._answered(f"{name}'s sentence", queries, _best_rows(rows, of_query), best)

    def _rows(self, asked: Sequence[AskedDocument]) -> list[list[int]]:
        """Returns the sentences of each question's passage."""
        return [self._of[part.document.doc_id] for part in asked for _ in part.queries]

    def _answered(
        self,
        name: str,
        queries: Sequence[Query],
        given: Sequence[int | None],
        everywhere: Sequence[int | None],
    ) -> list[Answered]:
        return [
            Answered(
                name,
                setting,
                {
                    query.query_id: self._answer(row)
                    for query, row in zip(queries, rows, strict=True)
                    if row is not None
                },
            )
            for setting, rows in (("given", given), ("open", everywhere))
        ]

    def _answer(self, row: int) -> tuple[str, str]:
        return self.sentences[row].text, self._doc_ids[row]


def _best_rows(rows: Sequence[Sequence[int]], scores: Sequence[np.ndarray]) -> list[int | None]:
    """Returns of each query's rows the one of the highest score; `None` where there are none."""
    return [
        own[int(np.argmax(found))] if own else None for own, found in zip(rows, scores, strict=True)
    ]


def _queries(asked: Sequence[AskedDocument]) -> list[Query]:
    return [query for part in asked for query in part.queries]


def _query_vectors(
    model: PhraseEncoder, asked: Sequence[AskedDocument], show_progress: bool
) -> np.ndarray:
    texts = [query.text for query in _queries(asked)]
    return model.encode_queries(texts, show_progress=show_progress)
