import pytest

from tfde.data.sentences import split_sentences
from tfde.storage.json_lines import read_json_lines


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "One sentence."),
        ("en", "First one.| Second one!| Third one?| Fourth"),
        ("en", "Dr. Smith met J. A. Hobson in St. Louis.| They talked."),
        ("en", 'He said "Why?"| Then he left.'),
        ("en", "It cost $3.50 in No. 7.| Version 2.0 is out."),
        ("en", "Use 3.X or Foo.bar.| They differ."),
        ("en", "Line one.|\n\nLine two."),
        ("es", "¿Qué?| Última frase."),
        ("zh", "第一句。|第二句。"),
    ],
)
def test_splits_where_a_reader_would(language, marked):
    text = marked.replace("|", "")
    expected = [piece.strip() for piece in marked.split("|")]
    assert [text[start:stop] for start, stop in split_sentences(text, language)] == expected


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_has_no_sentence(text):
    assert split_sentences(text) == ()


@pytest.mark.parametrize(
    "text",
    ["One. Two.", "  One.\n\nTwo!  Three?  ", "…", "汉字。再来。", f"  A b. {'x' * 50_000} E. F"],
)
def test_every_visible_character_is_in_one_sentence(text):
    pieces = [text[start:stop] for start, stop in split_sentences(text)]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() != "" for piece in pieces)


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
    assert len(ours & gold) / len(ours) > 0.99
    assert len(ours & gold) / len(gold) > 0.95
    assert len(paragraphs) == 2067


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\u2028", "\u3000"])
def test_blanks_of_other_scripts_are_blanks(blank):
    text = f"He took vitamin A{blank}. Then{blank}C came."
    found = [text[start:stop] for start, stop in split_sentences(text)]
    assert found == [f"He took vitamin A{blank}.", f"Then{blank}C came."]
