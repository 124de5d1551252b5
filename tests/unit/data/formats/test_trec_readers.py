"""TREC's documents, topics and judgements, as on its disks, and what they become."""

import pytest

from tfde.data.formats import (
    trec,
)
from tfde.data.formats.records import Judgement, Source
from tfde.data.formats.trec import read_topics
from tfde.data.formats.trec_markup import read_documents
from tfde.errors import DataError
from tfde.storage.intake import Intake
from tfde.types import Document, Query


def read(module, *sources, **options):
    return list(module.read(sources, Intake(), **options))


def of_kind(records, kind):
    return [record for record in records if isinstance(record, kind)]


TREC = """<DOC>
<DOCNO> FT911-3 </DOCNO>
<PROFILE>_AN-BEOA7AAIFT</PROFILE>
<DATE>910514
</DATE>
<HEADLINE>
FT  14 MAY 91 / International Company News: R&amp;D <P>at last</P>
</HEADLINE>
<TEXT>
<P>
A first paragraph
of two lines &lt;sic&gt;.
</P>
<!-- PJG 0012 -->
<P>
A second.
</P>
</TEXT>
<PUB>The Financial Times
</PUB>
</DOC>

<doc><docno>LA-2</docno>
<text>lower case</text></doc>
"""
TOPICS = """
<top>

<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate in
international criminal activity.

<narr> Narrative:
A relevant document must identify &amp; name.

</top>

<top>
<num>302</num>
<title>Poliomyelitis</title>
<desc>Is it gone?</desc>
<narr>Anything.</narr>
</top>
"""


ORGANIZATIONS = "Identify organizations that participate in international criminal activity."
NAMES = "A relevant document must identify & name."


def test_trec_as_on_its_disks(tmp_path):
    (tmp_path / "docs" / "ft").mkdir(parents=True)
    (tmp_path / "docs" / "ft" / "ft911_1").write_text(TREC)
    (tmp_path / "topics").write_text(TOPICS)
    (tmp_path / "qrels").write_text("301 0 FT911-3 1\n302 0 LA-2 -1\n")
    sources = [
        Source("documents", tmp_path / "docs"),
        Source("topics", tmp_path / "topics"),
        Source("qrels", tmp_path / "qrels", "test"),
    ]
    assert read(trec, *sources) == [
        Document(
            "FT911-3",
            "FT 14 MAY 91 / International Company News: R&D at last",
            "A first paragraph of two lines <sic>. A second.",
            {"date": "910514", "profile": "_AN-BEOA7AAIFT", "pub": "The Financial Times"},
        ),
        Document("LA-2", "", "lower case"),
        Query("301", "International Organized Crime", {"desc": ORGANIZATIONS, "narr": NAMES}),
        Query("302", "Poliomyelitis", {"desc": "Is it gone?", "narr": "Anything."}),
        Judgement("test", "301", "FT911-3", 1),
        Judgement("test", "302", "LA-2", -1),
    ]
    described = of_kind(read(trec, *sources, topic_field="description"), Query)
    narrated = of_kind(read(trec, *sources, topic_field="narrative"), Query)
    assert [query.text for query in described] == [ORGANIZATIONS, "Is it gone?"]
    assert described[1].metadata == {"title": "Poliomyelitis", "narr": "Anything."}
    assert narrated[0].text == NAMES


def sgml(text, tmp_path):
    (tmp_path / "d").write_text(text)
    intake = Intake()
    documents = list(read_documents(tmp_path / "d", intake))
    return [(d.doc_id, d.title, d.text) for d in documents], dict(intake.left_out)


NEWSWIRE = """<?xml version="1.0"?>
<!DOCTYPE doc SYSTEM "x.dtd">
<root>
<DOC id="d1" type="story"><DOCNO>d1</DOCNO><HEAD>One</HEAD><TEXT>first</TEXT>and
bare</DOC><DOC><DOCNO> d2 </DOCNO>
<BYLINE>By Ann</BYLINE><DATE>1990</DATE><LP>lead</LP>
<TEXT>a <HL>nested</HL> b</TEXT><GRAPHIC>chart</GRAPHIC><TEXT>c&blank;d pre&hyph;war</TEXT>
</DOC>stray words
more of them
<doc><docno>d3</docno><title>Unclosed<text>x < y and so on
<p>last
</doc>
<DOC><DOCNO>d4</DOCNO><BODY>only a body</BODY><AUTHOR>Lee</AUTHOR></DOC>
</root>
"""


def test_trec_documents_wherever_tags_stand(tmp_path, caplog):
    documents, left_out = sgml(NEWSWIRE, tmp_path)
    assert documents == [
        ("d1", "One", "first and bare"),
        ("d2", "nested", "lead a nested b c d pre-war"),
        ("d3", "Unclosed", "x < y and so on last"),
        ("d4", "", "only a body Lee"),
    ]
    assert left_out == {"lines outside of <DOC>": 2}
    (shown,) = caplog.messages
    assert "d:8: text outside of <DOC> is left out" in shown
    assert "stray words" in shown
    second = list(read_documents(tmp_path / "d", Intake()))[1]
    assert second.metadata == {"byline": "By Ann", "date": "1990", "graphic": "chart"}


def test_a_text_inside_another_field(tmp_path):
    """AQUAINT's: headline and text stand in BODY, beside what the wire adds."""
    story = (
        "<DOC><DOCNO>a</DOCNO><DOCTYPE>NEWS</DOCTYPE><HEADER>x1</HEADER><BODY><SLUG>s</SLUG>"
        "<HEADLINE>Head</HEADLINE><TEXT><P>one</P></TEXT></BODY><TRAILER>AP-NY</TRAILER></DOC>\n"
    )
    assert sgml(story, tmp_path)[0] == [("a", "Head", "one")]
    (document,) = read_documents(tmp_path / "d", Intake())
    assert document.metadata == {"doctype": "NEWS", "header": "x1", "trailer": "AP-NY"}


def test_trec_web_pages(tmp_path):
    page = (
        "<DOC>\n<DOCNO>GX000-00</DOCNO>\n<DOCHDR>\nhttp://x.test/\nContent-Length: 9\n</DOCHDR>\n"
        "<html><head><title>River &amp; ferries</title><style>p {color: red}</style>\n"
        "<script>if (a < b) { document.write('<p>no</p>') }</script></head>\n<body><h1>Times</h1>"
        "<p>The ferry <b>cros</b>ses<br>every hour.<!-- not --><table><td>a<td>b</table>\n</DOC>"
    )
    documents, left_out = sgml(page, tmp_path)
    text = "Times The ferry crosses every hour. a b"
    assert documents == [("GX000-00", "River & ferries", text)]
    assert left_out == {}


def test_trec_files_in_latin_1(tmp_path):
    (tmp_path / "d").write_bytes(b"<DOC><DOCNO>1</DOCNO>\n<TEXT>caf\xe9 \xa35</TEXT></DOC>\x1a")
    (tmp_path / "t").write_bytes(b"<top><num>7<title>caf\xe9</top>")
    sources = [Source("documents", tmp_path / "d"), Source("topics", tmp_path / "t")]
    records = list(trec.read(sources, Intake(), encoding="latin-1"))
    assert records == [Document("1", "", "café £5"), Query("7", "café")]


TREC_1 = """<top>
<head> Tipster Topic Description
<num> Number:  051
<dom> Domain:  International Economics
<title> Topic:  Airbus Subsidies

<desc> Description:
Document will discuss government assistance to Airbus.

<smry> Summary:
Another field.

<narr> Narrative:
A relevant document will cite.

<con> Concept(s):
1. Airbus Industrie

<fac> Factor(s):
<nat> Nationality: US
</fac>
<def> Definition(s):
</top>
"""
WEB_TRACK = """<?xml version="1.0" encoding="UTF-8"?>
<webtrack2011>
<topic number="107" type="faceted">
  <query>cass county missouri</query>
  <description>Find demographic information &amp; maps.</description>
  <subtopic number="1" type="nav">Not this.</subtopic>
</topic>
<topic number="108"><query>ralph owen brewster</query><description>Who?</description></topic>
</webtrack2011>
"""


@pytest.mark.parametrize(
    ("file", "part", "expected"),
    [
        (TREC_1, "title", [("51", "Airbus Subsidies")]),
        (TREC_1, "description", [("51", "Document will discuss government assistance to Airbus.")]),
        (TREC_1, "narrative", [("51", "A relevant document will cite.")]),
        (WEB_TRACK, "title", [("107", "cass county missouri"), ("108", "ralph owen brewster")]),
        (
            WEB_TRACK,
            "description",
            [("107", "Find demographic information & maps."), ("108", "Who?")],
        ),
        (
            "<topics><topic number='1'><query>a</query><question>b</question>"
            "<narrative>c</narrative></topic></topics>",
            "description",
            [("1", "b")],
        ),
        (
            "<topic number='12'>\nA man of 58 &lt; 60.\n</topic>",
            "title",
            [("12", "A man of 58 < 60.")],
        ),
        ("<TOP><NUMBER>9</NUMBER><TITLE>of Terrier</TITLE></TOP>", "title", [("9", "of Terrier")]),
        (
            "<top><num>Number: 8</num><title>Topic: explain this query: select</title></top>",
            "title",
            [("8", "explain this query: select")],
        ),
        (
            "<top><num>8</num><title>Query: a form's word, not the title's</title></top>",
            "title",
            [("8", "Query: a form's word, not the title's")],
        ),
        ("<top lang='en'><num>126</num><title>x</title></top>", "title", [("126", "x")]),
        (
            "<top><num> C041 </num><EN-title>mad cow</EN-title></top>",
            "title",
            [("C041", "mad cow")],
        ),
        (
            "<topic lang='en'><identifier>10.2452/451-AH</identifier><title>t</title></topic>",
            "title",
            [("10.2452/451-AH", "t")],
        ),
    ],
)
def test_trec_topics_of_every_form(tmp_path, file, part, expected):
    (tmp_path / "t").write_text(file)
    queries = read_topics(tmp_path / "t", Intake(), topic_field=part)
    assert [query[:2] for query in queries] == expected


def test_zeros_before_a_topics_number_are_those_of_the_judgements(tmp_path):
    (tmp_path / "t").write_text(TREC_1)
    (tmp_path / "d").write_text("<DOC><DOCNO>d</DOCNO>x</DOC>")
    for number in ("51", "051"):
        (tmp_path / "q").write_text(f"{number} 0 d 1\n")
        sources = [Source("documents", tmp_path / "d"), Source("topics", tmp_path / "t")]
        records = trec.read([*sources, Source("qrels", tmp_path / "q", "test")], Intake())
        assert [r.query_id for r in records if not isinstance(r, Document)] == [number, number]


@pytest.mark.parametrize("role", ["documents", "topics"])
def test_trec_files_that_hold_nothing_say_so(tmp_path, role):
    (tmp_path / "f").write_text("1\tsome query\n")
    with pytest.raises(DataError, match=rf"f: must hold at least one {role[:-1]}, <"):
        list(trec.read([Source(role, tmp_path / "f")], Intake()))
    intake = Intake(skip_bad=True)
    assert list(trec.read([Source(role, tmp_path / "f")], intake)) == []
    assert intake.skipped == 1
