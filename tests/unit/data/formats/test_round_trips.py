"""SQuAD and SciFact written out whole in the formats that we write, and read back.

The expected records come from the data sets themselves, by text where a format has no ids.
"""

import csv
import json
from collections import defaultdict

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import columns as sentence_transformers
from tfde.data.formats import dpr, msmarco, multireqa, squad, trec
from tfde.data.formats.records import (
    Answers,
    Judgement,
    Source,
    TrainingPair,
)
from tfde.data.formats.registry import write_format
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines, write_json_lines
from tfde.types import Document, Query

# SQuAD's dev file each time, both files (98,169 questions) with the slow tests.
SQUADS = ["squad_dev", pytest.param("squad_whole", marks=pytest.mark.slow)]
SETS = [*SQUADS, "scifact"]


@pytest.fixture(scope="module")
def squad_dev(data_dir, tmp_path_factory):
    """SQuAD's dev file as a dataset directory: 2,067 documents, 10,570 questions."""
    return converted_squad(data_dir, tmp_path_factory, ["dev"])


@pytest.fixture(scope="module")
def squad_whole(data_dir, tmp_path_factory):
    return converted_squad(data_dir, tmp_path_factory, ["train", "dev"])


def converted_squad(data_dir, tmp_path_factory, names):
    path = tmp_path_factory.mktemp("squad") / "squad"
    sources = [
        Source("articles", data_dir / "squad" / f"{name}-v1.1.squad.json.gz", name)
        for name in names
    ]
    intake = Intake()
    write_dataset(path, squad.read(sources, intake), intake=intake)
    return DatasetDirectory(path)


@pytest.fixture(scope="module")
def scifact(data_dir, tmp_path_factory):
    """SciFact with made-up hard negatives, for the formats that hold some."""
    source = DatasetDirectory(data_dir / "scifact")
    documents = list(source.documents())
    queries = list(source.queries())
    texts = {query.query_id: query for query in queries}
    records = [*documents, *queries]
    for split in source.splits:
        for query_id, judged in source.qrels(split).items():
            for number, (doc_id, relevance) in enumerate(judged.items()):
                records.append(Judgement(split, query_id, doc_id, relevance))
                negatives = tuple(d.doc_id for d in documents[number : number + 2])
                records.append(TrainingPair(split, texts[query_id], doc_id, negatives))
    path = tmp_path_factory.mktemp("scifact") / "scifact"
    write_dataset(path, records)
    return DatasetDirectory(path)


def read_back(module, sources, **options):
    return list(module.read(sources, Intake(), **options))


def of_kind(records, kind):
    return [record for record in records if isinstance(record, kind)]


def plain(text):
    return " ".join(text.split())


def judgements_by_text(dataset, split):
    store, queries = dataset.document_store(), {q.query_id: q.text for q in dataset.queries()}
    return sorted(
        (queries[query_id], store[doc_id].text)
        for query_id, judged in dataset.qrels(split).items()
        for doc_id in judged
    )


def test_multireqa_gives_the_sentences_of_the_real_boundaries(data_dir, tmp_path):
    """The boundaries in squad_sent came from MultiReQA's own candidates files."""
    paragraphs = DatasetDirectory(data_dir / "squad")
    by_paragraph = defaultdict(list)
    for query_id, judged in paragraphs.qrels("test").items():
        by_paragraph[next(iter(judged))].append(query_id)
    texts = {query.query_id: query.text for query in paragraphs.queries("test")}
    sentences = defaultdict(list)
    corpus = data_dir / "multireqa_squad" / "corpus.jsonl.gz"
    for _, record in read_json_lines(corpus):
        sentences[record["metadata"]["doc"]].append(record)
    contexts, candidates = [], []
    relevant = DatasetDirectory(data_dir / "multireqa_squad").qrels("test")
    for document in paragraphs.documents():
        if document.doc_id not in sentences:
            continue
        starts = {r["_id"]: r["metadata"]["start"] for r in sentences[document.doc_id]}
        qas = []
        for query_id in by_paragraph[document.doc_id]:
            start = starts[next(iter(relevant[query_id]))]
            answer = {"text": "of one character", "char_spans": [[start, start]]}
            qas.append(
                {
                    "qid": query_id,
                    "question": texts[query_id],
                    "detected_answers": [answer],
                    "answers": [answer["text"]],
                }
            )
        contexts.append({"context": document.text, "qas": qas})
        asked = "/".join(question["qid"] for question in qas)
        for number, record in enumerate(sentences[document.doc_id]):
            place = record["metadata"]
            candidates.append(
                {
                    "candidate_id": f"SQuAD_{asked}/_{number}",
                    "response_start": place["start"],
                    "response_end": place["end"],
                }
            )
    write_json_lines(tmp_path / "mrqa.jsonl.gz", contexts)
    write_json_lines(tmp_path / "candidates.json.gz", candidates)
    sources = [
        Source("mrqa", tmp_path / "mrqa.jsonl.gz", "test"),
        Source("boundaries", tmp_path / "candidates.json.gz", "test"),
    ]
    records = read_back(multireqa, sources)
    expected = DatasetDirectory(data_dir / "multireqa_squad")
    documents = of_kind(records, Document)
    assert len(documents) == 10_619
    store = expected.document_store()
    # The set's maker ran white space together; MRQA's contexts, and so ours, keep it.
    assert [plain(d.text) for d in documents] == [d.text for d in store.values()]
    assert sorted(of_kind(records, Query)) == sorted(expected.queries("test"))
    ours = {d.doc_id: plain(d.text) for d in documents}
    judged = {j.query_id: ours[j.doc_id] for j in of_kind(records, Judgement)}
    assert judged == {q: store[next(iter(ids))].text for q, ids in relevant.items()}


@pytest.mark.parametrize("name", SETS)
def test_msmarco(name, request, tmp_path):
    dataset = request.getfixturevalue(name)
    write_format("msmarco", dataset, tmp_path / "out", suffix=".gz")
    sources = [Source("collection", tmp_path / "out" / "collection.tsv.gz")]
    for split in dataset.splits:
        for role in ("queries", "qrels"):
            path = tmp_path / "out" / f"{role}.{split}.tsv.gz"
            sources.append(Source(role, path, split))
        if name == "scifact":
            path = tmp_path / "out" / f"qidpidtriples.{split}.tsv.gz"
            sources.append(Source("id_triples", path, split))
    records = read_back(msmarco, sources)
    assert of_kind(records, Document) == [
        Document(d.doc_id, "", plain(f"{d.title} {d.text}")) for d in dataset.documents()
    ]
    queries = {query.query_id: query for query in dataset.queries()}
    assert {q.query_id: q for q in of_kind(records, Query)} == {
        q.query_id: Query(q.query_id, plain(q.text)) for q in queries.values()
    }
    assert by_split(records) == {split: dataset.qrels(split) for split in dataset.splits}
    if name == "scifact":
        triples = [
            (p.split, p.query.query_id, p.positive, n)
            for p in of_kind(records, TrainingPair)
            for n in p.negatives
        ]
        assert triples == pairs_of(dataset)


def pairs_of(dataset):
    """(split, query id, positive, negative) in the order of the pair files, read as plain JSON."""
    return [
        (split, record["query_id"], record["positive"], negative)
        for split in dataset.splits
        for _, record in read_json_lines(dataset.pair_file(split))
        for negative in record["negatives"]
    ]


def by_split(records):
    found = defaultdict(lambda: defaultdict(dict))
    for record in of_kind(records, Judgement):
        found[record.split][record.query_id][record.doc_id] = record.relevance
    return found


def test_msmarco_triples_of_texts(scifact, tmp_path):
    store = scifact.document_store()
    queries = {query.query_id: query.text for query in scifact.queries()}
    expected = []
    with open(tmp_path / "triples.train.tsv", "w", encoding="utf-8") as file:
        for split, *ids in pairs_of(scifact):
            if split == "train":
                row = [queries[ids[0]], store[ids[1]].text, store[ids[2]].text]
                expected.append([plain(text) for text in row])
                print(*expected[-1], sep="\t", file=file)
    records = read_back(msmarco, [Source("triples", tmp_path / "triples.train.tsv", "train")])
    texts = {d.doc_id: d.text for d in of_kind(records, Document)}
    assert len(texts) == len({text for row in expected for text in row[1:]})
    assert [
        [p.query.text, texts[p.positive], texts[p.negatives[0]]]
        for p in of_kind(records, TrainingPair)
    ] == expected


@pytest.mark.parametrize("name", SETS)
def test_dpr(name, request, tmp_path):
    dataset = request.getfixturevalue(name)
    write_format("dpr", dataset, tmp_path / "out")
    sources = [
        Source("examples", tmp_path / "out" / f"{split}.json", split) for split in dataset.splits
    ]
    passages = Source("passages", tmp_path / "out" / "passages.tsv")
    records = read_back(dpr, [*sources, passages])
    assert of_kind(records, Document) == list(dataset.documents())
    assert sorted(of_kind(records, Query)) == sorted(dataset.queries())
    assert by_split(records) == {split: dataset.qrels(split) for split in dataset.splits}
    answers = {a.query_id: a.texts for a in of_kind(records, Answers)}
    if name != "scifact":
        assert answers == dataset.answers()
    else:
        negatives = defaultdict(set)
        for split, query_id, _, negative in pairs_of(dataset):
            negatives[split, query_id].add(negative)
        assert {
            (p.split, p.query.query_id): set(p.negatives) for p in of_kind(records, TrainingPair)
        } == negatives
    alone = read_back(dpr, sources)
    named = {d for _, q in by_split(records).items() for ids in q.values() for d in ids}
    named |= {n for p in of_kind(records, TrainingPair) for n in p.negatives}
    expected = {d.doc_id: d for d in dataset.documents() if d.doc_id in named}
    assert {d.doc_id: d for d in of_kind(alone, Document)} == expected


def test_dpr_has_the_fields_of_its_repository(scifact, tmp_path):
    write_format("dpr", scifact, tmp_path / "out", splits=("test",))
    with open(tmp_path / "out" / "test.json", encoding="utf-8") as file:
        examples = json.load(file)
    assert len(examples) == 300
    fields = {"question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs"}
    for example in examples:
        assert set(example) == {*fields, "query_id"}
        for context in example["positive_ctxs"] + example["hard_negative_ctxs"]:
            assert set(context) == {"title", "text", "passage_id"}
    with open(tmp_path / "out" / "passages.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    assert rows[0] == ["id", "text", "title"]
    assert rows[1:] == [[d.doc_id, d.text, d.title] for d in scifact.documents()]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("topic_field", ["title", "description"])
def test_trec(name, topic_field, request, tmp_path):
    dataset = request.getfixturevalue(name)
    write_format("trec", dataset, tmp_path / "out", suffix=".zst")
    sources = [Source("documents", tmp_path / "out" / "documents.trec.zst")]
    for split in dataset.splits:
        for role in ("topics", "qrels"):
            path = tmp_path / "out" / f"{role}.{split}.txt.zst"
            sources.append(Source(role, path, split))
    records = read_back(trec, sources, topic_field=topic_field)
    assert of_kind(records, Document) == [
        Document(d.doc_id, plain(d.title), plain(d.text)) for d in dataset.documents()
    ]
    assert {q.query_id: q.text for q in of_kind(records, Query)} == {
        q.query_id: plain(q.text) for q in dataset.queries()
    }
    assert by_split(records) == {split: dataset.qrels(split) for split in dataset.splits}


def test_trec_topics_are_plain_where_they_can_be(tmp_path, caplog):
    texts = ["AT&T & co", "3 < 5 and 7 > 2", "what is <b>bold</b>", "&amp; or &lt;", "a --> b"]
    dataset = small_dataset(tmp_path / "data", texts)
    write_format("trec", dataset, tmp_path / "out")
    path = tmp_path / "out/topics.train.txt"
    titles = [x.removeprefix("<title> ") for x in path.read_text().splitlines() if "<title>" in x]
    assert titles[:2] == texts[:2]
    assert titles[2:4] == ["what is &lt;b&gt;bold&lt;/b&gt;", "&amp;amp; or &amp;lt;"]
    assert titles[4] == "a --&gt; b"
    assert "3 questions hold tags or entities" in caplog.text
    assert [query.text for query in trec.read_topics(path, Intake())] == texts


@pytest.mark.parametrize("part", ["title", "description"])
def test_questions_that_begin_as_the_form_does_stay_whole(tmp_path, part):
    texts = [
        "Topic: models for short texts",
        "Query: what is it",
        "description: of what",
        "Number: 7",
    ]
    dataset = small_dataset(tmp_path / "data", texts)
    write_format("trec", dataset, tmp_path / "out")
    path = tmp_path / "out/topics.train.txt"
    read = trec.read_topics(path, Intake(), topic_field=part)
    assert [query.text for query in read] == texts


def test_rows_of_sentence_transformers_are_whole(tmp_path):
    """Its collator refuses a null."""
    given = [["d1", "d2", "d3"], ["d3", "d4"], []]
    dataset = small_dataset(tmp_path / "data", ["one", "two", "three"], negatives=given)
    counts = write_format("sentence-transformers", dataset, tmp_path / "out")
    assert counts == {"train.jsonl": 2, "train.pairs.jsonl": 1}
    rows = [row for _, row in read_json_lines(tmp_path / "out/train.jsonl")]
    assert [[row[f"negative_{n}"] for n in (1, 2, 3)] for row in rows] == [
        ["text 1", "text 2", "text 3"],
        ["text 3", "text 4", "text 3"],
    ]
    alone = [row for _, row in read_json_lines(tmp_path / "out/train.pairs.jsonl")]
    assert alone == [{"anchor": "three", "positive": "text 2"}]
    sources = [Source("rows", tmp_path / "out" / name, "train") for name in counts]
    records = sentence_transformers.read(sources, Intake())
    write_dataset(tmp_path / "back", records, intake=Intake())
    back = DatasetDirectory(tmp_path / "back")
    assert back.num_documents == 5
    names = {query.query_id: query.text for query in back.queries("train")}
    assert sorted(names.values()) == ["one", "three", "two"]
    found = defaultdict(set)
    for _, query_id, _, negative in pairs_of(back):
        found[names[query_id]].add(negative)
    assert {name: len(ids) for name, ids in found.items()} == {"one": 3, "two": 2}


def small_dataset(path, queries, negatives=()):
    """A dataset directory: document N is right for query N, five documents."""
    texts = [Query(f"q{n}", text) for n, text in enumerate(queries)]
    documents = [Document(f"d{n}", "", f"text {n}") for n in range(5)]
    records = [*documents, *texts]
    records += [Judgement("train", f"q{n}", f"d{n}", 1) for n in range(len(texts))]
    records += [
        TrainingPair("train", texts[n], f"d{n}", tuple(found)) for n, found in enumerate(negatives)
    ]
    write_dataset(path, iter(records), intake=Intake())
    return DatasetDirectory(path)


def test_sentence_transformers_columns(scifact, tmp_path):
    write_format("sentence-transformers", scifact, tmp_path / "out", suffix=".gz")
    sources = [
        Source("rows", tmp_path / "out" / f"{split}.jsonl.gz", split) for split in scifact.splits
    ]
    records = read_back(sentence_transformers, sources)
    texts = {d.doc_id: d.text for d in of_kind(records, Document)}
    store = {d.doc_id: f"{d.title} {d.text}".strip() for d in scifact.documents()}
    queries = {query.query_id: query.text for query in scifact.queries()}
    assert sorted(
        (p.split, p.query.text, texts[p.positive], texts[n])
        for p in of_kind(records, TrainingPair)
        for n in p.negatives
    ) == sorted(
        (split, queries[query_id], store[positive], store[negative])
        for split, query_id, positive, negative in pairs_of(scifact)
    )
    _, first = next(read_json_lines(tmp_path / "out" / "train.jsonl.gz"))
    assert list(first) == ["anchor", "positive", "negative_1", "negative_2"]


def test_beir_unpacks_what_we_pack(scifact, data_dir, tmp_path):
    write_format("beir", scifact, tmp_path / "out")
    for split in ("train", "test"):
        theirs = (data_dir / "scifact" / "qrels" / f"{split}.tsv").read_text()
        assert (tmp_path / "out" / "qrels" / f"{split}.tsv").read_text() == theirs
    ours = DatasetDirectory(tmp_path / "out")
    original = DatasetDirectory(data_dir / "scifact")
    assert list(ours.documents()) == list(original.documents())
    assert list(ours.queries()) == list(original.queries())
