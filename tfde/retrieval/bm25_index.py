"""BM25, the baseline that every dual encoder has to beat."""

from __future__ import annotations

import itertools
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import regex

from tfde.argument_types import typed
from tfde.config.model import DOCUMENT_FIELDS
from tfde.environment import require_extra
from tfde.errors import ConfigError, DataError, require, shorten
from tfde.progress import progress_bar
from tfde.retrieval.index_directory import check_doc_ids
from tfde.retrieval.top_k import TopK
from tfde.types import Document, Query, Run

logger = logging.getLogger(__name__)
# Languages whose stop words bm25s knows; "english" is Lucene's list of 33 words.
STOP_WORDS = (
    "danish",
    "dutch",
    "english",
    "french",
    "german",
    "italian",
    "norwegian",
    "portuguese",
    "russian",
    "spanish",
    "swedish",
    "turkish",
)
# Words in scripts without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan.
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々]"
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々\p{M}]*"
)
_RUN = regex.compile(_UNSPACED)
_CLUSTER = regex.compile(r"\X")
# U.S.A. and e.g. without their dots.
_ACRONYM = regex.compile(r"(?<![\w.])(?:\p{L}\.){2,}\p{L}?(?!\w)")
# Accents of letters that are also written without them, Hebrew's points, Arabic's short vowels.
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}\p{Hebrew}])\p{Mn}+|[\u064b-\u0652\u0670]")
# Runs of two letters or digits, names such as C++ and C#, and what `spread` sets apart by this
# mark: the parts of unspaced scripts, and words with marks in them, which `re` would cut there.
_PART = "\ue000"
_WITH_MARKS = regex.compile(rf"(?<![\w{_PART}])\w*\p{{M}}\w*")  # of `regex`, whose \w has marks
TOKEN_PATTERN = rf"(?u){_PART}[^{_PART}\s]+|\b\w(?:\+\+|#)|\b\w\w+\b"


class Bm25Index:
    """An inverted index of stemmed words with BM25 scores; use `Bm25Index.build`.

    Words are runs of at least two letters or digits, in lower case and without accents; in scripts
    that write no spaces (Chinese, Japanese, Thai ...) characters and pairs of neighbours.

    Args:
        scorer: A filled `bm25s.BM25`.
        doc_ids: N document ids in the scorer's order.
        language: Of the stemmer and the stop words; `None` for neither.
    """

    def __init__(self, scorer: Any, doc_ids: Sequence[str], language: str | None) -> None:
        self._scorer = scorer
        self.doc_ids = np.array(doc_ids, dtype=object)
        self.language = language

    def __repr__(self) -> str:
        return f"Bm25Index({len(self.doc_ids):,} documents, language {self.language!r})"

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        language: str | None = "english",
        fields: Sequence[str] = ("title", "text"),
    ) -> Bm25Index:
        """Indexes title and text of the documents, or what else is named.

        Args:
            documents: The corpus; only its words stay in memory.
            k1: Saturation of the term frequency, at least 0.
            b: Weight of the document's length, in [0, 1].
            language: One of PyStemmer's; stop words are left out where bm25s has a list for it.
                `None` neither stems nor leaves out anything.
            fields: Which of `title`, `text` and `context` are indexed.

        Raises:
            ConfigError: no documents, an impossible `k1`, `b`, `language` or `fields`, or a
                document without a context where it is to be indexed.
            DataError: an id holds white space or stands twice.

        Source:
            Robertson and Zaragoza 2009 in Lucene's form (idf = ln(1 + (N - n + 0.5)/(n + 0.5))).
        """
        check_bm25(k1, b, language, fields)
        doc_ids: list[str] = []

        def texts() -> Iterable[str]:
            for document in documents:
                require(isinstance(document, Document), "documents", "tfde.Document", document)
                doc_ids.append(document.doc_id)
                found = [getattr(document, name) for name in fields]
                if not all(isinstance(text, str) for text in found):
                    raise ConfigError(
                        f"`documents` must have texts as {' and '.join(fields)}."
                        f" Received: {shorten(document)}"
                    )
                yield " ".join(found)

        words = _tokenize(texts(), language, return_ids=True)
        if not doc_ids:
            raise ConfigError("`documents` must hold at least one document. Received: none")
        if not words.vocab:
            raise ConfigError(
                "`documents` must hold a word of two letters or digits that is no stop word."
                f" Received: none in {len(doc_ids)} documents"
            )
        scorer = _bm25s().BM25(k1=k1, b=b, method="lucene")
        scorer.index(words, show_progress=False)
        return cls(scorer, check_doc_ids(doc_ids, len(doc_ids)), language)

    @overload
    def search(  # type: ignore[overload-overlap]
        self, texts: str, k: int, *, show_progress: bool = False
    ) -> list[tuple[str, float]]: ...
    @overload
    def search(
        self, texts: Iterable[str], k: int, *, show_progress: bool = False
    ) -> list[list[tuple[str, float]]]: ...
    @typed
    def search(
        self, texts: str | Iterable[str], k: int, *, show_progress: bool = False
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """Returns for each text its best documents, ties in the order of the corpus.

        That most queries share no word with any document is told in the log.

        Args:
            texts: Queries, or one.
            k: At least 1.
            show_progress: Whether a progress bar goes to stderr.

        Returns:
            For each query at most `k` pairs of document id and score, descending; only
            documents that share a word with the query. Of one query, its pairs.

        Raises:
            ConfigError: `k` below 1; something else than texts.
        """
        if isinstance(texts, str):
            return self._search([texts], k, show_progress)[0]
        rule = "a text or a list of texts"
        require(isinstance(texts, Iterable), "texts", rule, texts)
        texts = list(texts)
        for text in texts:
            require(isinstance(text, str), "texts", rule, text)
        return self._search(texts, k, show_progress)

    def _search(
        self, texts: Sequence[str], k: int, show_progress: bool
    ) -> list[list[tuple[str, float]]]:
        require(k >= 1, "k", "at least 1", k)
        results: list[list[tuple[str, float]]] = []
        wordless = 0
        words_of = _tokenize(texts, self.language, return_ids=False)
        for words in progress_bar(words_of, unit="query", desc="BM25", disable=not show_progress):
            known = self._scorer.get_tokens_ids(words)
            if not known:
                wordless += 1
                results.append([])
                continue
            scores = self._scorer.get_scores_from_ids(known)
            top = TopK(1, k)
            top.update(scores[None], 0)
            results.append(
                [
                    (self.doc_ids[position], float(score))
                    for position, score in zip(top.positions[0], top.scores[0], strict=True)
                    if score > 0
                ]
            )
        if wordless * 2 > len(results):
            logger.warning(
                "BM25: %d of %d queries have no word that a document has; are they in the corpus's"
                " language and script?",
                wordless,
                len(results),
            )
        return results

    def retrieve(self, queries: Sequence[Query], k: int, *, show_progress: bool = False) -> Run:
        """Returns the best documents of each query, query id -> document id -> score.

        Args:
            queries: Each has an id of its own.
            k: As of `search`.
            show_progress: As there.

        Raises:
            ConfigError: as there; two queries have one id.
        """
        found = self._search([query.text for query in queries], k, show_progress)
        run = {query.query_id: dict(row) for query, row in zip(queries, found, strict=True)}
        require(len(run) == len(queries), "queries", "of different ids", f"{len(queries)} queries")
        return run

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the scores of single documents, 0 where they share no word with the query.

        Args:
            pairs: Queries with the id of a document each.

        Raises:
            DataError: a document is not in the index.
        """
        if not pairs:
            return []
        scores = []
        words_of = _tokenize([text for text, _ in pairs], self.language, return_ids=False)
        for number, ((_, doc_id), words) in enumerate(zip(pairs, words_of, strict=True), start=1):
            if doc_id not in self._positions:
                raise DataError("pairs", number, "must name documents of the index.", doc_id)
            known = self._scorer.get_tokens_ids(words)
            found = self._scorer.get_scores_from_ids(known)[self._positions[doc_id]] if known else 0
            scores.append(float(found))
        return scores

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {doc_id: position for position, doc_id in enumerate(self.doc_ids)}


def check_bm25(
    k1: float, b: float, language: str | None, fields: Sequence[str] = ("text",)
) -> None:
    """Refuses impossible parameters.

    Raises:
        MissingExtraError: the extra `bm25` is not installed.
        ConfigError: `k1` below 0, `b` outside [0, 1], a `language` without stemmer, or
            unknown `fields`.
    """
    require(k1 >= 0, "k1", "at least 0", k1)
    require(0 <= b <= 1, "b", "in [0, 1]", b)
    known_fields = fields and not isinstance(fields, str) and set(fields) <= set(DOCUMENT_FIELDS)
    require(bool(known_fields), "fields", f"some of {', '.join(DOCUMENT_FIELDS)}", fields)
    _bm25s()
    import Stemmer

    known = Stemmer.algorithms()
    rule = f"None or one of {', '.join(known)}"
    require(language is None or language in known, "language", rule, language)


def _bm25s() -> Any:
    require_extra("bm25", "BM25")
    import bm25s

    return bm25s


def _tokenize(texts: Iterable[str], language: str | None, *, return_ids: bool) -> Any:
    bm25s = _bm25s()
    import Stemmer

    return bm25s.tokenize(
        spread(texts),
        token_pattern=TOKEN_PATTERN,
        stopwords=language if language in STOP_WORDS else None,
        stemmer=word_stemmer(Stemmer.Stemmer(language) if language else None, language),
        return_ids=return_ids,
        show_progress=False,
    )


def spread(texts: Iterable[str]) -> Iterator[str]:
    """Yields each text so that `TOKEN_PATTERN` finds its words.

    A run of a script without spaces becomes its characters (with their marks) and each two that
    are neighbours: what dictionaries split, bigrams find too, in any of these languages. Words
    with vowel signs and other marks stay whole.

    Args:
        texts: Texts as they are.
    """
    for text in texts:
        if "." in text:
            text = _ACRONYM.sub(lambda match: match[0].replace(".", ""), text)
        if not text.isascii():
            text = unicodedata.normalize("NFKC", text).lower().replace("i\u0307", "i")  # Turkish
            text = _WITH_MARKS.sub(_whole, _RUN.sub(_parts, text))
        yield text


def _whole(match: regex.Match[str]) -> str:
    word = match[0]
    return f"{_PART}{word} " if len(fold(word)) > 1 else word


def fold(word: str) -> str:
    """Returns a word in lower case without accents: café and CAFE are cafe, Straße is strasse."""
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", parts))


def word_stemmer(stemmer: Any | None, language: str | None) -> Callable[[list[str]], list[str]]:
    """Returns what makes one word of the forms of a word, for lists of words.

    Stemmers of languages that write accents want to see them; English's does not know any.

    Args:
        stemmer: PyStemmer's, with `stemWords`; `None` does not stem.
        language: Of the stemmer.
    """

    def stem(words: list[str]) -> list[str]:
        words = [word.removeprefix(_PART) for word in words]
        if language in (None, "english", "porter", "lovins"):
            words = [fold(word) for word in words]
        if stemmer is not None:
            words = stemmer.stemWords(words)
        return [fold(word) for word in words]

    return stem


def _parts(run: Any) -> str:
    clusters = _CLUSTER.findall(run[0])
    pairs = [one + two for one, two in itertools.pairwise(clusters)]
    return " " + " ".join(f"{_PART}{part}" for part in (*clusters, *pairs)) + " "
