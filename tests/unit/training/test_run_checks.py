"""What is impossible is said before any work starts."""

import dataclasses
import json
import shutil

import pytest
import tiny

from tfde.config.losses import GuideConfig
from tfde.config.model import TextConfig
from tfde.config.optimizer import OptimizerConfig
from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.config.validation import GuardConfig, ValidationConfig
from tfde.data.pairs.read_pairs import write_pairs
from tfde.errors import ConfigError, DataError, TrainingError
from tfde.training.checks import check_replicas
from tfde.training.early_checks import check_run, expand_run
from tfde.training.retrieval_validation import RetrievalValidation
from tfde.training.run import train
from tfde.types import Document, Pair, Query

BOW = {"kind": "bag_of_words", "embedding_dim": 4, "hidden_dim": 4}


def run_of(data, **stage):
    stage = {"steps": 1, "batch_size": 8, **stage}
    return TrainRun(ModelConfig(BOW), {"only": StageConfig(str(data), **stage)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"steps": None},
            r"`stages\.only` needs either `steps` or `epochs`, and not both\. Received: steps=N",
        ),
        (
            {"epochs": 1},
            r"`stages\.only` needs either `steps` or `epochs`, and not both\. Received: steps=1",
        ),
        ({"steps": 0}, r"`stages\.only\.steps` must be at least 1\. Received: 0"),
        ({"temperature": 0}, r"`stages\.only\.temperature` must be above 0\. Received: 0"),
        (
            {"topic_clusters": "x", "sampling_correction": True},
            r"`stages\.only\.sampling_correction` must be false with `topic_clusters`, wh.*True",
        ),
        (
            {"topic_size": 64, "sampling_correction": True},
            r"`stages\.only\.sampling_correction` must be false with `topic_size`, wh.*True",
        ),
        (
            {"topic_size": 64, "topic_clusters": "x"},
            r"`stages\.only\.topic_size` must be null with `topic_clusters`\. Received: 64",
        ),
        (
            {"topic_size": 5, "batch_size": 6},
            r"`stages\.only\.topic_size` must be at least `batch_size`, 6\. Received: 5",
        ),
        (
            {"topic_size": 64, "steps": None, "epochs": 1},
            r"`stages\.only\.topic_size` must be null with `epochs`: how many batches .*: 64",
        ),
        ({"batch_size": 0}, r"`stages\.only\.batch_size` must be at least 1"),
        ({"chunk_size": 0}, r"`stages\.only\.chunk_size` must be at least 1"),
        ({"log_every_steps": 0}, r"`stages\.only\.log_every_steps` must be at least 1"),
        ({"document_max_length_tokens": 2}, r"document_max_length_tokens` must be at least 3"),
        (
            {"optimizer": OptimizerConfig(learning_rate=-1)},
            r"`stages\.only\.optimizer\.learning_rate` must be above 0\. Received: -1",
        ),
        (
            {"optimizer": OptimizerConfig(clip_norm=0)},
            r"`stages\.only\.optimizer\.clip_norm` must be above 0\. Received: 0",
        ),
        (
            {"validation": ValidationConfig("x", every_steps=0)},
            r"`stages\.only\.validation\.every_steps` must be at least 1",
        ),
    ],
)
def test_impossible_values_are_named_with_their_stage(options, message):
    with pytest.raises(ConfigError, match=message):
        run_of("x", **options)


def test_a_run_needs_a_stage():
    with pytest.raises(ConfigError, match=r"`stages` must be not empty"):
        TrainRun(ModelConfig(BOW), {})


def test_missing_data(tmp_path):
    with pytest.raises(ConfigError, match=r"stages\.only\.data: .*nowhere does not exist\."):
        check_run(run_of(tmp_path / "nowhere"))
    data = tiny.write_dataset(tmp_path / "data", documents=20)
    check_run(run_of(data))
    with pytest.raises(ConfigError, match="test"):
        check_run(run_of(data, split="test"))
    with pytest.raises(ConfigError, match="test"):
        check_run(run_of(data, validation=ValidationConfig(str(data), split="test")))
    odd = dataclasses.replace(run_of(data), model=ModelConfig({"kind": "lstm"}))
    with pytest.raises(ConfigError, match=r"`model\.backbone\.kind` must be one of t5, bert, bag"):
        check_run(odd)
    odd = dataclasses.replace(run_of(data), model=ModelConfig({**BOW, "depth": 2}))
    with pytest.raises(
        ConfigError, match=r"`model\.backbone` has no field 'depth'; it has dropout"
    ):
        check_run(odd)


def test_environment_variables(monkeypatch):
    monkeypatch.setenv("TFDE_TEST_PLACE", "/somewhere")
    run = expand_run(run_of("${TFDE_TEST_PLACE}/data"))
    assert run.stages["only"].data == "/somewhere/data"
    monkeypatch.delenv("TFDE_TEST_PLACE")
    with pytest.raises(
        ConfigError, match=r"stages\.only\.data: the environment variable TFDE_TEST_P"
    ):
        expand_run(run_of("${TFDE_TEST_PLACE}/data"))


def test_output_of_another_run_is_refused(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    run = dataclasses.replace(run_of(data, batch_size=8), model=ModelConfig(BOW, str(vocabulary)))
    # A run that failed before its first checkpoint does not stand in the way.
    with pytest.raises(ConfigError, match=r"`batch_size` must be at most the number of pairs"):
        train(
            dataclasses.replace(run, stages=run_of(data, batch_size=99999).stages),
            tmp_path / "out",
            verbose=0,
        )
    train(run, tmp_path / "out", verbose=0)
    # Keras numbers its objects anew in the same process; the checkpoint fits all the same.
    train(run, tmp_path / "out", verbose=0)
    other = dataclasses.replace(run, seed=3)
    with pytest.raises(ConfigError, match=r"holds another run \(run\.seed was 0, is 3\)"):
        train(other, tmp_path / "out", verbose=0)
    # The same run with other words behind its token ids is another one.
    vocabulary.write_text("\n".join(tiny.VOCABULARY[:-2] + tiny.VOCABULARY[:-3:-1]) + "\n")
    with pytest.raises(ConfigError, match=r"holds another run \(data\..*vocab\.txt was "):
        train(run, tmp_path / "out", verbose=0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    for record in (None, '{"made_by": "another tool"}'):
        if record:
            (tmp_path / "full" / "run.json").write_text(record)
        with pytest.raises(ConfigError, match="is not empty and holds no run"):
            train(run, tmp_path / "full", verbose=0)
    assert (tmp_path / "full" / "thesis.txt").exists()


def test_faults_of_the_last_stage_are_found_before_the_first(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data", documents=40))
    few = tmp_path / "few.jsonl"
    few.write_text('{"query": "a?", "positive": "b"}\n')
    first = StageConfig(data, steps=1, batch_size=8)
    for fault, message in (
        (
            {"optimizer": OptimizerConfig(warmup_steps=5)},
            r"`optimizer.warmup_steps` must be below the steps of the stage, 1\. Received: 5",
        ),
        ({"batch_size": 999}, r"`batch_size` must be at most the number of pairs, 32"),
        ({"negatives_per_query": 2}, r"`negatives_per_query` must be 0, for no pair has"),
        (
            {"data": None, "mixture": (SourceConfig(data),), "negatives_per_query": 2},
            "`negatives_per_query` must be 0 where no source has negatives.* Received: 2",
        ),
        ({"validation": ValidationConfig(data, measures=("Gold@1",))}, "Gold@1"),
        (
            {"validation": ValidationConfig(data, measures=("Answer@5",))},
            r"`stages\.last\.validation`: .*must hold answers\.jsonl",
        ),
        (
            {"data": None, "mixture": (SourceConfig(data), SourceConfig(str(few)))},
            r"stages\.last: mixture\[1\] must have as many pairs as rows in a batch, 4 of 8\.",
        ),
        (
            {"data": None, "mixture": (SourceConfig(pages=str(few), tasks={"icd": 1}),)},
            r"stages\.last\.mixture\[0\]: `tasks` must be of ict, .* Received: 'icd'",
        ),
    ):
        last = dataclasses.replace(first, **fault)
        run = TrainRun(ModelConfig(BOW), {"first": first, "last": last})
        with pytest.raises(ConfigError, match=message):
            train(run, tmp_path / "out", verbose=0)
        assert not (tmp_path / "out").exists()


def test_only_the_queries_that_are_measured_need_answers(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    config = ValidationConfig(str(data), max_queries=2, measures=("Answer@1",))
    every = dataclasses.replace(config, max_queries=None)
    of_all = RetrievalValidation(dataclasses.replace(every, measures=("P@1",)))
    of_two = RetrievalValidation(dataclasses.replace(config, measures=("P@1",)))
    assert len(of_two.queries) == 2 < len(of_all.queries)
    rows = [json.dumps({"_id": q.query_id, "answers": ["one"]}) for q in of_two.queries]
    (data / "answers.jsonl").write_text("\n".join(rows))
    check_run(run_of(data, validation=config))
    with pytest.raises(ConfigError, match="needs answers to every query that is measured"):
        check_run(run_of(data, validation=every))


def test_documents_that_are_measured_have_the_context_that_is_read(tmp_path):
    lines = [
        json.dumps({"query": f"{a}?", "positive": {"text": a, "context": f"{a} {b}"}})
        for a, b in zip(tiny.WORDS[:8], tiny.WORDS[8:16], strict=True)
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    lacking = str(tiny.write_dataset(tmp_path / "lacking", documents=20))
    first = StageConfig(str(tmp_path / "p.jsonl"), steps=1, batch_size=8)
    text = TextConfig(8, 16, document_template="{text} {context}")
    model = ModelConfig(BOW, str(vocabulary), text=text)
    folder = tmp_path / "with"
    shutil.copytree(lacking, folder)
    corpus = (folder / "corpus.jsonl").read_text().splitlines()
    rows = [json.dumps({**json.loads(line), "context": "one"}) for line in corpus]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    guards = {"home": GuardConfig(lacking, split="dev")}
    for validation, place in (
        (ValidationConfig(lacking), "validation"),
        (ValidationConfig(str(folder), guards=guards), r"validation\.guards\.home"),
    ):
        last = dataclasses.replace(first, validation=validation)
        run = TrainRun(model, {"first": first, "last": last})
        message = rf"stages\.last: `{place}`: `documents` must have a `context`"
        with pytest.raises(ConfigError, match=message):
            train(run, tmp_path / "out", verbose=0)
        in_fit = RetrievalValidation(validation)
        in_fit.set_model(tiny.dual_encoder(text=text))
        with pytest.raises(ConfigError, match="`documents` must have a `context`"):
            in_fit.on_train_begin()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"dev\.tsv: must judge at least one query, for the validation\."),
        ("nobody\td0\t1\n", r"dev\.tsv:2: query-id must be an id of the queries file\."),
        ("q0\tnothing\t1\n", r"dev\.tsv: no judged document is in the corpus\."),
    ],
)
def test_validation_sets_are_looked_at_before_the_first_stage(tmp_path, line, message):
    data = tiny.write_dataset(tmp_path / "data", documents=40)
    first = StageConfig(str(data), steps=1, batch_size=8)
    other = tiny.write_dataset(tmp_path / "other", documents=40)
    (other / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}")
    last = dataclasses.replace(first, validation=ValidationConfig(str(other)))
    run = TrainRun(ModelConfig(BOW), {"first": first, "last": last})
    with pytest.raises(DataError, match=message):
        train(run, tmp_path / "out", verbose=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"hidden_dim": 8.5}, r"`hidden_dim` must be a whole number .* Received: 8\.5"),
        ({"embedding_dim": 0}, r"`embedding_dim` must be a whole number of at least 1\."),
        ({"vocabulary_size": "many"}, r"`vocabulary_size` must be a whole .* Received: 'many'"),
    ],
)
def test_impossible_backbones(tmp_path, backbone, message):
    run = run_of(tmp_path)
    run = dataclasses.replace(run, model=ModelConfig({**BOW, **backbone}))
    with pytest.raises(ConfigError, match=message):
        check_run(run)


def test_names_and_seeds(tmp_path):
    stage = run_of(tmp_path).stages["only"]
    with pytest.raises(ConfigError, match=r"`seed` must be in \[0, 2\*\*32\)\. Received"):
        TrainRun(ModelConfig(BOW), {"a": stage}, seed=5_000_000_000)
    for name in ("..", "-x", "a/b", ""):
        with pytest.raises(ConfigError, match="stages: a name holds letters"):
            check_run(TrainRun(ModelConfig(BOW), {name: stage}))


def test_a_loss_that_is_not_a_number_stops_and_keeps_nothing(tmp_path):
    data = str(tiny.write_dataset(tmp_path / "data", documents=40))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    stage = StageConfig(
        data,
        steps=9,
        batch_size=8,
        temperature=1e-30,
        checkpoint_every_steps=1,
        optimizer=OptimizerConfig("adamw", learning_rate=1e30, clip_norm=None),
    )
    run = TrainRun(ModelConfig(BOW, str(vocabulary), normalize=False), {"only": stage})
    with pytest.raises(TrainingError, match=r"stage only: the loss must be finite; .* at step"):
        train(run, tmp_path / "out", verbose=0)
    assert not (tmp_path / "out" / "model").exists()


def test_batches_must_be_shared_out_evenly(tmp_path):
    run = run_of(tmp_path, batch_size=9)
    check_replicas(run, 3)
    message = r"stages\.only\.batch_size must be a multiple of the 2 replicas, .* Received: 9"
    with pytest.raises(ConfigError, match=message):
        check_replicas(run, 2)


def test_timeout_must_be_a_time(tmp_path):
    message = r"`collective_timeout_s` must be at least 1\. Received: 0"
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(run_of(tmp_path), collective_timeout_s=0)


def test_what_a_checkpoint_has_of_its_own(tmp_path):
    run = run_of(tiny.write_dataset(tmp_path / "data"))
    model = tiny.dual_encoder()
    model.save_to_preset(tmp_path / "model")
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.VOCABULARY))
    chosen = ModelConfig(str(tmp_path / "model"), tokenizer=str(tmp_path / "vocab.txt"))
    with pytest.raises(ConfigError, match=r"`model.tokenizer` must be null: the checkpoint has"):
        check_run(dataclasses.replace(run, model=chosen))
    chosen = ModelConfig(BOW, projection_bias=True)
    with pytest.raises(ConfigError, match=r"`model.projection_bias` must be false without"):
        check_run(dataclasses.replace(run, model=chosen))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": float("inf")}, "temperature"),
        ({"optimizer": OptimizerConfig(learning_rate=float("inf"))}, "optimizer.learning_rate"),
        ({"guide": GuideConfig(score_margin=float("inf"))}, "guide.score_margin"),
    ],
)
def test_numbers_that_are_infinite(options, field):
    with pytest.raises(ConfigError, match=rf"{field}` must be .*Received: inf"):
        run_of("data", **options)


def test_given_negatives_that_no_stage_takes_are_told(tmp_path, caplog):
    """Else hours of mining would have no effect, without a word."""
    documents = [Document(word, "", word) for word in tiny.WORDS[:8]]
    pairs = [Pair(Query(f"q {d.text}", d.text), d, (Document("x", "", "x"),)) for d in documents]
    write_pairs(tmp_path / "p.jsonl", pairs)
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.VOCABULARY))
    model = ModelConfig(BOW, tokenizer=str(tmp_path / "vocab.txt"))
    run = run_of(tmp_path / "p.jsonl", batch_size=4)
    train(dataclasses.replace(run, model=model), tmp_path / "out", verbose=0)
    told = f"{tmp_path}/p.jsonl: the pairs have up to 1 given negatives, which are left out"
    assert told in caplog.text
    caplog.clear()
    stage = {"batch_size": 4, "negatives_per_query": 1}
    run = run_of(tmp_path / "p.jsonl", **stage)
    train(dataclasses.replace(run, model=model), tmp_path / "other", verbose=0)
    assert "left out" not in caplog.text
