"""The field's own files, by our readers and by those of ir_datasets.

They are not ours to copy: `tests/field_files.sh` brings them, `TFDE_FIELD_FILES` names the folder.
"""

import gzip
import json
import os
import re
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ir_datasets import formats as theirs
from ir_datasets.datasets import clueweb09, cord19
from ir_datasets.util import LocalDownload
from missing import missing
from selectolax.lexbor import LexborHTMLParser

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import dpr, msmarco, multireqa, stack_exchange
from tfde.data.formats.mrqa import read_mrqa
from tfde.data.formats.records import Answers, Judgement, Source, TrainingPair
from tfde.data.formats.trec import read_topics
from tfde.data.formats.trec_markup import read_documents
from tfde.data.ids import id_of_text
from tfde.data.qrels import read_trec_qrels
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines
from tfde.types import Document, Query

FOLDER = os.environ.get("TFDE_FIELD_FILES", "")
pytestmark = pytest.mark.field_files
TOOLS = Path(FOLDER) / "castorini" / "anserini-tools"
TERRIER = Path(FOLDER) / "terrier-org" / "terrier-core" / "share"
MULTIREQA = Path(FOLDER) / "google-research-datasets" / "MultiReQA" / "data"


@pytest.fixture(scope="module", autouse=True)
def _folder():
    if not Path(FOLDER, "castorini").is_dir():
        missing(f"TFDE_FIELD_FILES={FOLDER!r} is not what tests/field_files.sh made")


# The library's patterns where a set closes its tags; it has such for some of its own sets.
CLOSED = {
    f"<{tag}> *({word}:)?": field
    for tag, word, field in (
        ("num", "Number", "query_id"),
        ("title", "Topic", "title"),
        ("desc", "Description", "description"),
        ("narr", "Narrative", "narrative"),
    )
}
TAGS = ("</num>", "</title>", "</desc>", "</narr>")
PARTS = {"title": "title", "description": "description", "narrative": "narrative"}


def plain(text):
    return " ".join((text or "").split())


def tagged(path):
    return theirs.TrecQueries(path)


def closed(path):
    return theirs.TrecQueries(path, qtype_map=CLOSED, remove_tags=TAGS)


def covid(path):
    return theirs.TrecXmlQueries(path, qtype=theirs.TrecQuery, qtype_map=cord19.QTYPE_MAP)


def web(path):
    return theirs.TrecXmlQueries(path, qtype=clueweb09.TrecWebTrackQuery)


TOPICS = [
    *((f"adhoc.{years}", tagged, PARTS, 50) for years in ("151-200", "301-350", "351-400")),
    ("adhoc.401-450", tagged, PARTS, 50),
    ("adhoc.451-550", tagged, PARTS, 100),
    ("core17", tagged, PARTS, 50),
    ("core18", closed, PARTS, 50),
    ("robust04", tagged, PARTS, 250),
    ("robust05", tagged, PARTS, 50),
    *((f"terabyte{y}", tagged, PARTS, 50) for y in ("04.701-750", "05.751-800", "06.801-850")),
    ("trec02ar-ar", tagged, PARTS, 50),
    ("trec02ar-en", tagged, PARTS, 50),
    ("fire12en.176-225", closed, PARTS, 50),
    ("fire12bn.176-225", closed, PARTS, 50),
    ("fire12hi.176-225", closed, PARTS, 49),  # as in the file
    *((f"covid-round{r}", covid, PARTS, 25 + 5 * r) for r in range(1, 6)),
    *(
        (f"web.{years}", web, {"title": "query", "description": "description"}, 50)
        for years in ("1-50", "51-100", "101-150", "151-200", "201-250", "251-300")
    ),
]


@pytest.mark.parametrize(("name", "parser", "parts", "count"), TOPICS, ids=[t[0] for t in TOPICS])
def test_topics(name, parser, parts, count):
    ending = "xml" if name.startswith("covid") else "txt"
    path = TOOLS / "topics" / f"topics.{name}.{ending}"
    expected = list(parser(LocalDownload(path)).queries_iter())
    assert len(expected) == count
    for ours, field in parts.items():
        records = read_topics(path, Intake(skip_bad=True), topic_field=ours)
        other = {plain(q.query_id): plain(getattr(q, field)) for q in expected}
        assert {q.query_id: q.text for q in records} == {
            n: text for n, text in other.items() if text
        }


@pytest.mark.parametrize("name", ["adhoc.51-100", "adhoc.101-150"])
def test_topics_of_the_first_years(name):
    """The library's parser lets a part run on into those that it does not know (`<smry>` ...)."""
    path = TOOLS / "topics" / f"topics.{name}.txt"
    expected = {q.query_id: q for q in tagged(LocalDownload(path)).queries_iter()}
    assert len(expected) == 50
    titles = read_topics(path, Intake(), judged=expected)
    assert {q.query_id: q.text for q in titles} == {
        number: plain(query.title) for number, query in expected.items()
    }
    for field in ("description", "narrative"):
        for query in read_topics(path, Intake(), topic_field=field, judged=expected):
            assert plain(getattr(expected[query.query_id], field)).startswith(query.text)


def their_qrels(path):
    return [(q.query_id, q.doc_id, q.relevance) for q in path.qrels_iter()]


def same_qrels(path):
    ours = [tuple(record) for record in read_trec_qrels(path, Intake())]
    assert ours == their_qrels(theirs.TrecQrels(LocalDownload(path), {}))
    return len(ours)


@pytest.mark.parametrize(("name", "count"), [("robust05", 37_798), ("covid-complete", 69_318)])
def test_judgements(name, count):
    assert same_qrels(TOOLS / "qrels" / f"qrels.{name}.txt") == count


@pytest.mark.slow
def test_all_judgements():
    counts = [same_qrels(path) for path in sorted((TOOLS / "qrels").glob("qrels.*"))]
    assert len(counts) > 250
    assert sum(counts) > 3_000_000


def test_vaswani_is_whole():
    """Terrier's copy of the collection; outside of fields ir_datasets has no text."""
    documents = list(read_documents(TERRIER / "vaswani_npl" / "corpus" / "doc-text.trec", Intake()))
    markup = (TERRIER / "vaswani_npl" / "corpus" / "doc-text.trec").read_text()
    expected = re.findall(r"<DOCNO>(\d+)</DOCNO>\n(.*?)</DOC>", markup, re.DOTALL)
    assert documents == [Document(number, "", plain(text)) for number, text in expected]
    assert len(documents) == 11_429
    topics = list(read_topics(TERRIER / "vaswani_npl" / "query-text.trec", Intake()))
    assert len(topics) == 93
    assert same_qrels(TERRIER / "vaswani_npl" / "qrels") == 2_083


def test_terriers_play():
    """Two files with an empty document, fields in small letters and text outside of all fields."""
    for name, count in (("1", 14), ("2", 8)):
        path = TERRIER / "tests" / "shakespeare" / f"shakespeare-merchant.trec.{name}"
        ours = list(read_documents(path, Intake()))
        expected = list(theirs.TrecDocs(LocalDownload(path), parser="sax").docs_iter())
        assert len(ours) == count
        assert [(d.doc_id, d.title) for d in ours] == [
            (plain(d.doc_id), plain(d.title)) for d in expected
        ]


def test_anserinis_documents():
    """All of their words but dates; of ours they lack HEAD, which their HTML parser takes away."""
    folder = Path(FOLDER) / "castorini/anserini/src/test/resources/sample_docs/trec"
    seen = 0
    for path in sorted(folder.glob("*/*")):
        heads = Counter(" ".join(re.findall("<HEAD>(.*)</HEAD>", path.read_text())).split())
        ours = list(read_documents(path, Intake()))
        expected = list(theirs.TrecDocs(LocalDownload(path), parser="sax").docs_iter())
        for mine, other in zip(ours, expected, strict=True):
            if other.doc_id:  # NTCIR's form has its id in an attribute
                assert mine.doc_id == plain(other.doc_id)
            words = Counter(f"{other.title} {other.body}".split()) - Counter(["01/30/03"])
            mine_words = Counter(f"{mine.title} {mine.text}".split())
            assert not words - mine_words
            assert mine_words - words <= heads
            seen += 1
    assert seen == 8


def test_a_file_of_trec_disk_5():
    path = Path(FOLDER) / "trec_disks" / "FB396001"
    if not path.is_file():
        pytest.skip("TREC's disks are not for everybody")
    ours = list(read_documents(path, Intake(), encoding="latin-1"))
    parser = theirs.TrecDocs(LocalDownload(path), parser="sax", encoding="latin-1")
    assert [document[:3] for document in ours] == [
        (plain(d.doc_id), plain(d.title), plain(d.body)) for d in parser.docs_iter()
    ]
    assert len(ours) == 49


def test_msmarco_queries():
    path = TOOLS / "topics" / "topics.msmarco-passage.dev-subset.txt"
    ours = list(msmarco.read([Source("queries", path)], Intake()))
    expected = theirs.TsvQueries(LocalDownload(path)).queries_iter()
    assert [query[:2] for query in ours] == [tuple(query) for query in expected]
    assert len(ours) == 6_980


@pytest.mark.parametrize(("name", "count"), [("dev", 3_610), ("efficientqa.dev.1.1", 1_800)])
def test_nq_open(name, count):
    path = Path(FOLDER) / f"google-research-datasets/natural-questions/nq_open/NQ-open.{name}.jsonl"
    records = list(dpr.read_open_questions([Source("questions", path)], Intake()))
    expected = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [r.text for r in records if isinstance(r, Query)] == [r["question"] for r in expected]
    answers = [list(r.texts) for r in records if isinstance(r, Answers)]
    assert answers == [r["answer"] for r in expected]
    assert len(expected) == count


def test_dpr():
    """Five questions of NQ's dev file; four positive contexts stand there twice."""
    path = Path(FOLDER) / "deepset-ai/FARM/test/samples/dpr/sample.json"
    examples = json.loads(path.read_text(encoding="utf-8"))
    records = list(dpr.read([Source("examples", path, "dev")], Intake()))
    pools = {
        name: [[context["passage_id"] for context in example[name]] for example in examples]
        for name in ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
    }
    contexts = {
        Document(context["passage_id"], context["title"], context["text"])
        for example in examples
        for name in pools
        for context in example[name]
    }
    assert {r for r in records if isinstance(r, Document)} == contexts
    assert len(contexts) == 751
    answers = [list(r.texts) for r in records if isinstance(r, Answers)]
    assert answers == [example["answers"] for example in examples]
    judged = [(r.query_id, r.doc_id) for r in records if isinstance(r, Judgement)]
    assert Counter(query_id for query_id, _ in judged) == {
        id_of_text(example["question"]): len(set(positives))
        for example, positives in zip(examples, pools["positive_ctxs"], strict=True)
    }
    pairs = [r for r in records if isinstance(r, TrainingPair)]
    assert [(pair.query.query_id, pair.positive) for pair in pairs] == judged
    assert len(pairs) == 18
    negatives = dict(
        zip(map(itemgetter("question"), examples), pools["hard_negative_ctxs"], strict=True)
    )
    assert all(list(pair.negatives) == negatives[pair.query.text] for pair in pairs)


def test_mrqa():
    """NewsQA's sample of the shared task: every span holds the answer that the file names."""
    path = Path(FOLDER) / "mrqa/MRQA-Shared-Task-2019/baseline/NewsQA_sample.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    paragraphs = list(read_mrqa(path, Intake()))
    contexts = [line for line in lines if "header" not in line]
    assert [p.document.text for p in paragraphs] == [line["context"] for line in contexts]
    for paragraph, line in zip(paragraphs, contexts, strict=True):
        for question, item in zip(paragraph.questions, line["qas"], strict=True):
            assert question.query == Query(item["qid"], plain(item["question"]))
            spans = [
                (start, answer["text"])
                for answer in item["detected_answers"]
                for start, _ in answer["char_spans"]
            ]
            assert question.answer_starts == tuple(start for start, _ in spans)
            for start, text in spans:
                assert line["context"][start : start + len(text)].lower() == text.lower()


BOUNDARIES = {
    "dev/HotpotQA": 52_191,
    "dev/NaturalQuestions": 22_118,
    "dev/SQuAD": 10_642,
    "dev/TriviaQA": 238_339,
    "test/BioASQ": 14_158,
    "test/DuoRC": 5_525,
    "test/RelationExtraction": 3_301,
    "test/TextbookQA": 71_147,
    "train/SQuAD": 95_659,
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_multireqa_boundaries(name):
    """The counts of the repository; every id is one of MRQA's, 32 hexadecimal digits."""
    candidates = multireqa.read_boundaries(MULTIREQA / name / "candidates.json.gz", Intake())
    assert sum(map(len, candidates.values())) == BOUNDARIES[name]
    ids = [query_id for query_ids in candidates for query_id in query_ids]
    assert all(re.fullmatch("[0-9a-f]{32}", query_id) for query_id in ids)
    assert len(set(ids)) == len(ids)


def test_multireqa_of_squad_joins_its_contexts(data_dir, tmp_path):
    """MRQA's file is not at hand: SQuAD's contexts get its ids, by the sentences they have."""
    spans = defaultdict(list)
    for _, record in read_json_lines(data_dir / "multireqa_squad" / "corpus.jsonl.gz"):
        place = record["metadata"]
        spans[place["doc"]].append((place["start"], place["end"]))
    groups = defaultdict(list)
    path = MULTIREQA / "dev" / "SQuAD" / "candidates.json.gz"
    with gzip.open(path, "rt") as file:
        for record in map(json.loads, file):
            ids = record["candidate_id"].partition("_")[2].rpartition("/")[0]
            groups[ids].append((record["response_start"], record["response_end"]))
    ids_of = defaultdict(list)  # some contexts have the same places as another
    for ids, places in groups.items():
        ids_of[tuple(sorted(places))].append(ids.split("/"))
    contexts = {d.doc_id: d.text for d in DatasetDirectory(data_dir / "squad").documents()}
    lines, sentences = [], 0
    for doc_id, places in spans.items():
        if not ids_of[tuple(sorted(places))]:
            continue
        ids = ids_of[tuple(sorted(places))].pop()
        sentences += len(places)
        answer = {"text": "x", "char_spans": [[places[0][0], places[0][0]]]}
        qas = [
            {"qid": i, "question": "?", "answers": ["x"], "detected_answers": [answer]} for i in ids
        ]
        lines.append(json.dumps({"context": contexts[doc_id], "qas": qas}))
    assert len(lines) > 2_000  # of 2,067
    (tmp_path / "mrqa.jsonl").write_text("\n".join(lines), encoding="utf-8")
    intake = Intake(skip_bad=True)
    sources = [Source("mrqa", tmp_path / "mrqa.jsonl", "dev"), Source("boundaries", path, "dev")]
    records = list(multireqa.read(sources, intake))
    documents = [record for record in records if isinstance(record, Document)]
    assert len(documents) == sentences
    judged = {record.query_id for record in records if isinstance(record, Judgement)}
    assert len(judged) == sum(isinstance(record, Query) for record in records)


@pytest.mark.parametrize(
    ("name", "pairs"),
    [("kevswanberg/beer_tentrr", 637), ("Yoav-Shafir/Elasticsearch-Coffee-Search-Engine-JS", 208)],
)
def test_stack_exchange(name, pairs):
    path = Path(FOLDER) / name / "Posts.xml"
    rows = [row.attrib for row in ElementTree.parse(path).getroot()]
    answers = defaultdict(list)
    for row in rows:
        answers[row.get("ParentId")].append(row)
    expected = {}
    for row in rows:
        if row["PostTypeId"] == "1":
            accepted = [a for a in answers[row["Id"]] if a["Id"] == row.get("AcceptedAnswerId")]
            praised = [a for a in answers[row["Id"]] if int(a["Score"]) >= 1]
            best = sorted(praised, key=lambda a: (-int(a["Score"]), int(a["Id"])))
            if accepted or best:
                expected[row["Id"]] = (accepted or best)[0]
    records = list(stack_exchange.read([Source("posts", path, "train")], Intake()))
    found = {r.query_id: r.doc_id for r in records if isinstance(r, Judgement)}
    assert len(found) == pairs
    assert found == {query_id: answer["Id"] for query_id, answer in expected.items()}
    bodies = {answer["Id"]: answer["Body"] for answer in expected.values()}
    for record in records:
        if isinstance(record, Document):  # every character is there, but for white space
            theirs = LexborHTMLParser(bodies[record.doc_id]).body.text()
            assert "".join(record.text.split()) == "".join(theirs.split())
