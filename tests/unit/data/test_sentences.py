import pytest

from tfde.data.json_lines import read_json_lines
from tfde.data.sentences import split_sentences


@pytest.mark.parametrize(
    "marked",
    [
        "One sentence.",
        "First one.| Second one!| Third one?| Fourth",
        "Dr. Smith met J. A. Hobson (cf. Fig. 3) in St. Louis.| They talked.",
        "He moved to the U.S. in 1990.| It was cold in the U.S.| The end.",
        'He said "Stop."| She did not.',
        'She asked: "Why?"| "Because," he said.',
        "It cost $3.50 in No. 7.| Version 2.0 is out.",
        "Cited here.[12]| And here.[citation needed]| Done.",
        "In brackets (one. Two.) it goes on.| Next.",
        "Line one.|\n\nLine two.",
        "i.e. this is one, e.g. Apples count, etc.| The next begins.",
        "¿Qué?| Última frase.",
    ],
)
def test_splits_where_a_reader_would(marked):
    text = marked.replace("|", "")
    expected = [piece.strip() for piece in marked.split("|")]
    assert [text[start:stop] for start, stop in split_sentences(text)] == expected


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_has_no_sentence(text):
    assert split_sentences(text) == []


def test_every_visible_character_is_in_one_sentence_also_in_a_long_run():
    text = "  A b. C d.  " + "x" * 50_000 + " E. F"
    spans = split_sentences(text)
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())


def test_agrees_with_the_boundaries_of_multireqa(data_dir):
    paragraphs = {}
    for _, record in read_json_lines(data_dir / "squad" / "corpus.jsonl.gz"):
        if record["_id"].startswith("d"):
            paragraphs[record["_id"]] = record["text"]
    gold = set()
    for _, record in read_json_lines(data_dir / "multireqa_squad" / "corpus.jsonl.gz"):
        gold.add((record["metadata"]["doc"], record["metadata"]["end"]))
    ours = {(doc, stop) for doc, text in paragraphs.items() for _, stop in split_sentences(text)}
    # What is missing are mostly false ends there ("the U.S. | population", "St. | Johns").
    assert len(ours & gold) / len(ours) > 0.98
    assert len(ours & gold) / len(gold) > 0.95
    assert len(paragraphs) == 2067
