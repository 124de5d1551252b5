"""What a study refuses before any work, and what it says when a cell fails."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import tiny
from without_packages import without_packages

from tfde.cli.main import main
from tfde.config.study import EvaluationConfig, StudyConfig, VocabularyConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.query_sample import sample_queries
from tfde.errors import ConfigError, MissingExtraError, TrainingError
from tfde.storage.atomic import directory_lock
from tfde.studies.parallel_jobs import call_in_child
from tfde.studies.run_cell import measure
from tfde.studies.study import run_study
from tfde.studies.study_checks import _check_answers
from tfde.studies.study_figures import draw_results
from tfde.studies.study_tables import Group, StudyResults, format_results, load_results


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_dataset(tmp_path_factory.mktemp("study") / "data", documents=60)


def study_of(data, *, vocabulary=None, evaluate=None, **axes):
    base = {
        "model": {"backbone": {"kind": "bag_of_words"}},
        "stages": {"only": {"data": str(data), "steps": 1}},
        "evaluate": {"dataset": str(data), "split": "dev", "measures": ["R@5"], **(evaluate or {})},
    }
    return StudyConfig(base, axes or {"model": {"bm25": {"model": "bm25"}}}, vocabulary=vocabulary)


def test_what_is_missing_is_found_before_any_work(tmp_path, data):
    output = tmp_path / "out"
    for study, message in (
        (
            study_of(data, size={"one": {}}),
            r"cell size=one seed=0: `vocabulary` is needed: models .*\. Received: null",
        ),
        (
            study_of(data, evaluate={"more_candidates": "nowhere.jsonl"}),
            r"cell model=bm25 seed=0: evaluate\.more_candidates: nowhere\.jsonl does not exist\.",
        ),
        (study_of(data, evaluate={"split": "test"}), r"`split` must be one of .*'test'"),
        (study_of(data, evaluate={"measures": ["Q@1"]}), r"unknown measure; .*'Q@1'"),
        (study_of(data, evaluate={"measures": ["Answer@5"]}), r"must hold answers\.jsonl"),
        (
            study_of(data, evaluate={"dataset": "${TFDE_NO_SUCH}/x"}),
            r"evaluate\.dataset: the environment variable TFDE_NO_SUCH is not set",
        ),
        (
            study_of(data, model={"bm25": {}, "x": {"stages": {"only": {"data": "nowhere"}}}}),
            r"cell model=x seed=0: .*stages\.only\.data: nowhere does not exist\.",
        ),
        (
            study_of(
                data,
                model={
                    "x": {"stages": {"only": None, "evaluate": {"data": str(data), "steps": 1}}}
                },
            ),
            r"cell model=x seed=0: `stages` must be named otherwise\. Received: 'evaluate'",
        ),
    ):
        if "nowhere does" in message or "otherwise" in message:
            study.base["model"]["tokenizer"] = str(data / "corpus.jsonl")  # is not read yet
        with pytest.raises(ConfigError, match=message):
            run_study(study, output)
    assert not output.exists()
    with pytest.raises(ConfigError, match=r"vocabulary\.texts: nowhere does not exist\."):
        run_study(study_of(data, vocabulary=VocabularyConfig("nowhere")), output)


def test_a_directory_of_something_else_is_left_alone(tmp_path, data):
    (tmp_path / "trained").mkdir()
    with pytest.raises(ConfigError, match=r" is not empty and holds no study; choose another out"):
        run_study(study_of(data), tmp_path)
    assert (tmp_path / "trained").exists()


def test_the_directory_of_another_study_is_left_alone(tmp_path, data):
    run_study(study_of(data), tmp_path)
    kept = tmp_path / "trained" / "model"
    kept.mkdir(parents=True)
    before = (tmp_path / "study.json").read_bytes()
    other = study_of(data, size={"small": {"model": "bm25"}})
    with pytest.raises(ConfigError, match=r"holds another study \(of model, no cell in common\)"):
        run_study(other, tmp_path)
    assert kept.exists()
    assert (tmp_path / "study.json").read_bytes() == before


def test_a_result_names_the_commit_that_its_work_began_with(tmp_path, data, monkeypatch):
    def git(*arguments):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *author, *arguments], capture_output=True, check=True)
        return done.stdout.decode().strip()

    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    first = git("rev-parse", "HEAD")

    def commit_meanwhile(*arguments, **options):
        git("commit", "--quiet", "--allow-empty", "--message", "second")
        return call_in_child(*arguments, **options)

    monkeypatch.setattr("tfde.studies.study.call_in_child", commit_meanwhile)
    run_study(study_of(data), tmp_path / "out")
    (record,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert record["commit"] == first


def test_two_at_once_are_refused(tmp_path, data):
    with (
        directory_lock(tmp_path, "here"),  # its file does not count as something else
        pytest.raises(ConfigError, match=r": another process .* is working on its study\."),
    ):
        run_study(study_of(data), tmp_path)


def test_a_cell_that_fails_is_named(tmp_path, data):
    (tmp_path / "pages.jsonl").write_text("no page\n")  # read where the cell is measured
    study = study_of(data, evaluate={"more_candidates": str(tmp_path / "pages.jsonl")})
    message = r"^cell model=bm25 seed=0: DataError: .*pages\.jsonl:1: must be JSON"
    with pytest.raises(TrainingError, match=message):
        run_study(study, tmp_path / "out")


def test_a_record_that_is_measured_is_read_before_any_work(tmp_path):
    broken = tiny.write_dataset(tmp_path / "broken", documents=20)
    with (broken / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d20"}\n')
    message = r"^cell model=bm25 seed=0: .*corpus\.jsonl:21: field 'text' is missing\."
    with pytest.raises(ConfigError, match=message):
        run_study(study_of(broken), tmp_path / "out")
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_what_the_pairs_do_not_allow_is_found_before_any_work(tmp_path, data):
    large = {"stages": {"only": {"batch_size": 49}}}
    study = study_of(data, model={"bm25": {"model": "bm25"}, "last": large})
    study.base["model"]["tokenizer"] = str(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.VOCABULARY))
    output = tmp_path / "out"
    message = r"^cell model=last seed=0: stages\.only: .*batch_size.*49"
    with pytest.raises(ConfigError, match=message):
        run_study(study, output)
    assert not (output / "results.jsonl").exists()
    assert not (output / "trained").exists()


def test_answers_are_measured_and_decide_over_what_is_done(tmp_path, data):
    folder = tmp_path / "answered"
    shutil.copytree(data, folder)
    dataset = DatasetDirectory(folder)
    queries = list(dataset.queries("dev"))
    store = dataset.document_store()

    def answer(texts):
        rows = [{"_id": q.query_id, "answers": [texts(q)]} for q in queries]
        (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _check_answers.cache_clear()
        run_study(study, tmp_path / "out")
        lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
        return [json.loads(line)["measures"] for line in lines]

    study = study_of(folder, evaluate={"measures": ["R@5", "Answer@5"]})
    relevant = dataset.relevant("dev")
    (first,) = answer(lambda query: store[relevant[query.query_id][0]].text)
    assert first["Answer@5"] == first["R@5"] > 0  # one relevant document a query, its whole text
    _, second = answer(lambda query: "no such words")
    assert second == {"R@5": first["R@5"], "Answer@5": 0.0}


def test_the_same_result_in_two_places_is_computed_once(tmp_path, data):
    axes = {"model": {"bm25": {"model": "bm25"}}, "labels": {"few": {}, "all": {}}}
    run_study(study_of(data, **axes), tmp_path)
    first, second = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (first.pop("axes"), second.pop("axes")) == (
        {"model": "bm25", "labels": "few"}, {"model": "bm25", "labels": "all"},
    )  # fmt: skip
    assert first == second  # the seconds too
    assert first["measures"] == {"R@5": 1.0}
    # Another evaluation is another result, and the older ones are not in its table.
    changed = study_of(data, evaluate={"max_queries": 3}, **axes)
    results = load_results(tmp_path)
    assert (results.done, results.total) == (2, 2)
    run_study(changed, tmp_path, only={"labels": "all"})
    results = load_results(tmp_path)
    assert (results.done, results.total) == (1, 2)
    assert results.groups[0].values == ("bm25", "all")
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3
    assert "1 of 2 cells are done." in format_results(results)


def test_a_rank_below_the_cutoffs_counts_for_rr(tmp_path):
    data = tiny.write_dataset(tmp_path / "data")
    # q0 is the words of d0; what is judged shares one of them, and comes later.
    (data / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td1\t1\n")
    found = measure(None, EvaluationConfig(str(data), "dev", measures=["P@1", "RR"]))
    assert found["measures"]["P@1"] == 0.0
    assert 0.0 < found["measures"]["RR"] <= 0.5


def test_the_sample_of_queries_is_fixed(data):
    dataset = DatasetDirectory(data)
    everything = list(dataset.queries("dev"))

    def sampled(most, seed):
        return sample_queries(dataset, "dev", most, np.random.Generator(np.random.PCG64(seed)))

    sample = sampled(5, 0)
    assert sample == sampled(5, 0)
    assert len(sample) == 5
    assert [query for query in everything if query in sample] == sample  # in their order
    assert sampled(5, 1) != sample
    assert sampled(1000, 0) == sampled(None, 0) == everything


def test_only_the_queries_that_are_measured_need_answers(tmp_path, data):
    folder = tmp_path / "answered"
    shutil.copytree(data, folder)
    rng = np.random.Generator(np.random.PCG64(3))
    sample = sample_queries(DatasetDirectory(folder), "dev", 2, rng)
    rows = [json.dumps({"_id": query.query_id, "answers": ["one"]}) for query in sample]
    (folder / "answers.jsonl").write_text("\n".join(rows))
    _check_answers(str(folder), "dev", 2, 3)
    with pytest.raises(ConfigError, match="needs answers to every query that is measured"):
        _check_answers(str(folder), "dev", None, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`--run` must name a study, except with --table or --figure."),
        (["--table"], "must hold study.json, as `tfde study --run` writes it."),
        (
            ["--table", "--only", "a=b"],
            "`--only` chooses cells to work on; --table and --figure show all.",
        ),
    ],
)
def test_commands_that_cannot_be_done(tmp_path, capsys, arguments, message):
    assert main(["study", "--output", str(tmp_path), *arguments]) == 1
    error = capsys.readouterr().err
    assert error.endswith(message + "\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["b"], "`only` must be AXIS=VALUE. Received: 'b'"),
        (["a=b", "a=c"], "`only` must name an axis once. Received: 'a=c'"),
    ],
)
def test_only_is_a_value_of_an_axis(tmp_path, capsys, data, values, message):
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps({"base": study_of(data).base, "axes": {"a": {"b": {}}}}))
    arguments = ["study", "--run", str(path), "--output", str(tmp_path), "--only"]
    assert main([*arguments, *values]) == 1
    assert capsys.readouterr().err == f"tfde study: {message}\n"


def test_a_figure_without_matplotlib(tmp_path, monkeypatch):
    without_packages(monkeypatch, "matplotlib")
    results = StudyResults({"a": ["x"], "b": ["y"]}, [], 0, 1)
    with pytest.raises(ConfigError, match=r"the study has no result yet"):
        draw_results(results, tmp_path / "f.png", measure="R@1")
    record = {"measures": {"R@1": 1.0}}
    results = results._replace(groups=[Group(("x", "y"), [record])])
    with pytest.raises(ConfigError, match=r"`measure` must be one of R@1\. Received: 'RR'"):
        draw_results(results, tmp_path / "f.png", measure="RR")
    with pytest.raises(
        MissingExtraError, match=r"a figure needs the extra 'figures': pip install 'tfde\[fig"
    ):
        draw_results(results, tmp_path / "f.png", measure="R@1")
