"""DPR's rule for "the passage holds an answer", case by case.

Worked out by hand from the description of the rule in DPR's repository: NFD, then tokens
[letters, digits, marks]+ or one other character that is neither white space nor control, in
lower case; an answer matches where its tokens follow one another.
"""

import pytest

from tfde.evaluation.answer_matching import holds_answer

CASES = [
    # text, answers, whether one is held, why
    ("It began in October 1973.", ["october 1973"], True, "case"),
    ("It began in October 1973.", ["1973 October"], False, "order"),
    ("It began in October, 1973.", ["October 1973"], False, "a comma is a token"),
    ("It began in October, 1973.", ["October , 1973"], True, "white space is none"),
    ("It began in October\n 1973.", ["October 1973"], True, "line ends are white space"),
    ("In 19731 it ended", ["1973"], False, "tokens are whole"),
    ("the U.S. army", ["US"], False, "U.S. is four tokens"),
    ("the U.S. army", ["u.s."], True, "punctuation must agree"),
    ("the U.S.A. won", ["U.S."], True, "a prefix of tokens"),
    ("a man-of-war", ["man of war"], False, "hyphens are tokens"),
    ("a man-of-war", ["man - of - war"], True, "however they are spaced"),
    ("Beyonc\u00e9 sang", ["Beyonce\u0301"], True, "composed and decomposed agree"),
    ("Beyonc\u00e9 sang", ["Beyonce"], False, "accents count"),
    ("54\u00a0Mbit/s at most", ["54 Mbit/s"], True, "a no-break space separates"),
    ("$3 per barrel", ["3"], True, "a currency sign is a token of its own"),
    ("$3 per barrel", ["$ 3"], True, "and may be spaced"),
    ("20% of it", ["20 %"], True, "percent too"),
    ("\u5317\u4eac\u662f\u9996\u90fd", ["\u5317\u4eac"], False, "no words inside a Chinese run"),
    ("\u5317\u4eac \u662f \u9996\u90fd", ["\u5317\u4eac"], True, "unless spaced"),
    ("\u0130stanbul is old", ["i\u0307stanbul"], True, "lower case of a dotted capital I"),
    ("Stra\u00dfe", ["strasse"], False, "lower case, not case folding"),
    ("x\u200by", ["x y"], True, "a zero-width space is a control character: it separates"),
    ("x_y", ["x"], True, "an underscore is punctuation"),
    ("x\u00b2", ["x2"], False, "NFD does not unfold superscripts"),
    ("one answer", ["none", "answer"], True, "any answer"),
    ("one answer", [], False, "no answer"),
    ("one answer", ["", " ", "\u200b"], False, "an answer without a token (DPR: held by all)"),
    ("", ["one"], False, "no text"),
    ("one", ["one one"], False, "longer than the text"),
]


@pytest.mark.parametrize(("text", "answers", "held", "why"), CASES, ids=[c[3] for c in CASES])
def test_case(text, answers, held, why):
    assert holds_answer(text, answers) is held, why
