"""Small files of each format, as its repository describes it, and what they become."""

import csv
import json
from types import SimpleNamespace

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import (
    columns,
    dpr,
    labelled_pairs,
    mrqa,
    msmarco,
    multireqa,
    trec,
)
from tfde.data.formats.json_array import read_json_array
from tfde.data.formats.records import Answers, Judgement, LabelledPair, Source, TrainingPair
from tfde.data.formats.registry import write_format
from tfde.data.formats.trec import read_topics
from tfde.data.formats.trec_markup import read_documents
from tfde.data.ids import id_of_text
from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import write_lines
from tfde.storage.intake import Intake
from tfde.types import Document, Query

CONTEXT = "It began in 1973. Prices rose in 1973."


def read(module, *sources, **options):
    return list(module.read(sources, Intake(), **options))


def of_kind(records, kind):
    return [record for record in records if isinstance(record, kind)]


def mrqa_file(path):
    question = {
        "qid": "0a1b",
        "question": " When  did it begin? ",
        "question_tokens": [["When", 1]],
        "detected_answers": [{"text": "1973", "char_spans": [[12, 15], [33, 36]]}],
        "answers": ["1973", "in 1973", "1973"],
    }
    write_lines(
        path,
        [
            json.dumps({"header": {"dataset": "SQuAD", "split": "train"}}),
            json.dumps({"context": CONTEXT, "qas": [question]}),
            json.dumps({"context": CONTEXT, "qas": [question | {"qid": "0a1c"}]}),
        ],
    )
    return path


def test_mrqa_keeps_a_context_once(tmp_path):
    records = read(mrqa, Source("contexts", mrqa_file(tmp_path / "m.jsonl"), "dev"))
    doc_id = id_of_text(CONTEXT)
    assert records == [
        Document(doc_id, "", CONTEXT),
        Query("0a1b", "When did it begin?"),
        Judgement("dev", "0a1b", doc_id, 1),
        Answers("0a1b", ("1973", "in 1973")),
        Query("0a1c", "When did it begin?"),
        Judgement("dev", "0a1c", doc_id, 1),
        Answers("0a1c", ("1973", "in 1973")),
    ]


def test_multireqa_every_sentence_with_an_answer_is_relevant(tmp_path):
    spans = [(0, 17), (18, 38), (0, 8)]
    write_lines(
        tmp_path / "c.jsonl",
        (
            json.dumps(
                {"candidate_id": f"SQuAD_0a1b/_0_{n}", "response_start": a, "response_end": b}
            )
            for n, (a, b) in enumerate(spans)
        ),
    )
    first = json.loads(mrqa_file(tmp_path / "m.jsonl").read_text().splitlines()[1])
    write_lines(tmp_path / "one.jsonl", [json.dumps(first)])
    records = read(
        multireqa,
        Source("mrqa", tmp_path / "one.jsonl", "dev"),
        Source("boundaries", tmp_path / "c.jsonl", "dev"),
    )
    assert of_kind(records, Document) == [
        Document("SQuAD_0a1b/_0_0", "", "It began in 1973."),
        Document("SQuAD_0a1b/_0_2", "", "It began"),
        Document("SQuAD_0a1b/_0_1", "", "Prices rose in 1973."),
    ]
    assert [j.doc_id for j in of_kind(records, Judgement)] == ["SQuAD_0a1b/_0_0", "SQuAD_0a1b/_0_1"]


ASKED = ("001012c630234d09b19c65f6964af34a", "7028edd2a82f4b7287fc6a9d15f6f359")


@pytest.mark.parametrize(
    ("candidate_id", "question_ids"),
    [
        (f"SQuAD_{ASKED[0]}/{ASKED[1]}/_0", ASKED),
        (f"NaturalQuestions_{ASKED[0]}/_12", ASKED[:1]),
        (f"HotpotQA_{ASKED[0]}/_0_1", ASKED[:1]),
        (f"{ASKED[0]}_0_1", ASKED[:1]),
        (ASKED[0], ASKED[:1]),
    ],
)
def test_multireqa_question_ids(candidate_id, question_ids):
    """The first three are forms of the repository's own files."""
    assert multireqa.question_ids(candidate_id) == question_ids


def test_multireqa_sentences_of_a_context_with_several_questions(tmp_path):
    candidates = [
        {"candidate_id": f"SQuAD_0a1b/0a1c/_{n}", "response_start": a, "response_end": b}
        for n, (a, b) in enumerate([(0, 17), (18, 38)])
    ]
    write_lines(tmp_path / "c.jsonl", map(json.dumps, candidates))
    records = read(
        multireqa,
        Source("mrqa", mrqa_file(tmp_path / "m.jsonl"), "dev"),
        Source("boundaries", tmp_path / "c.jsonl", "dev"),
    )
    assert [d.doc_id for d in of_kind(records, Document)] == [
        "SQuAD_0a1b/0a1c/_0",
        "SQuAD_0a1b/0a1c/_1",
    ]
    assert {j.query_id for j in of_kind(records, Judgement)} == {"0a1b", "0a1c"}


def test_nq_open_questions_with_answers(tmp_path):
    line = {"question": "who wrote it", "answer": ["Bobby Scott", "Bob Russell"]}
    write_lines(tmp_path / "NQ-open.dev.jsonl", [json.dumps(line)])
    write_lines(tmp_path / "psgs.tsv", ["id\ttext\ttitle", "1\tHe ain't heavy.\tA song"])
    records = read(
        SimpleNamespace(read=dpr.read_open_questions),
        Source("questions", tmp_path / "NQ-open.dev.jsonl"),
        Source("passages", tmp_path / "psgs.tsv"),
    )
    assert records == [
        Document("1", "A song", "He ain't heavy."),
        Query("NQ-open.dev-1", "who wrote it"),
        Answers("NQ-open.dev-1", ("Bobby Scott", "Bob Russell")),
    ]


def test_msmarco_files(tmp_path):
    write_lines(tmp_path / "collection.tsv", ["0\tThe presence of", '1\t"Quoted" text'])
    write_lines(tmp_path / "queries.tsv", ["10\twhat is it", "11\tnever judged"])
    write_lines(tmp_path / "qrels.tsv", ["10\t0\t1\t1"])
    write_lines(tmp_path / "triples.tsv", ["10\t1\t0"])
    records = read(
        msmarco,
        Source("collection", tmp_path / "collection.tsv"),
        Source("queries", tmp_path / "queries.tsv"),
        Source("qrels", tmp_path / "qrels.tsv", "train"),
        Source("id_triples", tmp_path / "triples.tsv", "train"),
    )
    assert records == [
        Document("0", "", "The presence of"),
        Document("1", "", '"Quoted" text'),
        Query("10", "what is it"),
        Query("11", "never judged"),
        Judgement("train", "10", "1", 1),
        TrainingPair("train", Query("10", "what is it"), "1", ("0",)),
    ]


def test_dpr_as_published(tmp_path):
    """Fields beyond those of the README are left alone; a passage may stand there twice."""
    positive = {"title": "Big", "text": "seven episodes", "score": 1000, "passage_id": "18768923"}
    example = {
        "dataset": "nq_train_psgs_w100",
        "question": "big little lies season 2 how many episodes",
        "answers": ["seven"],
        "positive_ctxs": [positive, positive | {"score": 13.4}],
        "negative_ctxs": [{"title": "", "text": "random", "psg_id": 7}],
        "hard_negative_ctxs": [{"title": "Little", "text": "no", "passage_id": "5"}],
    }
    (tmp_path / "train.json").write_text(json.dumps([example, example], indent=4))
    records = read(dpr, Source("examples", tmp_path / "train.json", "train"))
    query = Query(id_of_text(example["question"]), example["question"])
    pair = TrainingPair("train", query, "18768923", ("5",))
    assert records == [
        Document("18768923", "Big", "seven episodes"),
        Document("7", "", "random"),
        Document("5", "Little", "no"),
        query,
        Answers(query.query_id, ("seven",)),
        Judgement("train", query.query_id, "18768923", 1),
        pair,
        pair,
    ]


def test_dpr_passages_are_quoted_as_csv(tmp_path):
    with open(tmp_path / "p.tsv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows(
            [("id", "text", "title"), (1, 'a "b"\n\nc', "T\t2"), (2, "é" * 200_000, "")]
        )
    assert list(dpr.read_passages(tmp_path / "p.tsv", Intake())) == [
        Document("1", "T\t2", 'a "b"\n\nc'),
        Document("2", "", "é" * 200_000),
    ]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_long_json_arrays_come_element_by_element(tmp_path, indent, name):
    items = [{"n": n, "é\n": ["\U0001f600" * 50] * 40} for n in range(400)]  # 8 chunks or more
    items.insert(3, {"long": "x" * 3_000_000})
    text = json.dumps(items, indent=indent)
    write_lines(tmp_path / name, [text])
    found = list(read_json_array(tmp_path / name, Intake()))
    assert [item for _, item in found] == items
    lines = text.splitlines()
    for number, item in found[:10]:
        assert lines[number - 1].strip().startswith("[{" if indent is None else "{"), item


def test_empty_json_array(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf [ \n ] \n")
    assert list(read_json_array(tmp_path / "a.json", Intake())) == []


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


ROWS = [
    {"anchor": "a1", "positive": "p1", "negative_1": "n1", "negative_2": "n2"},
    {"anchor": 'a "2"\n', "positive": "p1, é", "negative_1": "", "negative_2": "n1"},
]


def write_rows(path, kind):
    if kind == "jsonl":
        write_lines(path, map(json.dumps, ROWS))
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(ROWS[0]), delimiter="," if kind == "csv" else "\t")
            table.writeheader()
            table.writerows(ROWS)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_columns_are_the_same_in_every_kind_of_table(tmp_path, kind):
    write_rows(tmp_path / f"rows.{kind}", kind)
    records = read(columns, Source("rows", tmp_path / f"rows.{kind}", "train"))
    texts = {record.doc_id: record.text for record in of_kind(records, Document)}
    assert list(texts.values()) == ["p1", "n1", "n2", "p1, é"]
    assert [
        (pair.query.text, texts[pair.positive], [texts[n] for n in pair.negatives])
        for pair in of_kind(records, TrainingPair)
    ] == [("a1", "p1", ["n1", "n2"]), ('a "2"\n', "p1, é", ["n1"])]
    assert len(of_kind(records, Judgement)) == 2


def test_columns_that_are_named(tmp_path):
    (tmp_path / "my.csv").write_text('Question,Id,Answer\n"a\nb",1,c\n', "utf-8")
    source = Source("rows", tmp_path / "my.csv", "train")
    records = read(columns, source, columns=["Question", "Answer"])
    assert [record.text for record in of_kind(records, Query)] == ["a\nb"]
    assert [record.text for record in of_kind(records, Document)] == ["c"]
    with pytest.raises(DataError, match=r"csv:1: no column is called 'question', which .*: 'Q"):
        read(columns, source, columns=["question", "Answer"])
    with pytest.raises(ConfigError, match="`columns` must be KIND=NAME, or query's and document's"):
        read(columns, source, columns=["Question"])


def test_columns_by_other_names_and_lists(tmp_path):
    rows = [{"query": "q", "answer": "a", "negatives": ["x", "y"], "score": 3}]
    write_lines(tmp_path / "rows.jsonl", map(json.dumps, rows))
    records = read(columns, Source("rows", tmp_path / "rows.jsonl", "train"))
    assert [record.text for record in of_kind(records, Document)] == ["a", "x", "y"]


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    from tfde.errors import DataError

    write_rows(tmp_path / "rows.parquet", "parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"rows\.parquet: must be a whole parquet file \("
    ) as caught:
        read(columns, Source("rows", tmp_path / "rows.parquet", "train"))
    assert "\n" not in str(caught.value)


GLUE = {
    "MRPC": 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tHe "said so.\tThey did.\n',
    "RTE": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n",
    "QNLI": "index\tquestion\tsentence\tlabel\n0\tA\tB\tnot_entailment\n",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    "\tscore\n0\tmain\tMSR\t2012\t1\tnone\tnone\tA\tB\t5.000\n",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA\tB\t0\n",
    "MNLI": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse"
    "\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label"
    "\n0\t31\t31n\tx\t( A )\t( B )\t(A)\t(B)\tA\tB\tentailment\tneutral\n",
}
EXPECTED = {
    "MRPC": ('He "said so.', "They did.", "1"),
    "RTE": ("A", "B", "entailment"),
    "QNLI": ("A", "B", "not_entailment"),
    "STS-B": ("A", "B", "5.000"),
    "QQP": ("A", "B", "0"),
    "MNLI": ("A", "B", "neutral"),
}


@pytest.mark.parametrize("name", GLUE)
def test_columns_of_glue(tmp_path, name):
    (tmp_path / "rows.tsv").write_text("\ufeff" + GLUE[name], encoding="utf-8")
    (pair,) = read(labelled_pairs, Source("rows", tmp_path / "rows.tsv", "dev"))
    assert pair == LabelledPair("dev", *EXPECTED[name])


def test_dpr_contexts_may_have_a_title_alone(tmp_path):
    document = Document("d", "Only a title", "")
    records = [document, Query("q", "what?"), Judgement("test", "q", "d", 1)]
    write_dataset(tmp_path / "data", records)
    write_format("dpr", DatasetDirectory(tmp_path / "data"), tmp_path / "dpr")
    source = Source("examples", tmp_path / "dpr" / "test.json", "test")
    assert list(dpr.read([source], Intake())) == records


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


CONTEXTS = {
    "[PAR] [TLE] York mill [SEP] It stands. Built in 1820. [PAR] [TLE] Leeds inn [SEP] Old.": (
        "",
        "York mill\nIt stands. Built in 1820.\nLeeds inn\nOld.",
    ),
    "[DOC] [TLE] A made up page [PAR] First. [PAR] Second of 1820.": (
        "A made up page",
        "First.\nSecond of 1820.",
    ),
    "No marks, 1820 [brackets].": ("", "No marks, 1820 [brackets]."),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_marks_of_mrqa_are_structure(tmp_path, context):
    title, text = CONTEXTS[context]
    at = context.index("1820")
    spans = {"text": "1820", "char_spans": [[at, at + 3]], "token_spans": [[0, 0]]}
    question = {"qid": "q", "question": "When?", "answers": ["1820"], "detected_answers": [spans]}
    (tmp_path / "m").write_text(json.dumps({"id": "", "context": context, "qas": [question]}))
    (paragraph,) = map(mrqa.without_marks, mrqa.read_mrqa(tmp_path / "m", Intake()))
    assert paragraph.document[1:3] == (title, text)
    (start,) = paragraph.questions[0].answer_starts
    assert text[start : start + 4] == "1820"


TABLES = {
    # sentence-transformers' pairs with a class: 0 is judged, and not relevant.
    "question,answer,label\nq,a,1\nq,b,0\n": [("q", "", "a", 1), ("q", "", "b", 0)],
    "Query,Passage,Score\nq,a,2.0\nq,b,0.0\n": [("q", "", "a", 2), ("q", "", "b", 0)],
    'question,title,answer\nq,T,a\nq,T,"[""b"", ""c""]"\n': [
        ("q", "T", "a", 1),
        ("q", "T", "b", 1),
        ("q", "T", "c", 1),
    ],
    'anchor,positive,labels\nq,"[""a"", ""b""]","[1, 0]"\n': [("q", "", "a", 1), ("q", "", "b", 0)],
    "question,answer,source\nq,[1] says so,x\n": [("q", "", "[1] says so", 1)],
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_as_people_have_them(tmp_path, table):
    (tmp_path / "my.csv").write_text(table)
    records = read(columns, Source("rows", tmp_path / "my.csv", "train"))
    texts = {record[0]: record for record in records if isinstance(record, Document | Query)}
    judged = [
        (texts[r.query_id].text, texts[r.doc_id].title, texts[r.doc_id].text, r.relevance)
        for r in of_kind(records, Judgement)
    ]
    assert judged == TABLES[table]


def test_every_kind_of_column_can_be_named(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("nr,Frage,Kopf,Antwort,key,gut,x\n7,q,T,a,d-1,3,-\n8,r,T,a,d-1,0,-\n")
    given = ["query=Frage", "document=Antwort", "title=Kopf", "id=key", "query_id=nr", "label=gut"]
    records = read(columns, Source("rows", path, "train"), columns=given)
    assert records == [
        Document("d-1", "T", "a", {"x": "-"}),
        Query("7", "q"),
        Judgement("train", "7", "d-1", 3),
        Query("8", "r"),
        Judgement("train", "8", "d-1", 0),
    ]
    assert columns.understood(Source("rows", path), given) == (
        "query from 'Frage'; document from 'Antwort'; title from 'Kopf'; id from 'key';"
        " query_id from 'nr'; label from 'gut'; metadata of documents from 'x'"
    )


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        ("query,answer,score\nq,a,0.83\n", None, r"my\.csv:2: column 'score' must hold grades: 0"),
        (
            "query,answer,label\nq,a,-1\n",
            None,
            r"my\.csv:2: column 'label' must hold grades: .* '-1'",
        ),
        ("query,answer,label\nq,a,\n", None, r"my\.csv:2: column 'label' must hold grades"),
        ('query,answer,label\nq,a,"[1, 0]"\n', None, r"a label for each of the 1 documents"),
        (
            "query,answer,doc_id\nq,a,1\nq,b,1\n",
            None,
            r"my\.csv:3: an id must stand for one text.*'1'",
        ),
        (
            "query,answer\nq,a\n",
            ["query=Q"],
            r"my\.csv:1: no column is called 'Q', which `columns` names for the query",
        ),
        (
            "positive,negative\nx,y\n",
            None,
            r"my\.csv:1: no column holds the query: it must be called anchor, query or question,"
            r" or be named by `columns`: query=NAME\. Received: 'positive, negative'",
        ),
        (
            "frage,antwort\nq,a\n",
            ["question=frage", "answer=antwort"],
            r"`columns` must be KIND=NAME with a kind of query, do.*: 'question=frage'",
        ),
        (
            "query,answer\nq,a\n",
            ["query=query", "doc=answer"],
            r"KIND=NAME with a kind of query, do",
        ),
    ],
)
def test_tables_that_cannot_be_meant(tmp_path, table, given, message):
    (tmp_path / "my.csv").write_text(table)
    with pytest.raises((DataError, ConfigError), match=message):
        read(columns, Source("rows", tmp_path / "my.csv", "train"), columns=given)


def test_a_header_that_lacks_a_column_is_no_bad_row(tmp_path):
    (tmp_path / "my.csv").write_text("frage,antwort\nq,a\nr,b\n")
    intake = Intake(skip_bad=True)
    with pytest.raises(DataError, match=r"my\.csv:1: no column holds the query"):
        list(columns.read([Source("rows", tmp_path / "my.csv", "train")], intake))
    assert (intake.skipped, intake.stopped_by) == (0, None)


def test_scores_that_are_no_grades_can_be_left_alone(tmp_path):
    (tmp_path / "my.csv").write_text("query,answer,score\nq,a,0.83\n")
    source = Source("rows", tmp_path / "my.csv", "train")
    (judgement,) = of_kind(read(columns, source, columns=["label="]), Judgement)
    assert judgement.relevance == 1


def test_rows_that_were_there_before_are_counted_and_others_are_not(tmp_path):
    table = tmp_path / "t.jsonl"
    rows = [{"question": "a", "answer": "x"}, {"question": "a", "answer": "y"}]
    rows += [
        {"question": "a", "answer": "x", "kind": "told again"},
        {"question": "b", "answer": "x"},
    ]
    triplets = [{**rows[0], "negative": f"n{number}"} for number in (1, 2, 1)]
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *triplets]))
    intake = Intake()
    records = list(columns.read([Source("rows", table, "train")], intake))
    assert intake.left_out == {"rows that were there before": 1}
    assert sum(isinstance(record, TrainingPair) for record in records) == 3
    assert sum(isinstance(record, Judgement) for record in records) == 3
