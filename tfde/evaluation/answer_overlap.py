"""SQuAD's two measures of an answer's words: exact match and F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from tfde.errors import ConfigError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation and English articles.

    Runs of white space become a blank.

    Source: Rajpurkar et al. 2016, section 6.1, and the rule of their script for version 1.1.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if the text is one of the answers once both are normalized, else 0.0."""
    return float(normalized_answer(text) in map(normalized_answer, answers))


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Returns the highest F1, in [0, 1], of the text's normalized words with those of an answer."""
    return max((_f1(text, answer) for answer in answers), default=0.0)


def answer_overlap(
    texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Returns `EM` and `F1`, means over the questions in [0, 1].

    Args:
        texts: Question -> what was answered; a question without an entry counts 0.
        answers: Question -> accepted answers; these questions count.

    Raises:
        ConfigError: there are no answers.
    """
    if not answers:
        raise ConfigError("`answers` must hold at least one question. Received: none")
    given = [(texts[name], answers[name]) for name in answers if name in texts]
    return {
        "EM": sum(exact_match(*pair) for pair in given) / len(answers),
        "F1": sum(token_f1(*pair) for pair in given) / len(answers),
    }


def _f1(text: str, answer: str) -> float:
    words, right = normalized_answer(text).split(), normalized_answer(answer).split()
    common = sum((Counter(words) & Counter(right)).values())
    return 2.0 * common / (len(words) + len(right)) if common else 0.0
