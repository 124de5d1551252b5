"""A small rule-based sentence splitter for edited English prose.

It is ours, made for SQuAD at sentence level: an end mark, then closing quotes or brackets, then
white space, then something that can begin a sentence; not after a known abbreviation or an
initial, not inside brackets. Text in other languages is better cut elsewhere.
"""

from __future__ import annotations

import itertools
import re

_END = re.compile(
    r"""
    (?P<word>\S{0,40}?)         # what stands before the end mark; bounded, else quadratic
    (?P<mark>[.!?]+)            # the end mark
    (?P<close>["'”’)\]]*        # closing quotes and brackets
       (?:\[[^\]]{1,30}\])*)    # citations such as [12]
    \s+
    (?=["'“‘(\[]*[^\W_a-z]      # the next sentence: a capital, a digit, a letter without case
      |["'“‘(\[]+\w)            # or a quote
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[\"'“‘(\[]*(\w+)(?!\.)")
_ABBREVIATIONS = """
mr mrs ms dr prof rev hon st mt ft lt col gen capt cmdr sgt maj adm gov sen rep pres jr sr vs etc
no nos vol pp p fig figs eq ch sec ed eds c ca cf al approx est dept inc ltd co corp bros
jan feb mar apr jun jul aug sep sept oct nov dec ph.d
"""
# Abbreviations that often stand last in a sentence: the next word decides.
_OFTEN_LAST = "etc inc ltd co corp bros jr sr"
_STARTERS = """
the a an in on at it its this that these those he she they we i his her their as by for from with
after before during since while when where although however but and so there if one some many
most both such other another to of all
"""
_NEVER_LAST = frozenset(_ABBREVIATIONS.split()) - frozenset(_OFTEN_LAST.split())
_DOUBTFUL = frozenset(_OFTEN_LAST.split())
_BEGINNINGS = frozenset(_STARTERS.split())


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Returns start and end of each sentence of `text`, white space around them left out.

    Every character that is not white space lies in exactly one sentence.
    """
    cuts = [0]
    for match in _END.finditer(text):
        if _ends_sentence(text, match, cuts[-1]):
            cuts.append(match.end())
    cuts.append(len(text))
    spans = []
    for start, stop in itertools.pairwise(cuts):
        piece = text[start:stop]
        if piece.strip():
            left = start + len(piece) - len(piece.lstrip())
            spans.append((left, start + len(piece.rstrip())))
    return spans


def _ends_sentence(text: str, match: re.Match[str], start: int) -> bool:
    so_far = text[start : match.end("close")]
    if so_far.count("(") > so_far.count(")") or so_far.count("[") > so_far.count("]"):
        return False
    if match["mark"] != ".":
        return True
    word = match["word"].lstrip("\"'“‘([").lower()
    if match["close"] or not word:
        return True
    following = _WORD.match(text, match.end())
    begins = following is not None and following[1].lower() in _BEGINNINGS
    # An initial ("J. A. Hobson"), letters with periods ("U.S.", "e.g."), a doubtful abbreviation.
    letters = re.fullmatch(r"(?:[a-z]\.)*[^\W\d_]", word)
    if letters or word in _DOUBTFUL:
        return begins
    return word not in _NEVER_LAST
