"""How many tokens a text has, asked for many overlapping pieces of it."""

from __future__ import annotations

from collections.abc import Iterable

from tfde.text.tokenizer import Tokenizer

_MOST_WORDS = 1_000_000
_LONGEST_WORD = 40  # characters; longer ones hardly come again


class TokenCounter:
    """Counts the tokens of texts by those of their words, which are tokenized once.

    Tokenizers cut at white space first, so that the sum is what the text has; where it is not, it
    is off by a few (byte-pair encoding knows a word with and without the blank before it).

    Args:
        tokenizer: Gives the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, int] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Tokenizes the words of texts that are not known yet, all in one call."""
        if len(self._known) > _MOST_WORDS:
            self._known.clear()
        words = {w for text in texts for w in text.split() if len(w) <= _LONGEST_WORD}
        new = sorted(words - self._known.keys())
        if new:
            self._known.update(zip(new, self._count(new), strict=True))

    def __call__(self, text: str) -> int:
        """Returns the number of tokens, special ones left out."""
        self.learn([text])
        words = text.split()
        long = [word for word in words if word not in self._known]
        count = sum(self._known[word] for word in words if word in self._known)
        return count + sum(self._count(long)) if long else count

    def _count(self, words: list[str]) -> list[int]:
        lengths: list[int] = self._tokenizer.tokenize(words).row_lengths().numpy().tolist()
        return lengths
