import logging
import os
import tracemalloc

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import DatasetCounts, write_dataset
from tfde.data.formats.records import Answers, Judgement, TrainingPair, without_repeats
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, DataError
from tfde.storage.intake import Intake
from tfde.storage.json_lines import read_json_lines
from tfde.types import Document, Query

D1, D2, Q1 = Document("d1", "T", "one"), Document("d2", "", "two"), Query("q1", "?")
GOOD = [D1, D2, Q1, Judgement("train", "q1", "d2", 1)]


def test_every_kind_of_record_is_written(tmp_path):
    records = [*GOOD, Answers("q1", ("two", "2")), TrainingPair("train", Q1, "d2", ("d1",))]
    counts = write_dataset(tmp_path / "d", iter(records), splits=["dev"])
    by_split = {"dev": 0, "train": 1}
    unanswered = {"dev": 0, "train": 0}
    assert counts == DatasetCounts(2, 1, 1, by_split, {"train": 1}, without_relevant=unanswered)
    dataset = DatasetDirectory(tmp_path / "d")
    assert list(dataset.documents()) == [D1, D2]
    assert dataset.splits == ("train", "dev")
    assert dataset.answers() == {"q1": ("two", "2")}
    assert dataset.pair_splits == ("train",)
    assert [record for _, record in read_json_lines(dataset.pair_file("train"))] == [
        {"query": "?", "query_id": "q1", "positive": "d2", "negatives": ["d1"]}
    ]
    dataset.validate()


def test_the_pair_file_is_one_to_train_on(tmp_path):
    write_dataset(tmp_path / "d", [*GOOD, TrainingPair("train", Q1, "d2", ("d1",))])
    pairs = read_pairs(tmp_path / "d" / "pairs" / "train.jsonl.gz", dataset=tmp_path / "d")
    assert [(p.query.text, p.positive, p.negatives) for p in pairs] == [("?", D2, (D1,))]


def test_order_may_mix_as_long_as_names_come_first(tmp_path):
    records = [D1, Q1, Judgement("test", "q1", "d1", 2), D2, Judgement("test", "q1", "d2", 0)]
    counts = write_dataset(tmp_path / "d", records)
    assert counts.judged == {"test": 1}
    assert DatasetDirectory(tmp_path / "d").qrels("test") == {"q1": {"d1": 2, "d2": 0}}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (D1, r"corpus\.jsonl\.gz:3: field '_id' must be unique\. Received: 'd1'"),
        (Q1, r"queries\.jsonl\.gz:2: field '_id' must be unique\. Received: 'q1'"),
        (Document("d 3", "", "x"), r"gz:3: field '_id' must not be empty or hold white space"),
        (Document("", "", "x"), r"gz:3: field '_id' must not be empty or hold white space"),
        (Document("d3", "", "\ud800"), r"gz:3: must be Unicode text \(half a surrogate pair\)"),
        (Query("q2", ""), r"queries\.jsonl\.gz:2: a query must have a text\. Received: 'q2'"),
        (Judgement("dev", "q9", "d1", 1), r"dev\.tsv:2: query-id must be an id of the queries"),
        (Judgement("train", "q1", "d2", 0), r"train\.tsv:3: a query and document must be judged o"),
        (Answers("q9", ()), r"answers\.jsonl\.gz:1: query-id must be an id of the queries"),
        (TrainingPair("dev", Q1, "d1", ("d9",)), r"dev\.jsonl\.gz:1: corpus-id must be an id"),
    ],
)
def test_a_record_that_breaks_a_rule_leaves_nothing_or_is_skipped(tmp_path, record, message):
    with pytest.raises(DataError, match="out/.*" + message) as caught:
        write_dataset(tmp_path / "out", [*GOOD, record])
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []
    intake = Intake(skip_bad=True)
    write_dataset(tmp_path / "out", [*GOOD, record], intake=intake)
    assert intake.skipped == 1
    dataset = DatasetDirectory(tmp_path / "out")
    dataset.validate()
    assert list(dataset.documents()) == [D1, D2]
    assert dataset.qrels("train") == {"q1": {"d2": 1}}


def test_empty_documents_and_judgements_of_others_are_written_and_counted(tmp_path):
    records = [*GOOD, Document("d3", " ", "\n"), Judgement("train", "q1", "d9", 1)]
    counts = write_dataset(tmp_path / "out", records)
    assert (counts.documents, counts.empty, counts.judged_elsewhere) == (3, 1, 1)
    dataset = DatasetDirectory(tmp_path / "out")
    assert list(dataset.documents())[2] == Document("d3", " ", "\n")
    assert dataset.qrels("train") == {"q1": {"d2": 1, "d9": 1}}


def test_judgements_of_another_corpus_leave_nothing(tmp_path):
    with pytest.raises(DataError, match=r"out/qrels/dev\.tsv: no judged document is in the corpus"):
        write_dataset(tmp_path / "out", [*GOOD, Judgement("dev", "q1", "d9", 1)])
    assert os.listdir(tmp_path) == []


def test_answers_come_once(tmp_path):
    answers = Answers("q1", ("a",))
    with pytest.raises(DataError, match=r"a query must have its answers in one place"):
        write_dataset(tmp_path / "out", [*GOOD, answers, answers])


def test_the_reader_s_place_is_named(tmp_path):
    intake = Intake()

    def records():
        yield from GOOD
        intake.at("input.tsv", 17)
        yield D1

    with pytest.raises(DataError, match=r"^input\.tsv:17: field '_id' must be unique"):
        write_dataset(tmp_path / "out", records(), intake=intake)


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"out: the corpus is empty: no document was read"):
        write_dataset(tmp_path / "out", [Q1])
    assert os.listdir(tmp_path) == []


def test_an_output_that_holds_something_is_refused(tmp_path):
    (tmp_path / "precious").write_text("")
    with pytest.raises(ConfigError, match="the output exists and is not empty"):
        write_dataset(tmp_path, GOOD)
    assert os.listdir(tmp_path) == ["precious"]


def test_memory_holds_ids_not_texts(tmp_path):
    text = "word " * 2_000

    def records(count):
        for number in range(count):
            yield Document(f"d{number}", "", f"{number} {text}")

    write_dataset(tmp_path / "warm", records(10))
    tracemalloc.start()
    write_dataset(tmp_path / "d", records(5_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # the texts alone are 50 MB


def test_without_repeats_keeps_the_first():
    other = Document("d1", "", "another text")
    judgement = Judgement("a", "q1", "d1", 1)
    records = [D1, Q1, judgement, other, Q1, judgement]
    later = [Judgement("b", "q1", "d1", 1), TrainingPair("a", Q1, "d1", ()), Answers("q1", ())]
    assert list(without_repeats([*records, *later, Answers("q1", ("x",))])) == [
        *records[:3],
        *later,
    ]


def test_judgements_that_contradict_each_other_are_refused(tmp_path):
    both = [D1, Q1, Judgement("a", "q1", "d1", 0), Judgement("a", "q1", "d1", 1)]
    with pytest.raises(DataError, match=r"a query and document must be judged once"):
        write_dataset(tmp_path / "out", without_repeats(both), splits=["a"])


def test_bad_records_are_named_in_the_log(tmp_path):
    # Not caplog: commands that ran before in this process keep the log to themselves.
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tfde.storage.intake")
    logger.addHandler(handler)
    try:
        write_dataset(tmp_path / "out", [*GOOD, D1], intake=Intake(skip_bad=True))
    finally:
        logger.removeHandler(handler)
    place = f"{tmp_path}/out/corpus.jsonl.gz:3"
    assert lines == [f"skipped: {place}: field '_id' must be unique. Received: 'd1'"]
