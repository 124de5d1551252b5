"""Batches of questions, the losses by NumPy, and a run from data to an answer."""

import dataclasses
import json
import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_phrases import DOCUMENTS, phrase_encoder

from tfde.cli.main import main
from tfde.config.optimizer import OptimizerConfig
from tfde.config.phrases import PhraseModelConfig, PhraseRun
from tfde.errors import ConfigError, DataError, MismatchError, OtherRunError
from tfde.phrases.batches import PhraseData
from tfde.phrases.measure import searched_documents
from tfde.phrases.phrase_index import PhraseIndex
from tfde.phrases.questions import asked_documents
from tfde.phrases.training import PhraseTrainer, answer_loss, train_phrases

RECIPE = Path(__file__).parents[3] / "pipelines" / "recipes" / "phrases_squad.yaml"
RUN = PhraseRun(PhraseModelConfig("none"), "none")
BACKBONE = {
    "kind": "bert", "num_layers": 1, "num_heads": 2, "hidden_dim": 16,
    "intermediate_dim": 32, "max_sequence_length": 32, "dropout": 0.0,
}  # fmt: skip


def read(dataset, model, **options):
    options = {"max_phrase_tokens": 3, "pad_id": 0, **options}
    return PhraseData(dataset, "dev", model.reader, **options)


def test_every_question_is_counted(dataset, model):
    data = read(dataset, model)
    assert vars(data.counts) == {
        "questions": 6,
        "seen": 2,
        "cut": 1,
        "not_in_text": 1,
        "without_answers": 1,
        "without_passage": 1,
    }
    assert "of 2 an answer is seen, of 1 it is cut off or too long" in str(data.counts)


def test_a_batch_marks_the_answers(dataset, model):
    data = read(dataset, model)
    batch = data.batch(0, passages=2, questions_each=4)
    assert sorted(batch["queries"]) == ["one red", "two red"]
    for query, owner, starts, ends in zip(
        batch["queries"], batch["owners"], batch["starts"], batch["ends"], strict=True
    ):
        ids = batch["token_ids"][owner]
        spelled = [model.preprocessor.tokenizer.id_to_token(i) for i in ids]
        begin, end = (np.array(spelled)[marks > 0].tolist() for marks in (starts, ends))
        # "lake sea" is cut off; "blue" and "Blue." are one answer in two lengths
        expected = (["blue"], ["blue"]) if query == "one red" else (["dog"], ["bird"])
        assert (begin, end) == expected
        np.testing.assert_array_equal(batch["any_starts"][owner], starts)
        assert batch["own"][owner].sum() == {"one red": 10, "two red": 12}[query]
    assert data.batch(0, passages=2, questions_each=4)["queries"].tolist() == (
        batch["queries"].tolist()
    )


def test_an_epoch_has_every_passage_once(dataset, model):
    data = read(dataset, model)
    for epoch in range(3):
        steps = (2 * epoch, 2 * epoch + 1)
        asked = [q for s in steps for q in data.batch(s, passages=1, questions_each=1)["queries"]]
        assert sorted(asked) == ["one red", "two red"]
    assert len(read(dataset, model, limit=1)) == 1


def test_what_cannot_be_learned_is_told(dataset, model):
    (dataset / "answers.jsonl").write_text(json.dumps({"_id": "q0", "answers": ["violet"]}) + "\n")
    with pytest.raises(ConfigError, match=r"must have answers to learn from\. 6 questions: of 0"):
        read(dataset, model)
    (dataset / "answers.jsonl").write_text("")
    with pytest.raises(ConfigError, match="split dev must have questions with answers"):
        read(dataset, model)
    (dataset / "answers.jsonl").unlink()
    with pytest.raises((ConfigError, DataError), match=r"answers\.jsonl"):
        read(dataset, model)


def softmax_loss(logits, gold):
    """-log of the probability of all right positions, mean over rows; -inf does not count."""
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return -np.log((shares * gold).sum(axis=1)).mean()


def test_one_softmax():
    logits = np.array([[1.0, 2.0, 0.5, 9.0], [0.0, -1.0, 3.0, 9.0]], np.float32)
    gold = np.array([[0, 1, 0, 0], [1, 0, 1, 0]])
    counts = np.array([[1, 1, 1, 0], [1, 1, 1, 0]])
    found = answer_loss(tf.constant(logits), tf.constant(gold), tf.constant(counts))
    expected = softmax_loss(np.where(counts > 0, logits.astype(np.float64), -np.inf), gold)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_losses_of_a_batch(dataset, model):
    """Against the definitions, written out in NumPy."""
    trainer = PhraseTrainer(model, RUN)
    batch = read(dataset, model).batch(0, passages=2, questions_each=4)
    prepared = trainer.prepare_batch({name: tf.constant(x) for name, x in batch.items()})
    found = {n: float(x) for n, x in trainer.losses_of(prepared, training=False).items()}
    inputs = {n: tf.constant(batch[n]) for n in ("token_ids", "padding_mask")}
    tokens = {n: x.numpy().astype(np.float64) for n, x in model(inputs).items()}
    queries = model.encode_queries(list(batch["queries"])).astype(np.float64)
    expected = dict.fromkeys(("in_passage", "in_batch", "filter"), 0.0)
    own = batch["own"] > 0
    for number, side in enumerate(("start", "end")):
        logits = np.einsum("qh,plh->qpl", queries[:, number], tokens["vectors"])
        logits = np.where(own[None], logits, -np.inf)
        gold = batch[f"{side}s"]
        rows = np.arange(len(gold))
        expected["in_passage"] += softmax_loss(logits[rows, batch["owners"]], gold) / 2
        everywhere = np.zeros(logits.shape)
        everywhere[rows, batch["owners"]] = gold
        flat = len(gold), -1
        expected["in_batch"] += softmax_loss(logits.reshape(flat), everywhere.reshape(flat)) / 2
        shares = 1 / (1 + np.exp(-tokens["filter"][..., number]))
        right = np.where(batch[f"any_{side}s"] > 0, shares, 1 - shares)
        expected["filter"] += -np.log(right[own]).mean() / 2
    assert found == pytest.approx(expected, rel=1e-4)


def test_each_loss_has_its_weight(dataset):
    """Of the number that is minimized: one step of SGD moves weights by the weighted sum."""
    weights = {"in_passage_weight": 0.3, "in_batch_weight": 0.2, "filter_weight": 0.7}
    trainer = PhraseTrainer(phrase_encoder(), dataclasses.replace(RUN, **weights))
    trainer.compile(keras.optimizers.SGD(0.0))
    batch = read(dataset, trainer.model).batch(0, passages=2, questions_each=4)
    prepared = trainer.prepare_batch({name: tf.constant(x) for name, x in batch.items()})
    logs = {name: float(value) for name, value in trainer.train_step(prepared).items()}
    expected = sum(weights[f"{name}_weight"] * logs[f"{name}_loss"] for name in trainer.weights_of)
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert set(trainer.weights_of) == {"in_passage", "in_batch", "filter"}


def test_the_filter_teaches_the_filter_alone(dataset):
    trainer = PhraseTrainer(phrase_encoder(), RUN)
    batch = read(dataset, trainer.model).batch(0, passages=2, questions_each=4)
    prepared = trainer.prepare_batch({name: tf.constant(x) for name, x in batch.items()})
    with tf.GradientTape() as tape:
        loss = trainer.losses_of(prepared, training=True)["filter"]
    gradients = tape.gradient(loss, [w.value for w in trainer.trainable_weights])
    reached = {
        weight.path.split("/")[0]
        for weight, gradient in zip(trainer.trainable_weights, gradients, strict=True)
        if gradient is not None and np.any(tf.convert_to_tensor(gradient).numpy())
    }
    assert reached == {"filter"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", 0, "`epochs` must be at least 1"),
        ("limit", 0, "`limit` must be at least 1"),
        ("filter_weight", -1.0, "`filter_weight` must be at least 0"),
        ("warmup", 1.0, r"`warmup` must be in \[0, 1\)"),
    ],
)
def test_impossible_runs(field, value, message):
    with pytest.raises(ConfigError, match=message):
        PhraseRun(PhraseModelConfig("none"), "none", **{field: value})
    with pytest.raises(ConfigError, match="`in_batch_weight` must be above 0"):
        PhraseRun(PhraseModelConfig("none"), "none", in_batch_weight=0.0, in_passage_weight=0.0)


class Stopping(logging.Handler):
    """Stops a run at a line of its log, as Ctrl-C would."""

    def emit(self, record):
        if record.getMessage().startswith("step 8 of 10"):
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_over_the_same_answers_alone(tmp_path, dataset, caplog):
    tiny.tokenizer().save_assets(tmp_path / "words")
    model = PhraseModelConfig(
        BACKBONE, str(tmp_path / "words" / "vocab.txt"), query_max_length_tokens=8,
        passage_max_length_tokens=14, max_phrase_tokens=3,
    )  # fmt: skip
    run = PhraseRun(
        model, str(dataset), "dev", epochs=5, batch_passages=1, precision="float32",
        optimizer=OptimizerConfig("adamw", learning_rate=0.01),
        log_every_steps=4, checkpoint_every_steps=6,
    )  # fmt: skip
    whole = train_phrases(run, tmp_path / "whole", verbose=0)
    caplog.set_level(logging.INFO, "tfde")
    stopping = Stopping()
    logging.getLogger("tfde").addHandler(stopping)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_phrases(run, tmp_path / "run", verbose=0)
    finally:
        logging.getLogger("tfde").removeHandler(stopping)
    assert not (tmp_path / "run" / "model").exists()
    answers = dataset / "answers.jsonl"
    content = answers.read_text()
    answers.write_text(content.replace("dog bird", "dog"))
    with pytest.raises(OtherRunError, match=r"answers\.jsonl"):
        train_phrases(run, tmp_path / "run", verbose=0)
    answers.write_text(content)
    resumed = train_phrases(run, tmp_path / "run", verbose=0)
    assert "an earlier run is taken up: step 6" in caplog.messages
    for name, weight in resumed.named_weights().items():
        expected = whole.named_weights()[name].numpy()
        np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5, err_msg=name)
    steps = [
        [json.loads(line)["step"] for line in (tmp_path / name / "history.jsonl").open()]
        for name in ("run", "whole")
    ]
    assert steps[0] == steps[1] == [4, 8, 10]


def test_what_is_searched_is_the_same_for_every_way(dataset, model):
    asked, _ = asked_documents(dataset, "dev")

    def index(documents):
        return PhraseIndex.build(model, documents, engine="exact")

    assert searched_documents({}, asked) == [part.document for part in asked]
    every = index(DOCUMENTS)
    assert searched_documents({"one": every, "two": every}, asked) == DOCUMENTS
    with pytest.raises(MismatchError, match="`index`: two must hold the passages that one holds"):
        searched_documents({"one": every, "two": index(DOCUMENTS[:2])}, asked)
    changed = [DOCUMENTS[0], DOCUMENTS[1]._replace(text="plum")]
    with pytest.raises(MismatchError, match=r"one must hold every passage .* It lacks: d1"):
        searched_documents({"one": index(changed)}, asked)


def test_from_data_to_an_answer_by_commands(tmp_path, dataset, capsys, monkeypatch):
    """Two passages are learned by heart."""
    tiny.tokenizer().save_assets(tmp_path / "words")
    monkeypatch.setenv("SQUAD", str(dataset))
    monkeypatch.setenv("TFDE_MINILM", "unused")
    changes = {
        "model.backbone": json.dumps(BACKBONE),
        "model.tokenizer": str(tmp_path / "words" / "vocab.txt"),
        "model.num_layers": "null",
        "model.query_max_length_tokens": 8,
        "model.passage_max_length_tokens": 14,
        "model.max_phrase_tokens": 3,
        "split": "dev",
        "epochs": 60,
        "optimizer.learning_rate": 0.01,
        "precision": "float32",
    }
    run, index = str(tmp_path / "run"), str(tmp_path / "index")
    common = ["--model", f"{run}/model", "--dataset", str(dataset)]
    train = ["phrases", "train", "--run", str(RECIPE), "--output", run]
    train += [f"--run.{name}={value}" for name, value in changes.items()]
    assert main(train) == 0
    only = ["--split", "dev", "--engine", "exact", "--output", index]
    assert main(["phrases", "index", *common, *only]) == 0
    capsys.readouterr()
    ask = ["phrases", "search", "two red", "--model", f"{run}/model", "--index", index, "-k", "1"]
    assert main(ask) == 0
    assert "  dog bird  (d1: " in capsys.readouterr().out
    options = ["--index", index, "--bm25", "--json"]
    assert main(["phrases", "evaluate", *common, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["questions"] == 4  # what is cut off or not in the text counts as wrong
    rows = {(row["way"], row["setting"]): row for row in found["rows"]}
    for key in (("phrases", "given"), ("phrases, index", "open")):
        assert rows[key]["EM"] == 0.5
    assert rows["BM25's sentence", "given"]["EM"] == 0.0
    assert rows["BM25's sentence", "given"]["Answer@1"] == 0.75
    other = phrase_encoder()
    other.save_to_preset(tmp_path / "other")
    ask[ask.index(f"{run}/model")] = str(tmp_path / "other")
    assert main(ask) == 1
    assert "`model` must be the one that made the index" in capsys.readouterr().err
