"""`PhraseIndex`: the tokens of passages, searched for the first and the last one of a phrase."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfde.argument_types import typed
from tfde.data.dataset_directory import unique_documents
from tfde.data.metadata import document_record
from tfde.errors import ConfigError, CorruptError, MismatchError, require
from tfde.phrases.passages import Passage
from tfde.phrases.phrase_encoder import PhraseEncoder, TokenVectors
from tfde.retrieval.index import Index, index_class, open_index
from tfde.retrieval.index_directory import MANIFEST, check_doc_ids, read_index, write_index
from tfde.storage.files import open_array, write_array
from tfde.storage.json_lines import write_json_lines
from tfde.towers.texts import texts_of_document
from tfde.types import Document

logger = logging.getLogger("tfde")

_KIND, _PASSAGES, _TOKENS, _VECTORS = "phrases", "passages.jsonl", "tokens.npy", "vectors"
# Columns of a token's row: passage, place in it, first character and the one after its last,
# and whether a phrase may begin, and end, there.
_PASSAGE, _PLACE, _FROM, _TO, _BEGINS, _ENDS = range(6)


class Phrase(NamedTuple):
    """A phrase that was found: `text` is `document.text[start:end]`."""

    score: float
    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        """The phrase as its document has it."""
        return self.document.text[self.start : self.end]


class PhraseIndex:
    """Tokens of passages where a phrase may begin or end; use `build` or `load`.

    Args:
        vectors: An index of the tokens' vectors; those of a passage stand side by side, in order.
        tokens: (N, 6) int32, what each of them is.
        documents: The passages.
        max_phrase_tokens: Longest phrase.

    Raises:
        MismatchError: these do not belong together.

    Source: Lee et al. 2021, section 5.1 (search by start vectors, and by end vectors).
    """

    def __init__(
        self,
        vectors: Index,
        tokens: np.ndarray,
        documents: Sequence[Document],
        *,
        max_phrase_tokens: int,
    ) -> None:
        if tokens.shape != (len(vectors), 6) or tokens[:, _PASSAGE].max() >= len(documents):
            raise MismatchError(
                f"`tokens` must say of each of the {len(vectors):,} vectors where in"
                f" {len(documents):,} passages it stands. Received: shape {tokens.shape}"
            )
        self.vectors = vectors
        self.tokens = tokens
        self.documents = list(documents)
        self.max_phrase_tokens = max_phrase_tokens

    def __repr__(self) -> str:
        return f"PhraseIndex({len(self.documents):,} passages, {len(self.tokens):,} tokens)"

    @property
    def fingerprint(self) -> str:
        """That of the model which made the vectors."""
        return self.vectors.fingerprint

    @classmethod
    def build(
        cls,
        model: PhraseEncoder,
        documents: Iterable[Document | Mapping[str, str] | str],
        *,
        engine: str = "scann",
        parameters: Any = None,
        least_probability: float = 0.0,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> PhraseIndex:
        """Encodes documents and indexes the tokens that the filter keeps.

        Args:
            model: The phrase encoder.
            documents: The passages; of one that is too long the beginning is indexed. Those without
                an id are numbered, from "0".
            engine: `exact`, `scann` (vectors compressed to codes, the best scored anew) or `faiss`.
            parameters: The engine's.
            least_probability: A token at which the filter finds it less probable that an answer
                begins (ends) there is none where one may; 0 keeps all.
            batch_size: Passages a batch.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: no document has a text, or the filter leaves nothing; a value is
                impossible.
            DataError: an id holds white space or stands twice.
            MissingExtraError: the engine's library is not installed.
        """
        holds = 0 <= least_probability < 1
        require(holds, "least_probability", "in [0, 1)", least_probability)
        chosen = index_class(engine)
        single = isinstance(documents, str | Mapping | Document)
        require(not single, "documents", "a list", documents)
        passages = model.reader.read(map(_document, itertools.count(), documents))
        kept = [passage.document for passage in passages]
        check_doc_ids([document.doc_id for document in kept], len(kept))
        # Memory is taken for as much of them as is filled.
        room, count = sum(len(passage.spans) for passage in passages), 0
        tokens = np.empty((room, 6), np.int32)
        vectors = np.empty((room, model.config.backbone.hidden_dim), np.float32)
        for number, found in model.encode_passages(
            passages, batch_size=batch_size, show_progress=show_progress
        ):
            rows, kept_vectors = _kept_tokens(number, passages[number], found, least_probability)
            filled = slice(count, count + len(rows))
            tokens[filled], vectors[filled], count = rows, kept_vectors, filled.stop
        if not count:
            raise ConfigError(
                "`documents` must hold a text, with a token that the filter keeps."
                f" Received: {len(passages)} documents, least_probability={least_probability}"
            )
        cut = [passage.cut for passage in passages if passage.cut]
        logger.info(
            "%d passages: %d tokens are indexed, %d left out by the filter; %d cut off, of %d"
            " passages that are too long",
            *(len(passages), count, room - count),
            *(sum(cut), len(cut)),
        )
        index = chosen.build(
            vectors[:count],
            [str(number) for number in range(count)],
            fingerprint=model.fingerprint(),
            parameters=parameters,
        )
        return cls(index, tokens[:count], kept, max_phrase_tokens=model.config.max_phrase_tokens)

    def check_model(self, model: PhraseEncoder) -> None:
        """Raises a `MismatchError` if another model made the index."""
        own = model.fingerprint()
        if own != self.fingerprint:
            raise MismatchError(
                f"`model` must be the one that made the index ({self.fingerprint}). Received: {own}"
            )

    @typed
    def search(self, query_vectors: np.ndarray, k: int = 10, *, tokens_per_query: int = 100) -> Any:
        """Returns the best phrases of each query, the best first; they may overlap.

        The tokens nearest to the query's start vector are tried as first ones with every last one
        that is near enough in the passage, and the tokens nearest to its end vector the other way
        round. Scores are exact.

        Args:
            query_vectors: (Q, 2, H) float32, as `PhraseEncoder.encode_queries` gives them; (2, H)
                of one query.
            k: Phrases a query gets, at most.
            tokens_per_query: How many tokens are looked up for each of a query's vectors.

        Returns:
            A list of `Phrase`s for each query; for one query, its list alone.

        Raises:
            ConfigError: `k` or `tokens_per_query` is below 1; texts in the place of vectors.
            MismatchError: vectors of another shape.
        """
        require(k >= 1, "k", "at least 1", k)
        require(tokens_per_query >= 1, "tokens_per_query", "at least 1", tokens_per_query)
        given = np.asarray(query_vectors)
        rule = "vectors, as `model.encode_queries(texts)` gives them"
        require(given.dtype.kind not in "USO", "query_vectors", rule, query_vectors)
        queries = np.asarray(given[None] if given.ndim == 2 else given, np.float32)
        dim = self.vectors.shape[1]
        if queries.ndim != 3 or queries.shape[1:] != (2, dim):
            raise MismatchError(
                f"`query_vectors` must be (queries, 2, {dim}). Received: shape {given.shape}"
            )
        starts, ends = (
            self.vectors.search_positions(queries[:, side], tokens_per_query)[1]
            for side in range(2)
        )
        stored = self.vectors.vectors()
        rows = zip(queries, starts, ends, strict=True)
        found = [self._best(stored, query, k, first, last) for query, first, last in rows]
        return found[0] if given.ndim == 2 else found

    def _best(
        self, stored: np.ndarray, query: np.ndarray, k: int, starts: np.ndarray, ends: np.ndarray
    ) -> list[Phrase]:
        """Returns the best phrases of a query; `starts` and `ends` are the tokens looked up."""
        steps, count = np.arange(self.max_phrase_tokens), len(self.tokens)
        first = np.concatenate([np.repeat(starts, len(steps)), (ends[:, None] - steps).ravel()])
        last = np.concatenate([(starts[:, None] + steps).ravel(), np.repeat(ends, len(steps))])
        inside = (first >= 0) & (last < count)
        # Each pair once, as one number, in the order of the index.
        first, last = np.divmod(np.unique(first[inside] * count + last[inside]), count)
        begin, end = self.tokens[first], self.tokens[last]
        may = (begin[:, _BEGINS] > 0) & (end[:, _ENDS] > 0)
        may &= begin[:, _PASSAGE] == end[:, _PASSAGE]
        may &= end[:, _PLACE] - begin[:, _PLACE] < self.max_phrase_tokens
        first, last = first[may], last[may]
        scores = np.zeros(len(first), np.float32)
        for rows, vector in zip((first, last), query, strict=True):
            tokens, places = np.unique(rows, return_inverse=True)
            scores += (stored[tokens] @ vector)[places]
        best = np.argsort(-scores, kind="stable")[:k]
        return [self._phrase(first[row], last[row], float(scores[row])) for row in best]

    def _phrase(self, first: int, last: int, score: float) -> Phrase:
        """Returns the phrase from one token's row to another's."""
        document = self.documents[self.tokens[first, _PASSAGE]]
        return Phrase(score, document, int(self.tokens[first, _FROM]), int(self.tokens[last, _TO]))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a directory; whole or not.

        Raises:
            ConfigError: the directory is not empty, without `overwrite`.
        """

        def write(directory: Path) -> None:
            self.vectors.save(directory / _VECTORS)
            write_array(directory / _TOKENS, self.tokens)
            write_json_lines(directory / _PASSAGES, map(document_record, self.documents))

        rows, dim = self.vectors.shape
        manifest = {
            "kind": _KIND,
            "rows": rows,
            "dim": dim,
            "fingerprint": self.fingerprint,
            "max_phrase_tokens": self.max_phrase_tokens,
        }
        write_index(path, manifest, write, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> PhraseIndex:
        """Opens what `save` wrote; vectors are mapped, not read.

        Args:
            path: The directory.
            verify: Compare checksums, which reads every file once.

        Raises:
            FileNotFoundError: no index there.
            MismatchError: an index of another kind.
            CorruptError: a file is missing or differs.
        """
        path = Path(path)
        manifest = read_index(path, _KIND, verify=verify)
        longest = manifest.get("max_phrase_tokens")
        if not isinstance(longest, int):
            rule = "`max_phrase_tokens` must be a number"
            raise CorruptError(f"{path / MANIFEST}: {rule}. Received: {longest}")
        return cls(
            open_index(path / _VECTORS, verify=False),  # its files are among those of this one
            np.asarray(open_array(path / _TOKENS)),
            list(unique_documents(path / _PASSAGES)),
            max_phrase_tokens=longest,
        )


def _document(number: int, given: Any) -> Document:
    """Returns a document; one without an id, such as a text, is called by its number."""
    if isinstance(given, Document):
        return given
    title, text = texts_of_document(given)
    doc_id = given.get("_id") if isinstance(given, Mapping) else None
    return Document(str(number if doc_id is None else doc_id), title, text)


def best_span(
    query: np.ndarray, found: TokenVectors, *, max_phrase_tokens: int
) -> tuple[int, int] | None:
    """Returns first and last token of a passage's best phrase; `None` if it has no token.

    Args:
        query: (2, H) float32, the query's start and end vector.
        found: Of the passage.
        max_phrase_tokens: Longest phrase.
    """
    count = len(found.vectors)
    if not count:
        return None
    starts, ends = found.vectors @ query.T[:, :1], found.vectors @ query.T[:, 1:]
    places = np.arange(count)
    far = places[None] - places[:, None]
    scores = np.where((far >= 0) & (far < max_phrase_tokens), starts + ends.T, -np.inf)
    first, last = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return int(first), int(last)


def _kept_tokens(
    number: int, passage: Passage, found: TokenVectors, least_probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows (T, 6) int32 and vectors (T, H) of the tokens where a phrase begins or ends."""
    with np.errstate(divide="ignore"):
        threshold = np.log(least_probability) - np.log1p(-least_probability)
    sides = found.logits >= threshold
    kept = np.flatnonzero(sides.any(axis=1))
    rows = np.zeros((len(kept), 6), np.int32)
    rows[:, _PASSAGE], rows[:, _PLACE] = number, kept
    rows[:, _FROM : _TO + 1] = passage.spans[kept]
    rows[:, _BEGINS:] = sides[kept]
    return rows, found.vectors[kept]
