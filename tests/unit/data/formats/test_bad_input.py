"""What is wrong in a file is named by its place, leaves nothing behind, and is skipped if asked."""

import gzip
import json
import os
from types import SimpleNamespace

import pytest

from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import (
    beir,
    columns,
    dpr,
    labelled_pairs,
    mrqa,
    msmarco,
    multireqa,
    trec,
)
from tfde.data.formats.records import Source
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.types import Query

nq_open = SimpleNamespace(read=dpr.read_open_questions)

CONTEXT = "It began in 1973. Prices rose."


def line(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def mrqa_line(qid="a", span=(12, 15), **changes):
    question = {
        "qid": qid,
        "question": "When?",
        "detected_answers": [{"text": "1973", "char_spans": [list(span)]}],
        "answers": ["1973"],
    }
    return line({"context": CONTEXT, "qas": [question | changes]})


def candidate(start=0, stop=17, candidate_id="SQuAD_a/_0_0"):
    return line({"candidate_id": candidate_id, "response_start": start, "response_end": stop})


def dpr_example(**changes):
    example = {
        "question": "When?",
        "answers": ["1973"],
        "positive_ctxs": [{"title": "Crisis", "text": CONTEXT}],
    }
    return {key: value for key, value in (example | changes).items() if value is not None}


SGML = "<DOC>\n<DOCNO> d1 </DOCNO>\n<TEXT>\n{}\n</TEXT>\n</DOC>\n"
TOPIC = "<top>\n<num> Number: 301\n<title> crime\n<desc> Description:\nWhich?\n</top>\n"

# module, files by role, message, bad records when they are skipped
BAD = [
    (mrqa, {"contexts": line({"qas": []})}, r"contexts:1: field 'context' is missing", 1),
    (mrqa, {"contexts": line({"context": "x"})}, r"contexts:1: field 'qas' is missing", 1),
    (
        mrqa,
        {"contexts": mrqa_line(span=(12, 30))},
        r"contexts:1: a span of 'char_spans' must be \[first, last\] in \[0, 30\)\. .*\[12, 30\]",
        1,
    ),
    (mrqa, {"contexts": mrqa_line(span=(-1, 3))}, r"contexts:1: a span of 'char_spans' must", 1),
    (mrqa, {"contexts": mrqa_line(span=(5, 3))}, r"contexts:1: a span of 'char_spans' must", 1),
    (
        mrqa,
        {"contexts": mrqa_line(detected_answers=[])},
        r"contexts:1: field 'detected_answers' must hold at least one span\. Received: 'a'",
        1,
    ),
    (mrqa, {"contexts": mrqa_line(qid="a b")}, r"1: field 'qid' must not hold white space", 1),
    (mrqa, {"contexts": mrqa_line(answers="x")}, r"1: field 'answers' must be a list", 1),
    (mrqa, {"contexts": mrqa_line() * 2}, r"contexts:2: field '_id' must be unique", 3),
    (
        multireqa,
        {"mrqa": mrqa_line(), "boundaries": candidate(stop=31)},
        r"boundaries:1: field 'response_end' must be at most 30, the context's length\. Rec.*31",
        2,
    ),
    (
        multireqa,
        {"mrqa": mrqa_line(), "boundaries": candidate() + candidate(5, 5)},
        r"boundaries:2: must hold 0 <= response_start < response_end\. Received: \[5, 5\]",
        1,
    ),
    (
        multireqa,
        {"mrqa": mrqa_line(), "boundaries": candidate() + candidate("0")},
        r"boundaries:2: field 'response_start' must be an integer",
        1,
    ),
    (
        multireqa,
        {"mrqa": mrqa_line(), "boundaries": candidate() + candidate(0, 4, "SQuAD_b/_0_0")},
        r"boundaries:2: field 'candidate_id' must name a question of the MRQA file\. .*SQuAD_b",
        1,
    ),
    (
        multireqa,
        {"mrqa": mrqa_line(), "boundaries": candidate(18, 30)},
        r"mrqa:1: a sentence of the boundaries must hold an answer\. Received: 'a'",
        1,
    ),
    (
        msmarco,
        {"collection": "1\tone\n2 two\n"},
        r"collection:2: must have 2 tab-separated columns: pid, passage\. Received: '2 two'",
        1,
    ),
    (msmarco, {"collection": "1\t \n"}, r"collection:1: must have 2 tab-separated columns", 1),
    (
        msmarco,
        {"collection": "1\tone\n", "queries": "7\twhat\n", "qrels": "7 0 1\n"},
        r"qrels:1: a judgement has four columns: query-id iteration doc-id relevance",
        1,
    ),
    (
        msmarco,
        {"collection": "1\tone\n", "queries": "7\twhat\n", "qrels": "7 0 1 x\n"},
        r"qrels:1: the relevance \(column 4\) must be an integer from .*\. Received: 'x'",
        1,
    ),
    (
        msmarco,
        {"collection": "1\tone\n", "queries": "7\twhat\n", "id_triples": "8\t1\t1\n"},
        r"id_triples:1: the first column must be an id of the queries file\. Received: '8'",
        1,
    ),
    (msmarco, {"triples": "q\tp\n"}, r"triples:1: must have 3 tab-separated columns", 1),
    (
        dpr,
        {"examples": "{}"},
        r"examples:1: the file must be a JSON array\. Received: '\{\}'",
        None,
    ),
    (
        dpr,
        {"examples": json.dumps([dpr_example(), dpr_example()])[:-30]},
        r"examples:1: must be JSON \(Unterminated string",
        None,
    ),
    (
        dpr,
        {"examples": json.dumps([dpr_example()])[:-1]},
        r"examples:1: must be JSON \(',' or",
        None,
    ),
    (dpr, {"examples": "[3]"}, r"examples:1: an element must be an object\. Received: 3", 1),
    (
        dpr,
        {"examples": json.dumps([dpr_example(), dpr_example(question=None)], indent=4)},
        r"examples:14: field 'question' is missing",
        1,
    ),
    (
        dpr,
        {"examples": json.dumps([dpr_example(positive_ctxs=[])])},
        r"examples:1: field 'positive_ctxs' must not be empty\. Received: 'When\?'",
        1,
    ),
    (
        dpr,
        {"examples": json.dumps([dpr_example(hard_negative_ctxs=["x"])])},
        r"examples:1: field 'hard_negative_ctxs' must hold objects\. Received: 'x'",
        1,
    ),
    (
        dpr,
        {"examples": json.dumps([dpr_example()]), "passages": "id\ttext\ttitle\n1\tx\ty\n"},
        r"examples:1: a context must have a 'passage_id' or 'psg_id' where a passages file is gi",
        1,
    ),
    (
        dpr,
        {"examples": "[]", "passages": "id\ttext\n1\tx\n"},
        r"passages:1: column 'title' is missing\. Received: 'id text'",
        None,
    ),
    (
        dpr,
        {"examples": "[]", "passages": "id\ttext\ttitle\n1\tx\ty\n2\tx\n"},
        r"passages:3: a row must have 3 cells, as the header; it has 2\.",
        1,
    ),
    (
        dpr,
        {"examples": "[]", "passages": 'id\ttext\ttitle\n1\tx\ty\n2\t"x\ty\n3\tx\ty\n'},
        r"passages:3: must be a table in CSV's quoting \(unexpected end of data\)",
        1,
    ),
    (
        nq_open,
        {"questions": line({"question": "when"}), "passages": "id\ttext\ttitle\n1\tx\ty\n"},
        r"questions:1: field 'answer' is missing\. Received: \{'question': 'when'\}",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one") + SGML.format("two")[:-8]},
        r"documents:7: <DOC> must be closed by </DOC>; the file is cut or damaged\.",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one").replace("</DOC>\n", "") + SGML.format("two")},
        r"documents:1: <DOC> must be closed by </DOC>; the file is cut or damaged\.",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one") + "<DOC>\n<TEXT>x</TEXT>\n</DOC>\n"},
        r"documents:7: a document must have an id without white space in <DOCNO>",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one"), "topics": TOPIC.replace("301", "")},
        r"topics:1: a topic must have one number in <num>",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one"), "topics": TOPIC.replace("crime", "")},
        r"topics:1: topic 301 must have text in <title>",
        1,
    ),
    (
        trec,
        {"documents": SGML.format("one"), "topics": TOPIC[:-8]},
        r"topics:1: <top> must be closed by </top>",
        1,
    ),
    (
        columns,
        {"rows.jsonl": line({"anchor": "a", "text": "b"})},
        r"rows\.jsonl:1: no column holds the document: it must be called positive, answer, ",
        1,
    ),
    (
        columns,
        {"rows.jsonl": line({"anchor": "a", "positive": " "})},
        r"rows\.jsonl:1: field 'positive' must not be empty",
        1,
    ),
    (
        columns,
        {"rows.jsonl": line({"anchor": "a", "positive": "b", "negative": 3})},
        r"rows\.jsonl:1: field 'negative' must be a string\. Received: 3",
        1,
    ),
    (
        labelled_pairs,
        {"rows.tsv": "sentence1;sentence2;label\na;b;1\n"},
        r"rows\.tsv:1: cells must be separated by tabs\. Received: 'sentence1;sentence2;label'",
        None,
    ),
    (columns, {"rows.csv": ""}, r"rows\.csv: must begin with a line that names the columns", 1),
]


def sources_of(folder, files):
    made = []
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        made.append(Source(name.partition(".")[0], path, "train"))
    return made


@pytest.mark.parametrize(("module", "files", "message", "skipped"), BAD)
def test_bad_record_is_named_and_nothing_is_written(tmp_path, module, files, message, skipped):
    (tmp_path / "in").mkdir()
    sources = sources_of(tmp_path / "in", files)
    intake = Intake()
    with pytest.raises(DataError, match=message) as caught:
        write_dataset(tmp_path / "out", module.read(sources, intake), intake=intake)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]
    if skipped is not None:
        intake = Intake(skip_bad=True)
        list(module.read(sources, intake))
        missing = intake.skipped < skipped
        if missing:  # the writer finds the rest
            intake = Intake(skip_bad=True)
            write_dataset(tmp_path / "out", module.read(sources, intake), intake=intake)
        assert intake.skipped == skipped


@pytest.mark.parametrize(
    ("module", "role"),
    [
        (mrqa, "contexts"),
        (msmarco, "collection"),
        (msmarco, "triples"),
        (dpr, "examples"),
        (nq_open, "questions"),
        (nq_open, "passages"),
        (trec, "documents"),
        (columns, "rows.jsonl"),
        (columns, "rows.csv"),
    ],
)
@pytest.mark.parametrize(
    ("content", "ending", "message"),
    [
        (b"caf\xe9 caf\xe9", "", r"must be UTF-8 \(byte 3"),
        (
            gzip.compress(b"x" * 999, mtime=0)[:-9],
            ".gz",
            r"the gzip stream must be whole \(Compressed file",
        ),
        (b"not packed", ".gz", r"the gzip stream must be whole \(Not a gzipped file"),
        (b"not packed", ".zst", r"the zstd stream must be whole"),
        (gzip.compress(b"x", mtime=0), "", r"is packed with gzip, so its name must end in \.gz"),
    ],
)
def test_broken_files_are_named(tmp_path, module, role, content, ending, message):
    (tmp_path / "in").mkdir()
    name = f"{role}{ending}"
    sources = sources_of(tmp_path / "in", {name: content})
    intake = Intake()
    with pytest.raises(DataError, match=message) as caught:
        write_dataset(tmp_path / "out", module.read(sources, intake), intake=intake)
    assert str(tmp_path / "in" / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


def test_beir_directory_without_a_corpus(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold corpus\.jsonl or corpus\.jsonl\.gz"):
        list(beir.read([Source("directory", tmp_path)], Intake()))


def test_beir_skips_what_is_bad_and_what_names_it(tmp_path):
    (tmp_path / "in" / "qrels").mkdir(parents=True)
    corpus = line({"_id": "d1", "text": "x"}, {"_id": "d2", "text": ""}, {"_id": "d3"})
    (tmp_path / "in" / "corpus.jsonl").write_text(corpus + "{\n")
    (tmp_path / "in" / "queries.jsonl").write_text(line({"_id": "q1", "text": "?"}, {"_id": 5}))
    judgements = "q1\td1\t1\nq1\td2\t1\nq1\td3\t1\nq1\td1\n"
    (tmp_path / "in" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    source = Source("directory", tmp_path / "in")
    with pytest.raises(DataError, match=r"corpus\.jsonl:3: field 'text' is missing"):
        write_dataset(tmp_path / "out", beir.read([source], Intake()))
    intake = Intake(skip_bad=True)
    counts = write_dataset(tmp_path / "out", beir.read([source], intake), intake=intake)
    assert (counts.documents, counts.queries, counts.judged) == (2, 1, {"test": 1})
    assert (counts.empty, counts.judged_elsewhere) == (1, 1)
    assert intake.skipped == 4
    # What was skipped stays in the denominator.
    judgements = (tmp_path / "out" / "qrels" / "test.tsv").read_text().splitlines()[1:]
    assert judgements == ["q1\td1\t1", "q1\td2\t1", "q1\td3\t1"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["mrqa"], r"one mrqa file and one boundaries file for split 'train'\. Received: mrqa$"),
        (["mrqa", "mrqa", "boundaries"], r"Received: mrqa, mrqa, boundaries$"),
    ],
)
def test_multireqa_needs_both_files(tmp_path, sources, message):
    sources = [Source(role, tmp_path / role, "train") for role in sources]
    with pytest.raises(ConfigError, match=message):
        list(multireqa.read(sources, Intake()))


def test_msmarco_triples_of_texts_stand_alone(tmp_path):
    sources = sources_of(tmp_path, {"collection": "1\tx\n", "triples": "a\tb\tc\n"})
    with pytest.raises(ConfigError, match=r"triples of texts have no ids, so they stand alone"):
        list(msmarco.read(sources, Intake()))


def test_names_of_tables_decide_their_kind(tmp_path):
    with pytest.raises(ConfigError, match=r"a table must be a \.jsonl, .*Received: 'rows\.xlsx'"):
        list(columns.read([Source("rows", tmp_path / "rows.xlsx", "train")], Intake()))


@pytest.mark.parametrize(
    ("content", "message", "kept"),
    [
        (
            "index\tquestion\tsentence\n0\ta\tb\n",
            r"rows:1: `columns` must be named, or be one of these sets",
            None,
        ),
        ("sentence1\tsentence2\tlabel\na\tb\n", r"rows:2: a row must have 3 cells.*it has 2", 0),
        ("sentence1\tsentence2\tlabel\na\t \t1\nc\td\t0\n", r"rows:2: a row must have 'sentenc", 1),
        ("sentence1\tsentence2\tgold_label\na\tb\t-\n", r"rows:2: a row must have 'sentence1'", 0),
        ("", r"rows: must begin with a line that names the columns", 0),
        ("sentence1\tsentence2\tlabel\n", r"rows: there is no pair of sentences", None),
    ],
)
def test_bad_tables_of_pairs(tmp_path, content, message, kept):
    (tmp_path / "in").mkdir()
    sources = sources_of(tmp_path / "in", {"rows": content})
    intake = Intake()
    with pytest.raises(DataError, match=message):
        labelled_pairs.write_labelled_pairs(
            tmp_path / "out", labelled_pairs.read(sources, intake), intake=intake
        )
    assert os.listdir(tmp_path) == ["in"]
    if kept is not None:
        intake = Intake(skip_bad=True)
        assert len(list(labelled_pairs.read(sources, intake))) == kept
        assert intake.skipped == 1


def test_a_quote_that_is_not_closed_costs_one_row(tmp_path):
    rows = [f"q{n}\tp{n}" for n in range(1000)]
    rows[100] = 'q100\t"oops'  # swallows the rest of the file
    rows[500] = '"q500\tp500'  # these two are one cell too few
    rows[502] = 'q502"\tp502\tn502'
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(["anchor\tpositive", *rows, ""]))
    source = Source("rows", path, "train")
    with pytest.raises(DataError, match=r"train\.tsv:102: must be a table in CSV's quoting"):
        list(columns.read([source], Intake()))
    intake, lines = Intake(skip_bad=True), []
    for record in columns.read([source], intake):
        if isinstance(record, Query):
            lines.append((intake.line, record.text))
    good = [n for n in range(1000) if n not in (100, 500, 502)]
    assert lines == [(n + 2, f"q{n}") for n in good]
    assert intake.skipped == 3


def test_a_row_of_several_lines_has_as_many_cells_as_the_header(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('anchor,positive\n"a\nb",c,d\n"e\n\nf",g\n')
    source = Source("rows", path, "train")
    with pytest.raises(DataError, match=r"csv:2: a row must have 2 cells.*has 3\. It goes on to l"):
        list(columns.read([source], Intake()))
    intake = Intake(skip_bad=True)
    queries = [r.text for r in columns.read([source], intake) if isinstance(r, Query)]
    assert queries == ["e\n\nf"]
