"""The real files go through whole; what is expected was read from them by zcat, sed and jq."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats import beir, labelled_pairs, squad
from tfde.data.formats.records import Source
from tfde.storage.intake import Intake
from tfde.types import Query

EXPECTED = [
    json.loads(line)
    for line in (Path(__file__).parent / "real_files.jsonl").read_text("utf-8").splitlines()
]
SETS = [record for record in EXPECTED if record["kind"] == "retrieval"]
TABLES = [record for record in EXPECTED if record["kind"] == "pairs"]


def first_tenth_last(items):
    items = list(items)
    return [items[0], items[9], items[-1]]


@pytest.mark.parametrize("expected", SETS, ids=[record["name"] for record in SETS])
def test_beir_set(expected, data_dir, tmp_path):
    intake = Intake()
    source = Source("directory", data_dir / expected["name"])
    counts = write_dataset(tmp_path / "d", beir.read([source], intake), intake=intake)
    splits = expected["splits"]
    assert counts.documents == expected["documents"]
    assert counts.queries == expected["queries"]
    assert counts.judged == {name: split["queries"] for name, split in splits.items()}
    dataset = DatasetDirectory(tmp_path / "d")
    corpus = first_tenth_last(dataset.documents())
    shown = [[d.doc_id, d.title, len(d.text), d.text[:40]] for d in corpus]
    assert shown == expected["corpus"]
    queries = first_tenth_last(dataset.queries())
    assert [[q.query_id, q.text] for q in queries] == expected["query_rows"]
    for name, split in splits.items():
        qrels = dataset.qrels(name)
        rows = [[q, d, relevance] for q, judged in qrels.items() for d, relevance in judged.items()]
        assert len(rows) == split["judgements"]
        assert len(qrels) == split["queries"]
        # A query's rows are brought together: the tenth of the file may move.
        assert [rows[0], rows[-1]] == [split["rows"][0], split["rows"][-1]]
        query_id, doc_id, relevance = split["rows"][1]
        assert qrels[query_id][doc_id] == relevance
    dataset.validate()


@pytest.mark.parametrize("expected", TABLES, ids=[record["name"] for record in TABLES])
def test_table_of_labelled_pairs(expected, data_dir, tmp_path):
    source = Source("rows", data_dir / expected["name"], "test")
    pairs = list(labelled_pairs.read([source], Intake()))
    assert len(pairs) == expected["pairs"]
    assert [list(pair[1:]) for pair in first_tenth_last(pairs)] == [
        [" ".join(cell.split()) for cell in row] for row in expected["rows"]
    ]
    if expected["labels"]:
        assert Counter(pair.label for pair in pairs) == expected["labels"]
    labelled_pairs.write_labelled_pairs(tmp_path / "out", pairs)
    again = labelled_pairs.read([Source("rows", tmp_path / "out" / "test.tsv", "test")], Intake())
    assert list(again) == pairs


# paragraphs, questions, (id, length of the context) of three paragraphs, three questions.
SQUAD = {
    "train": (
        18_896,
        87_599,
        [
            ("2008_Sichuan_earthquake-0", 244),
            ("2008_Sichuan_earthquake-9", 177),
            ("Zinc-37", 517),
        ],
        [
            ("t0-0-q0", "In what year did the earthquake in Sichuan occur?", ["2008"], 4),
            ("t0-1-q1", "What was the focal depth of the earthquake?", ["19 km"], 319),
            (
                "t441-37-q3",
                "What has been a cause of mass parrot poisonings attributed to zinc?",
                ["juices stored in galvanized cans"],
                435,
            ),
        ],
    ),
    "dev": (
        2_067,
        10_570,
        [("1973_oil_crisis-0", 597), ("1973_oil_crisis-9", 611), ("Yuan_dynasty-46", 562)],
        [
            (
                "5725b33f6a3fe71400b8952d",
                "When did the 1973 oil crisis begin?",
                ["October 1973"] * 3 + ["October", "1973"],
                29,
            ),
            (
                "5725b76389a1e219009abd4a",
                "When did the United States withdraw from the Bretton Woods Accord?",
                ["On August 15, 1971"] + ["August 15, 1971"] * 4,
                0,
            ),
            (
                "572885c44b864d1900164a7c",
                "What was the Chinese name for the Central Secretariat?",
                ["Zhongshu Sheng"] * 3,
                287,
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", SQUAD)
def test_squad_file(name, data_dir, tmp_path):
    path = data_dir / "squad" / f"{name}-v1.1.squad.json.gz"
    num_paragraphs, num_questions, documents, questions = SQUAD[name]
    paragraphs = list(squad.read_squad(path))
    assert len(paragraphs) == num_paragraphs
    shown = [(p.document.doc_id, len(p.document.text)) for p in first_tenth_last(paragraphs)]
    assert shown == documents
    asked = list(itertools.chain.from_iterable(p.questions for p in paragraphs))
    assert len(asked) == num_questions
    shown = [(*q.query[:2], list(q.answers), q.answer_starts[0]) for q in first_tenth_last(asked)]
    assert shown == questions
    intake = Intake()
    records = squad.read([Source("articles", path, name)], intake)
    counts = write_dataset(tmp_path / "d", records, intake=intake)
    assert counts[:4] == (num_paragraphs, num_questions, num_questions, {name: num_questions})
    dataset = DatasetDirectory(tmp_path / "d")
    assert next(dataset.documents()) == paragraphs[0].document
    assert next(dataset.queries(name)) == Query(*questions[0][:2])
    query_id = questions[-1][0]
    assert dataset.qrels(name)[query_id] == {documents[-1][0]: 1}
    assert dataset.answers()[query_id] == tuple(dict.fromkeys(questions[-1][2]))
