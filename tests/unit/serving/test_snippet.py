"""What is shown of a passage: where the query's words stand, cut at sentences, lines kept."""

import time

import pytest

from tfde.serving.hit import snippet_of

FILLER = "Nothing of note happens in this sentence, which is only long. "


def test_a_short_text_is_shown_as_it_is():
    text = "One line.\n  Another, with  blanks."
    assert snippet_of(text, "whatever") == text
    assert snippet_of("", "x") == ""


@pytest.mark.parametrize(
    "sentence",
    [
        "Copying directories is done by shutil. ",
        "Copy a directory!\n",
        "COPIES of the DIRECTORY stay? ",
    ],
)
def test_the_sentence_with_the_words_is_shown(sentence):
    text = FILLER * 9 + sentence + FILLER * 9
    shown = snippet_of(text, "how can I copy the directory?")
    assert sentence.strip() in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert len(shown) <= 310


def test_more_of_the_words_win_and_of_equals_the_first():
    both, one = "A lake and a river. ", "A lake, a lake. "
    text = one + FILLER * 6 + both + FILLER * 6 + "Another river and lake. " + FILLER
    assert both.strip() in snippet_of(text, "river lake")
    text = "First lake. " + FILLER * 8 + "Second lake. " + FILLER * 8
    assert snippet_of(text, "lake").startswith("First lake.")


def test_what_leads_up_to_the_words_is_short_where_more_follows():
    words, lead = "A lake and a river. ", len("… ") + 100
    shown = snippet_of(FILLER * 9 + words + FILLER * 9, "river lake")
    assert 0 < shown.index(words.strip()) <= lead
    assert len(shown) > 250  # and follows to its full length
    shown = snippet_of(FILLER * 9 + words, "river lake")
    assert shown.endswith(words.strip())
    assert len(shown) > 250


def test_a_long_sentence_is_cut_around_the_word():
    text = "word " * 400 + "treasure " + "more " * 400
    shown = snippet_of(text, "treasure")
    assert "treasure" in shown
    assert shown.startswith("… word")
    assert shown.endswith("more …")
    assert len(shown) <= 310


def test_scripts_without_blanks():
    text = "何もない文。" * 80 + "京都の寺は美しい。" + "何もない文。" * 80
    assert "京都の寺は美しい。" in snippet_of(text, "京都の寺は美しい")
    assert len(snippet_of("字" * 5000, "字")) <= 310


def test_common_words_and_no_words():
    text = "The what of which. " + FILLER * 9 + "A lake. " + FILLER
    assert "A lake." in snippet_of(text, "what is the lake?")
    assert snippet_of(text, "the").startswith("The what of which.")
    assert snippet_of(text, "(*").startswith("The what of which.")


def test_lines_stay_lines():
    text = FILLER * 9 + "Syntax:\n  shutil.copytree(src, dst)\n" + FILLER * 9
    assert "Syntax:\n  shutil.copytree(src, dst)" in snippet_of(text, "shutil copytree")


def test_long_queries_and_runs_of_dots_are_shown_in_time():
    words = " ".join(f"word{number}" for number in range(8000))
    text = f"{FILLER * 900}The word7 stands here. {FILLER * 100}"
    begun = time.process_time()
    assert "word7" in snippet_of(text, words)
    assert "lake" in snippet_of("." * 60_000 + "a lake. " + FILLER * 9, "lake")
    assert time.process_time() - begun < 20  # minutes, where it is quadratic
