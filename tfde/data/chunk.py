"""Long documents cut into passages that a model can read whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from semantic_text_splitter import TextSplitter

from tfde.data.batched import batched
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.metadata import document_record
from tfde.errors import require
from tfde.progress import progress_bar
from tfde.storage.atomic import atomic_directory, refuse_existing, refuse_source
from tfde.storage.files import link_or_copy
from tfde.storage.json_lines import write_json_lines
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.types import Document

_DOCUMENTS_AT_ONCE = 256
_HEADING = re.compile(r"^#{1,6}[ \t]+\S.*$", re.MULTILINE)
_FENCED = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.MULTILINE | re.DOTALL)
# What a passage keeps for its text, however long its title is.
_LEAST_SHARE = 4
# A text to see how many tokens the template puts around one.
_PROBE = "a"
_WORD, _SPACED_WORD = re.compile(r"\S+"), re.compile(r"\s*\S+")
_MOST_WORDS = 1_000_000
_LONGEST_WORD = 200  # characters; longer ones hardly come again
_PART_OF_WORD = re.compile(r"\w+|\W")
_MOST_PARTS = 32  # of a word


class ChunkCounts(NamedTuple):
    """What was cut.

    Attributes:
        documents: How many documents there were.
        cut: How many of them became more than one passage.
        passages: How many passages there are.
        left_out: Splits whose training pairs name whole documents and were left out.
    """

    documents: int
    cut: int
    passages: int
    left_out: tuple[str, ...]


def chunk_documents(
    documents: Iterable[Document],
    preprocessor: TextPreprocessor,
    *,
    max_length_tokens: int | None = None,
    overlap_tokens: int = 0,
    separator: str = ".",
) -> Iterator[Document]:
    """Yields the passages of documents, each no longer than a model can read.

    A passage ends before a Markdown heading, else with the largest of these that fits: a paragraph,
    a sentence, a word. It begins with the heading that it stands under, and has its document's
    title and metadata; the title counts as the template puts it there. Nothing of the text is left
    out but white space at the ends. The passages of document `ID` are `ID.0`, `ID.1` and so on; an
    empty text has one.

    Args:
        documents: The documents.
        preprocessor: Tokenizer, template and length of the model.
        max_length_tokens: Longest passage, title and special tokens included; `None` takes the
            model's longest document.
        overlap_tokens: At most so many tokens of a passage's end, in whole sentences or words,
            begin the next.
        separator: What stands between a document's id and the passage's number.

    Raises:
        ConfigError: an impossible length or overlap, or an empty separator.

    Source: boundaries by the library semantic-text-splitter.
    """
    longest = preprocessor.text_config.document_max_length_tokens
    limit = longest if max_length_tokens is None else max_length_tokens
    require(8 <= limit <= longest, "max_length_tokens", f"in [8, {longest}], the model's", limit)
    rule = f"in [0, {limit // 2}], half of the length"
    require(0 <= overlap_tokens <= limit // 2, "overlap_tokens", rule, overlap_tokens)
    fits = bool(separator) and not any(c.isspace() or c.isdigit() for c in separator)
    require(fits, "separator", "a text without white space and digits", separator)
    count = TokenCounter(preprocessor.tokenizer)
    special = 1 + (preprocessor.tokenizer.start_id is not None)
    for some in batched(documents, _DOCUMENTS_AT_ONCE):
        count.learn([_PROBE, *(document.text for document in some)])
        titles = [document.title for document in some]
        *_, lengths = preprocessor.measured_documents(titles, [_PROBE] * len(titles))
        around = lengths[:, 0].numpy() - count(_PROBE) + special
        for document, used in zip(some, around.tolist(), strict=True):
            room = max(limit - used, limit // _LEAST_SHARE)
            passages = _passages(document.text, count, room, overlap_tokens)
            for number, text in enumerate(passages or [document.text]):
                yield document._replace(doc_id=f"{document.doc_id}{separator}{number}", text=text)


def _passages(text: str, count: TokenCounter, room: int, overlap: int) -> list[str]:
    """Returns the passages of a text, each of at most `room` tokens."""
    outside = _FENCED.sub(lambda found: " " * len(found[0]), text)  # where # begins a comment
    places = [found.span() for found in _HEADING.finditer(outside)]
    stops = [start for start, _ in places[1:]] + [len(text)]
    sections = [("", text[: places[0][0]] if places else text)]
    sections += [
        (text[start:end], text[end:stop]) for (start, end), stop in zip(places, stops, strict=False)
    ]
    passages = []
    for heading, body in sections:
        left = room - (count(f"{heading}\n\n{_PROBE}") - count(_PROBE) if heading else 0)
        if left < room // 2:  # no heading, or one to cut like any text
            heading, body, left = "", f"{heading}{body}", room
        splitter = TextSplitter.from_callback(count, left, min(overlap, left - 1))
        parts = splitter.chunks(body)
        passages += [f"{heading}\n\n{part}" if heading else part for part in parts]
        if heading and not parts:
            passages.append(heading)
    return passages


def chunk_dataset(
    dataset: str | Path,
    output: str | Path,
    preprocessor: TextPreprocessor,
    *,
    max_length_tokens: int | None = None,
    overlap_tokens: int = 0,
    separator: str = ".",
    overwrite: bool = False,
    show_progress: bool = False,
) -> ChunkCounts:
    """Writes a dataset directory with the passages of another one's documents.

    Queries, judgements and answers are the same: judgements name the documents, and runs of
    passages are folded to these (`tfde.data.ranking.best_passages`).

    Args:
        dataset: The dataset directory.
        output: The new one.
        preprocessor: As in `chunk_documents`.
        max_length_tokens: As in `chunk_documents`.
        overlap_tokens: As in `chunk_documents`.
        separator: As in `chunk_documents`.
        overwrite: Whether a directory that holds something is replaced.
        show_progress: Whether a progress bar goes to stderr.

    Raises:
        ConfigError: as `chunk_documents`; `output` is not empty, or is the dataset.
        DataError: the corpus breaks a rule.
    """
    source = DatasetDirectory(dataset)
    refuse_existing(output, overwrite=overwrite)
    refuse_source(output, source.path, "the dataset that is cut")
    progress = progress_bar(
        total=source.num_documents if show_progress else None,
        unit="doc",
        desc="chunk",
        disable=not show_progress,
    )
    passages = chunk_documents(
        source.documents(),
        preprocessor,
        max_length_tokens=max_length_tokens,
        overlap_tokens=overlap_tokens,
        separator=separator,
    )
    seen = cut = 0

    def records() -> Iterator[dict[str, Any]]:
        nonlocal seen, cut
        for passage in passages:
            number = passage.doc_id.rpartition(separator)[2]
            if number == "0":
                seen += 1
                progress.update()
            cut += number == "1"
            yield document_record(passage)

    with progress, atomic_directory(output, overwrite=overwrite) as temporary:
        count = write_json_lines(temporary / "corpus.jsonl.gz", records())
        for name in ("queries.jsonl*", "answers.jsonl*", "qrels/*.tsv*"):
            for path in sorted(source.path.glob(name)):
                target = temporary / path.relative_to(source.path)
                target.parent.mkdir(exist_ok=True)
                link_or_copy(path, target)
    return ChunkCounts(seen, cut, count, source.pair_splits)


class TokenCounter:
    """Counts the tokens of texts by those of their words, which are tokenized once.

    Tokenizers cut at white space first, so that the sum is what the text has. Byte-pair encoding
    knows a word with and without the blank before it, and counts indentation: there a word has
    the white space before it.

    Args:
        tokenizer: Gives the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._word = _SPACED_WORD if isinstance(tokenizer, BytePairTokenizer) else _WORD
        self._known: dict[str, int] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Tokenizes the words of texts that are not known yet, all in one call."""
        if len(self._known) > _MOST_WORDS:
            self._known.clear()
        known = self._known
        found = {word for text in texts for word in self._word.findall(text)}
        words = {word for word in found if word not in known and len(word) <= _LONGEST_WORD}
        # A passage may begin or end inside of a word: before or behind a point, a bracket ...
        words |= {part for word in words for part in _ends(word) if part not in known}
        if words:
            new = sorted(words)
            known.update(zip(new, self._count(new), strict=True))

    def __call__(self, text: str) -> int:
        """Returns the number of tokens, special ones left out."""
        self.learn([text])
        words = self._word.findall(text)
        if words and self._word is _SPACED_WORD:  # a template may put a blank before the first
            first = words[0].lstrip()
            self.learn([first, f" {first}"])
            words[0] = max(first, f" {first}", key=lambda word: self._known.get(word, 0))
        long = [word for word in words if word not in self._known]
        count = sum(self._known[word] for word in words if word in self._known)
        return count + sum(self._count(long)) if long else count

    def _count(self, words: list[str]) -> list[int]:
        lengths: list[int] = self._tokenizer.tokenize(words).row_lengths().numpy().tolist()
        return lengths


def _ends(word: str) -> Iterator[str]:
    """Yields what a word begins and ends with, up to the places where one may cut it."""
    places = [found.end() for found in _PART_OF_WORD.finditer(word)]
    if len(places) <= _MOST_PARTS:
        for place in places[:-1]:
            yield word[:place]
            yield word[place:]
