"""Mining from every kind of candidates, on hand-made and on real data."""

import gzip
import json
import random
from collections import Counter

import numpy as np
import pytest
import tiny

from tfde.config.model import ParentConfig
from tfde.config.negatives import MiningRules
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset
from tfde.data.document_file import DocumentFile
from tfde.data.formats.records import Judgement
from tfde.data.near_duplicates import NEARLY_EQUAL, normal_words, resemblance, shingles
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.negatives.candidate_sources import (
    Bm25Candidates,
    ModelCandidates,
    RandomCandidates,
    RunCandidates,
)
from tfde.negatives.mine import MiningReport, mine_negatives
from tfde.retrieval.bm25_index import Bm25Index
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.load_index import load_index
from tfde.retrieval.runs import write_run
from tfde.retrieval.scann_index import ScannIndex
from tfde.types import Document, Query

DOCUMENTS = {
    "a": "paris is the capital of france",
    "a2": "Paris is the capital of France!",
    "b": "lyon is a city in the south of france",
    "c": "rome is the capital of italy",
    "d": "bread and cheese",
    "e": "the river seine runs through paris",
}
QUERIES = {"q1": "capital of France", "q2": "Capital of france?", "q3": "river in paris"}
QRELS = {"q1": {"a": 1}, "q2": {"b": 2, "c": 0}, "q3": {"e": 1}}
RUN = {
    "q1": {"a": 9.0, "a2": 9.0, "c": 8.0, "b": 7.0, "e": 5.0, "d": 1.0},
    "q2": {"b": 4.0, "c": 3.0, "d": 2.0},
}


def write(folder, *, queries=QUERIES):
    (folder / "qrels").mkdir(parents=True)
    with open(folder / "corpus.jsonl", "w") as file:
        for doc_id, text in DOCUMENTS.items():
            file.write(json.dumps({"_id": doc_id, "title": "T", "text": text}) + "\n")
    with open(folder / "queries.jsonl", "w") as file:
        for query_id, text in queries.items():
            file.write(json.dumps({"_id": query_id, "text": text}) + "\n")
    with open(folder / "qrels" / "train.tsv", "w") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query_id in queries:
            for doc_id, relevance in QRELS[query_id].items():
                file.write(f"{query_id}\t{doc_id}\t{relevance}\n")
    return DatasetDirectory(folder)


@pytest.fixture
def dataset(tmp_path):
    return write(tmp_path / "data")


@pytest.fixture
def run_file(tmp_path):
    write_run(tmp_path / "run.trec", RUN)
    return tmp_path / "run.trec"


def lines(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return [json.loads(line) for line in file]


def test_a_run_becomes_a_pair_file(tmp_path, dataset, run_file):
    report = mine_negatives(
        dataset, RunCandidates(run_file), tmp_path / "n.jsonl", MiningRules(count=2)
    )
    assert lines(tmp_path / "n.jsonl") == [
        {
            "query": "capital of France", "query_id": "q1", "positive": "a",
            "negatives": ["c", "e"], "scores": {"positive": 9.0, "negatives": [8.0, 5.0]},
        },
        {
            # q1 has the same words, so its positive is no negative here, and its twin neither.
            "query": "Capital of france?", "query_id": "q2", "positive": "b",
            "negatives": ["c", "d"], "scores": {"positive": 4.0, "negatives": [3.0, 2.0]},
        },
        {
            "query": "river in paris", "query_id": "q3", "positive": "e",
            "negatives": [], "scores": {"positive": None, "negatives": []},
        },
    ]  # fmt: skip
    expected = Counter({"positive": 3, "same_text": 1})
    assert report == MiningReport(
        pairs=3, negatives=4, short=1, empty=1, candidates=9,
        removed={reason: expected[reason] for reason in report.removed},
    )  # fmt: skip
    assert not (tmp_path / "n.jsonl.parts").exists()
    pairs = read_pairs(tmp_path / "n.jsonl", dataset=dataset.path)
    assert [d.doc_id for d in pairs[0].negatives] == ["c", "e"]
    assert pairs[1].positive.text == DOCUMENTS["b"]


def test_texts_in_place_of_ids(tmp_path, dataset, run_file):
    output = tmp_path / "n.jsonl.gz"
    mine_negatives(
        dataset, RunCandidates(run_file), output, MiningRules(count=1), documents="texts"
    )
    line = lines(output)[0]
    assert line["positive"] == {"title": "T", "text": DOCUMENTS["a"]}
    assert line["negatives"] == [{"title": "T", "text": DOCUMENTS["c"]}]
    assert read_pairs(output)[0].negatives[0].text == DOCUMENTS["c"]


def test_window_and_margins_reach_the_file(tmp_path, dataset, run_file):
    rules = MiningRules(count=9, min_rank=2, max_rank=5, score_margin=2)
    mine_negatives(dataset, RunCandidates(run_file), tmp_path / "n.jsonl", rules)
    # q1: a2 stands first (trec_eval breaks ties by the higher id), c is too near to 9 and d is
    # sixth; q2: c is too near to 4.
    assert [line["negatives"] for line in lines(tmp_path / "n.jsonl")] == [["e"], ["d"], []]


class TableScorer:
    """A cross-encoder whose scores are written down."""

    def __init__(self, scores, *, num_labels=1, labels=()):
        self.scores, self.num_labels, self.labels = scores, num_labels, labels
        self.asked = []

    def fingerprint(self):
        return repr(sorted(self.scores.items()))

    def score(self, pairs, *, batch_size, show_progress=False):
        self.asked += [document.doc_id for _, document in pairs]
        return np.array([self.scores[document.doc_id] for _, document in pairs], np.float32)


def test_a_cross_encoder_throws_out_and_others_step_in(tmp_path, dataset, run_file):
    scorer = TableScorer({"a": 5.0, "b": 4.5, "c": 4.0, "e": -1.0, "d": -9.0})
    report = mine_negatives(
        dataset,
        RunCandidates(run_file),
        tmp_path / "n.jsonl",
        MiningRules(count=1, max_cross_score=0.0),
        cross_encoder=scorer,
    )
    found = lines(tmp_path / "n.jsonl")
    assert [line["negatives"] for line in found] == [["e"], ["d"], []]
    assert found[0]["cross_scores"] == {"positive": 5.0, "negatives": [-1.0]}
    assert found[0]["scores"] == {"positive": 9.0, "negatives": [5.0]}
    assert report.removed["cross_encoder"] == 2  # c for both
    # It is asked about what would be taken, not about all: positives, then c c, then e d.
    assert scorer.asked == ["a", "b", "e", "c", "c", "e", "d"]


def test_a_margin_by_the_cross_encoder(tmp_path, dataset, run_file):
    scorer = TableScorer({"a": 5.0, "b": 4.5, "c": 4.0, "e": -1.0, "d": -9.0})
    rules = MiningRules(count=1, cross_margin=1.0)
    mine_negatives(
        dataset, RunCandidates(run_file), tmp_path / "n.jsonl", rules, cross_encoder=scorer
    )
    assert [line["negatives"] for line in lines(tmp_path / "n.jsonl")] == [["c"], ["d"], []]


@pytest.mark.parametrize(
    ("labels", "label"), [(("1", "0"), None), (("relevant", "not"), "relevant")]
)
def test_one_logit_that_says_not_relevant(tmp_path, dataset, run_file, labels, label):
    scores = {"a": -5.0, "b": -4.5, "c": -4.0, "e": 1.0, "d": 9.0}
    scorer = TableScorer(scores, labels=labels)
    rules = MiningRules(count=1, cross_margin=1.0, cross_label=label)
    source = RunCandidates(run_file)
    mine_negatives(dataset, source, tmp_path / "n.jsonl", rules, cross_encoder=scorer)
    assert [line["negatives"] for line in lines(tmp_path / "n.jsonl")] == [["c"], ["d"], []]
    first = lines(tmp_path / "n.jsonl")[0]
    assert first["cross_scores"] == {"positive": 5.0, "negatives": [4.0]}


def test_a_cross_encoder_of_two_labels(tmp_path, dataset, run_file):
    class Two(TableScorer):
        def score(self, pairs, **options):
            scores = super().score(pairs, batch_size=1)
            return np.stack([np.zeros_like(scores), scores], axis=1)

    scorer = Two({"a": 5.0, "b": 4.5, "c": -3.0, "e": -1.0, "d": -9.0}, num_labels=2)
    rules, source = MiningRules(count=2, max_cross_score=np.log(0.5)), RunCandidates(run_file)
    mine_negatives(dataset, source, tmp_path / "n.jsonl", rules, cross_encoder=scorer)
    first = lines(tmp_path / "n.jsonl")[0]
    assert "b" not in first["negatives"]
    assert first["cross_scores"]["positive"] == pytest.approx(-np.log1p(np.exp(-5.0)))


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (TableScorer(dict.fromkeys("abcde", np.nan)), "must give finite scores"),
        (
            TableScorer({}, labels=("not_entailment", "entailment")),
            "`cross_label` must be one of not",
        ),
        (TableScorer({}, labels=("0", "1")), "one of 0, 1, the one .* Received: 'mine'"),
        (TableScorer({}), "`cross_label` must be left out: .* gives a score. Received: 'mine'"),
    ],
)
def test_odd_cross_encoders(tmp_path, dataset, run_file, scorer, message):
    label = "mine" if "'mine'" in message else None
    rules, source = MiningRules(max_cross_score=0.0, cross_label=label), RunCandidates(run_file)
    with pytest.raises(ConfigError, match=message):
        mine_negatives(dataset, source, tmp_path / "n.jsonl", rules, cross_encoder=scorer)


def test_bm25_scores_those_outside_the_ranking_too(tmp_path, dataset):
    mine_negatives(dataset, Bm25Candidates(), tmp_path / "n.jsonl", MiningRules(max_rank=1))
    index = Bm25Index.build(dataset.documents())
    for line in lines(tmp_path / "n.jsonl"):
        everything = dict(index.search([line["query"]], 10)[0])
        assert line["scores"]["positive"] == everything.get(line["positive"], 0.0)
    with pytest.raises(DataError, match=r"pairs:1: must name documents of the index.*'nowhere'"):
        index.score([("paris", "nowhere")])
    assert index.score([("paris", "d"), ("unheard", "a")]) == [0.0, 0.0]


def test_random_candidates(tmp_path, dataset):
    source = RandomCandidates(seed=1)
    report = mine_negatives(dataset, source, tmp_path / "n.jsonl", MiningRules(count=2, max_rank=6))
    found = lines(tmp_path / "n.jsonl")
    assert all("scores" not in line and len(line["negatives"]) == 2 for line in found)
    assert report.candidates == 18  # the whole corpus for each
    for rules in (MiningRules(score_margin=1), MiningRules(choice="sampled")):
        with pytest.raises(ConfigError, match="need scores; random candidates have none"):
            mine_negatives(dataset, source, tmp_path / "m.jsonl", rules)


def test_a_model_with_and_without_index(tmp_path):
    data = DatasetDirectory(tiny.write_dataset(tmp_path / "data"))
    model = tiny.dual_encoder()
    rules = MiningRules(count=3, max_rank=20, score_margin=0.0)
    report = mine_negatives(
        data, ModelCandidates(model), tmp_path / "exact.jsonl", rules, queries_at_once=32
    )
    assert report.pairs == 160
    assert report.removed["margin"] > 0
    documents = {document.doc_id: document for document in data.documents()}
    for line in lines(tmp_path / "exact.jsonl")[::20]:
        ids = [line["positive"], *line["negatives"]]
        query = model.encode_queries([line["query"]])
        scores = (model.encode_documents([documents[i] for i in ids]) @ query.T)[:, 0]
        given = [line["scores"]["positive"], *line["scores"]["negatives"]]
        np.testing.assert_allclose(scores, given, atol=1e-5)
        assert all(score <= scores[0] + 1e-5 for score in scores[1:])
    embeddings = encode_corpus(model, data.documents(), tmp_path / "e")
    ScannIndex.build(embeddings.read(), embeddings.doc_ids, fingerprint=model.fingerprint()).save(
        tmp_path / "index"
    )
    mine_negatives(
        data, ModelCandidates(model, index=tmp_path / "index"), tmp_path / "scann.jsonl", rules,
        queries_at_once=32,
    )  # fmt: skip
    same = [
        one["negatives"] == two["negatives"]
        for one, two in zip(
            lines(tmp_path / "exact.jsonl"), lines(tmp_path / "scann.jsonl"), strict=True
        )
    ]
    assert np.mean(same) > 0.9  # 200 vectors are searched exactly; equal scores may swap
    mine_negatives(
        data, ModelCandidates(model, scann_from=200), tmp_path / "large.jsonl", rules,
        queries_at_once=32,
    )  # fmt: skip
    assert (tmp_path / "large.jsonl").read_bytes() == (tmp_path / "scann.jsonl").read_bytes()
    settings = json.loads((tmp_path / "large.jsonl.json").read_text())["settings"]
    assert settings["source"]["index"] == "ScaNN from 200"
    with pytest.raises(MismatchError, match="the index was made with model"):
        mine_negatives(
            data, ModelCandidates(tiny.dual_encoder(seed=2), index=tmp_path / "index"),
            tmp_path / "other.jsonl", rules,
        )  # fmt: skip
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        ModelCandidates(model, index=tmp_path / "nowhere")


def test_done_is_done_and_nothing_else_is_overwritten(tmp_path, dataset, run_file):
    output, rules = tmp_path / "n.jsonl", MiningRules(count=1)
    report = mine_negatives(dataset, RunCandidates(run_file), output, rules)
    written = output.stat().st_mtime_ns
    assert mine_negatives(dataset, RunCandidates(run_file), output, rules) == report
    assert output.stat().st_mtime_ns == written
    with pytest.raises(
        ConfigError, match=r"n\.jsonl: was made otherwise: rules\.count was 1, is 2"
    ):
        mine_negatives(dataset, RunCandidates(run_file), output, MiningRules(count=2))
    output.write_text("{}\n")
    with pytest.raises(CorruptError, match=r"n\.jsonl: differs from what was written"):
        mine_negatives(dataset, RunCandidates(run_file), output, rules)
    output.unlink()
    again = mine_negatives(dataset, RunCandidates(run_file), output, MiningRules(count=2))
    assert again.negatives > report.negatives
    (tmp_path / "mine.jsonl").write_text("my own\n")
    with pytest.raises(ConfigError, match=r"mine\.jsonl: exists already; choose another"):
        mine_negatives(dataset, RunCandidates(run_file), tmp_path / "mine.jsonl", rules)


class Failing(RunCandidates):
    """Answers so many times, then the power is cut."""

    def __init__(self, path, answers):
        super().__init__(path)
        self.answers = answers

    def search(self, queries, k):
        if not self.answers:
            raise KeyboardInterrupt
        self.answers -= 1
        return super().search(queries, k)


def begin(dataset, run_file, output, answers=2):
    with pytest.raises(KeyboardInterrupt):
        mine_negatives(
            dataset, Failing(run_file, answers), output, MiningRules(count=2), queries_at_once=1
        )


class Meanwhile(RunCandidates):
    """Tries to mine into the same file while it answers."""

    def __init__(self, path, mine):
        super().__init__(path)
        self.mine, self.tries = mine, 0

    def search(self, queries, k):
        with pytest.raises(
            ConfigError, match=r"\.parts: another process \(pid \d+\) is making these"
        ):
            self.mine()
        self.tries += 1
        return super().search(queries, k)


def test_two_at_once_do_not_write_one_file(tmp_path, dataset, run_file):
    output, rules = tmp_path / "n.jsonl", MiningRules(count=2)

    def mine():
        mine_negatives(dataset, RunCandidates(run_file), output, rules)

    source = Meanwhile(run_file, mine)
    report = mine_negatives(dataset, source, output, rules)
    assert source.tries == 1
    alone = tmp_path / "alone.jsonl"
    assert mine_negatives(dataset, RunCandidates(run_file), alone, rules) == report
    assert output.read_bytes() == alone.read_bytes()
    assert not output.with_name("n.jsonl.parts").exists()


def test_it_goes_on_with_the_next_part(tmp_path, dataset, run_file):
    output = tmp_path / "n.jsonl"
    begin(dataset, run_file, output)
    assert not output.exists()
    source = Failing(run_file, 1)  # one part is left
    rules = MiningRules(count=2)
    report = mine_negatives(dataset, source, output, rules, queries_at_once=1)
    whole = mine_negatives(
        dataset, RunCandidates(run_file), tmp_path / "w.jsonl", rules, queries_at_once=1
    )
    assert report == whole
    assert output.read_bytes() == (tmp_path / "w.jsonl").read_bytes()
    assert (tmp_path / "n.jsonl.json").read_bytes() == (tmp_path / "w.jsonl.json").read_bytes()


def test_other_settings_and_damage_are_named(tmp_path, dataset, run_file):
    output = tmp_path / "n.jsonl"
    begin(dataset, run_file, output)
    message = r"n\.jsonl\.parts: was begun otherwise: rules\.count was 2, is 3"
    with pytest.raises(MismatchError, match=message):
        mine_negatives(
            dataset, RunCandidates(run_file), output, MiningRules(count=3), queries_at_once=1
        )
    part = tmp_path / "n.jsonl.parts" / "part-00001.lines"
    part.write_text(part.read_text()[:-5])
    with pytest.raises(CorruptError, match=r"part-00001\.lines: differs"):
        mine_negatives(
            dataset, RunCandidates(run_file), output, MiningRules(count=2), queries_at_once=1
        )
    (part.parent / "part-00001.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"part-00001\.json: is no record of a part"):
        mine_negatives(
            dataset, RunCandidates(run_file), output, MiningRules(count=2), queries_at_once=1
        )
    odd = tmp_path / "odd.jsonl.parts"
    odd.mkdir()
    (odd / "diary.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"odd\.jsonl\.parts: holds no parts of ours"):
        mine_negatives(dataset, RunCandidates(run_file), tmp_path / "odd.jsonl", MiningRules())


def test_impossible_requests(tmp_path, dataset, run_file):
    source = RunCandidates(run_file)
    for rules, scorer in ((MiningRules(cross_margin=1.0), None), (MiningRules(), TableScorer({}))):
        with pytest.raises(ConfigError, match="give both or neither"):
            mine_negatives(dataset, source, tmp_path / "n", rules, cross_encoder=scorer)
    with pytest.raises(ConfigError, match=r"`queries_at_once` must be at least 1\. Received: 0"):
        mine_negatives(dataset, source, tmp_path / "n", MiningRules(), queries_at_once=0)
    with pytest.raises(ConfigError, match="`split` must be one of its splits: train"):
        mine_negatives(dataset, source, tmp_path / "n", MiningRules(), split="test")
    write_run(tmp_path / "strange.trec", {"q1": {"elsewhere": 1.0}})
    with pytest.raises(DataError, match=r"strange.trec.*must be a document of the d.*'elsewhere'"):
        mine_negatives(
            dataset, RunCandidates(tmp_path / "strange.trec"), tmp_path / "n", MiningRules()
        )
    (dataset.path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td\t0\n")
    again = DatasetDirectory(dataset.path)
    with pytest.raises(ConfigError, match="split 'dev' must have a judgement above 0"):
        mine_negatives(again, source, tmp_path / "m", MiningRules(), split="dev")


@pytest.mark.parametrize("choice", ["top", "random", "sampled"])
def test_the_order_of_the_queries_does_not_matter(tmp_path, data_dir, choice):
    original = DatasetDirectory(data_dir / "scifact")
    folder = tmp_path / "mixed"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl.gz").symlink_to(data_dir / "scifact" / "corpus.jsonl.gz")
    queries = list(original.queries("test"))
    rows = [(q, d, r) for q, judged in original.qrels("test").items() for d, r in judged.items()]
    generator = random.Random(5)
    generator.shuffle(queries)
    generator.shuffle(rows)
    with open(folder / "queries.jsonl", "w") as file:
        for query in queries:
            file.write(json.dumps({"_id": query.query_id, "text": query.text}) + "\n")
    table = "".join(f"{q}\t{d}\t{r}\n" for q, d, r in rows)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + table)
    rules = MiningRules(count=3, max_rank=30, choice=choice, temperature=2.0, seed=1)
    for name, dataset in (("one", original), ("two", DatasetDirectory(folder))):
        mine_negatives(
            dataset, Bm25Candidates(), tmp_path / name, rules, split="test", queries_at_once=70
        )
    assert len(lines(tmp_path / "one")) == len(rows)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_real_sentences(tmp_path, data_dir):
    """What was mined for questions of squad_sent is no positive, and near none."""
    source = DatasetDirectory(data_dir / "squad_sent")
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl.gz", "queries.jsonl.gz"):
        (folder / name).symlink_to(source.path / name)
    qrels = source.qrels("dev")
    chosen = random.Random(1).sample(sorted(qrels), 200)
    table = "".join(f"{q}\t{d}\t{r}\n" for q in chosen for d, r in qrels[q].items())
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + table)
    report = mine_negatives(
        DatasetDirectory(folder), Bm25Candidates(), tmp_path / "n.jsonl.gz", MiningRules(),
        split="dev",
    )  # fmt: skip
    assert report.pairs == 200
    assert report.negatives == 800
    assert 150 < report.removed["positive"] <= 200  # BM25's recall@100 is 0.955 on test
    documents = DocumentFile.build(source.documents(), tmp_path / "documents")
    words = {}
    for line in lines(tmp_path / "n.jsonl.gz"):
        for doc_id in (line["positive"], *line["negatives"]):
            words[doc_id] = shingles(normal_words(documents.get(doc_id).text))
        assert list(qrels[line["query_id"]]) == [line["positive"]]
        assert line["positive"] not in line["negatives"]
        assert len(set(line["negatives"])) == 4
        for doc_id in line["negatives"]:
            assert resemblance(words[doc_id], words[line["positive"]]) < NEARLY_EQUAL
        scores = line["scores"]["negatives"]
        assert scores == sorted(scores, reverse=True)


def test_positives_are_scored_as_the_index_holds_them(tmp_path):
    documents = [Document(f"p{n}.{m}", "", f"w{n} w{m}") for n in range(4) for m in range(5)]
    records = [*documents, Query("q", "w1"), Judgement("train", "q", "p3.2", 1)]
    write_dataset(tmp_path / "data", records)
    data, model = DatasetDirectory(tmp_path / "data"), tiny.dual_encoder(tiny.BERT)
    parents = ParentConfig(weight=0.5, max_length_tokens=16)
    embeddings = encode_corpus(model, data.documents(), tmp_path / "e", parents=parents)
    ExactIndex.from_embeddings(embeddings).save(tmp_path / "index")
    source = ModelCandidates(model, index=tmp_path / "index")
    rules = MiningRules(count=1, max_rank=1)
    mine_negatives(data, source, tmp_path / "n.jsonl", rules)
    scores, ids = load_index(tmp_path / "index").search(model.encode_queries(["w1"]), 20)
    found = dict(zip(ids[0], scores[0], strict=True))
    (line,) = lines(tmp_path / "n.jsonl")
    given = [line["scores"]["positive"], *line["scores"]["negatives"]]
    wanted = [found["p3.2"], *(found[doc_id] for doc_id in line["negatives"])]
    np.testing.assert_allclose(given, wanted, atol=1e-5)
