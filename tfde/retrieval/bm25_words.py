"""The words of BM25, in every script: what a text is split into before it is counted."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import regex

# Words in scripts without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan.
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々]"
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々\p{M}]*"
)
_RUN = regex.compile(_UNSPACED)
_CLUSTER = regex.compile(r"\X")
# U.S.A. and e.g. without their dots.
_ACRONYM = regex.compile(r"(?<![\w.])(?:\p{L}\.){2,}\p{L}?(?!\w)")
# Accents of letters that are also written without them.
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+")

# Runs of two letters or digits, names such as C++ and C#, and the parts of unspaced scripts, which
# `spread` sets apart by this mark.
_PART = "\ue000"
TOKEN_PATTERN = rf"(?u){_PART}[^{_PART}\s]+|\b\w(?:\+\+|#)|\b\w\w+\b"


def spread(texts: Iterable[str]) -> Iterator[str]:
    """Yields each text so that `TOKEN_PATTERN` finds its words.

    A run of a script without spaces becomes its characters (with their marks) and each two that
    are neighbours: what dictionaries split, bigrams find too, in any of these languages.

    Args:
        texts: Texts as they are.
    """
    for text in texts:
        if "." in text:
            text = _ACRONYM.sub(lambda match: match[0].replace(".", ""), text)
        if not text.isascii():
            text = _RUN.sub(_parts, unicodedata.normalize("NFKC", text))
        yield text


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
