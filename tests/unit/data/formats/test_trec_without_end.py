"""TREC files that a reader must not be lost in: documents without end, markup that is none."""

import time

import pytest

from tfde.data.formats import trec_markup
from tfde.data.formats.trec import read_topics
from tfde.data.formats.trec_markup import read_documents
from tfde.errors import DataError
from tfde.storage.intake import Intake

SIZE = trec_markup.MAX_BLOCK_CHARACTERS
RULE = r":3: <DOC> must be closed by </DOC> within 16 Mi characters\."


def documents(path, intake=None):
    return [found.doc_id for found in read_documents(path, intake or Intake())]


@pytest.mark.parametrize("line", ["x" * 999 + "\n", "x" * (SIZE + 1)], ids=["lines", "one line"])
@pytest.mark.parametrize("end", ["", "</DOC>", "</DOC>\n<DOC><DOCNO>last</DOCNO>b</DOC>"])
def test_a_document_without_end_costs_itself(tmp_path, line, end):
    path = tmp_path / "documents"
    body = line * (SIZE // len(line) + 2 if len(line) < SIZE else 1)
    path.write_text(f"<DOC><DOCNO>first</DOCNO>a</DOC>\n\n<DOC><DOCNO>long</DOCNO>\n{body}{end}\n")
    with pytest.raises(DataError, match=RULE):
        documents(path)
    intake = Intake(skip_bad=True)
    assert documents(path, intake) == ["first", *(["last"] if "last" in end else [])]
    assert intake.kinds == {"bad record": 1}


def test_a_document_on_one_line_is_bounded_too(tmp_path):
    path = tmp_path / "documents"
    path.write_text("\n\n<DOC><DOCNO>1</DOCNO>" + "x " * (SIZE // 2) + "</DOC>")
    with pytest.raises(DataError, match=RULE):
        documents(path)


PIECES = [
    "<!--",
    "<a ",
    "<a b=c ",
    "<b a='",
    '<div a="',
    "<a '<",
    "<title>",
    "</a",
    "<![CDATA[",
    "<",
]


@pytest.mark.parametrize("piece", PIECES)
def test_markup_without_end_is_read_in_time(tmp_path, piece):
    # Of 20 kB of some of these the reader took 30 s, and 4 times as long of twice as much.
    markup = piece * (200_000 // len(piece))
    path = tmp_path / "documents"
    path.write_text(
        f"<DOC><DOCNO>web</DOCNO><DOCHDR>\n</DOCHDR>words {markup}\n</DOC>\n"
        f"<DOC><DOCNO>wire</DOCNO><TEXT>words {markup}\n--></DOC>\n"
    )
    topics = tmp_path / "topics"
    topics.write_text(f"<top {'a' * 200_000}>\n<num>1<title>words {markup}\n</top>")
    started = time.process_time()
    assert documents(path) == ["web", "wire"]
    assert [query.query_id for query in read_topics(topics, Intake())] == ["1"]
    assert time.process_time() - started < 5


def test_web_pages_that_are_no_good_html(tmp_path):
    page = (
        "<DOC><DOCNO>1</DOCNO><DOCHDR>\n</DOCHDR><title>Two <!-- not --> words</title>"
        "<a onclick=\"write('<b>no</b>')\" href='a>b'>li</a>nk <img alt=it's>after"
        "<script>if (a<b) '<!--'</script> seen <style/>too<!-- open <p>still &lt;there</DOC>"
    )
    path = tmp_path / "documents"
    path.write_text(page)
    (document,) = read_documents(path, Intake())
    assert document.title == "Two words"
    assert document.text == "link after seen too open still <there"
