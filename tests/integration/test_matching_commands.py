"""train-matcher and rerank as commands: a teacher, a student that it teaches, a run reranked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny

from tfde.cli.main import main
from tfde.data.dataset_directory import DatasetDirectory
from tfde.evaluation.measures import evaluate
from tfde.matching.load import load_pair_scorer
from tfde.retrieval.runs import read_run, write_run

SIZES = "kind: bert, num_layers: 2, num_heads: 2, hidden_dim: 8, intermediate_dim: 12"
RECIPE = """
seed: 3
model:
  kind: {kind}
  backbone: {{{sizes}, max_sequence_length: 32, vocabulary_size: 120}}
  tokenizer: {work}/vocab.txt
  first_max_length_tokens: 10
  second_max_length_tokens: 12
data: {{data: {work}/pairs}}
validation: {{data: {work}/pairs, split: dev}}
test: {{data: {work}/pairs, split: test}}
epochs: {epochs}
batch_size: 16
optimizer: {{name: adamw, learning_rate: 0.01}}
log_every_steps: 2
{more}
"""


def write_pairs(folder: Path) -> None:
    """Three words and four; "yes" where they share one."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, number in (("train", 160), ("dev", 40), ("test", 60)):
        lines = ["sentence1\tsentence2\tlabel"]
        for row in range(number):
            first, second = rng.choice(tiny.WORDS, 3), rng.choice(tiny.WORDS, 4)
            if row % 2:
                second[0] = first[0]
            label = "yes" if set(first) & set(second) else "no"
            lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("matching")
    (directory / "vocab.txt").write_text("\n".join(tiny.VOCABULARY) + "\n")
    write_pairs(directory / "pairs")
    tiny.write_dataset(directory / "data", documents=60)
    return directory


def tiny_qrels(work):
    dataset = DatasetDirectory(work / "data")
    return {q: judged for split in dataset.splits for q, judged in dataset.qrels(split).items()}


def recipe(work, name, *, kind="cross_encoder", epochs=2, more="") -> Path:
    path = work / f"{name}.yaml"
    path.write_text(RECIPE.format(kind=kind, sizes=SIZES, work=work, epochs=epochs, more=more))
    return path


def tfde(capsys, *args):
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as end:  # of the parser
        code = end.code
    out, error = capsys.readouterr()
    return code, out, error


@pytest.fixture(scope="module")
def teacher(work):
    assert main(["train-matcher", "--run", str(recipe(work, "teacher")), "--output",
                 str(work / "teacher")]) == 0  # fmt: skip
    return work / "teacher" / "best_model"


def test_a_run_leaves_what_the_readme_says(work, teacher, capsys):
    folder = teacher.parent
    measures = json.loads((folder / "measures.json").read_text())
    assert measures["pairs"] == 60
    assert measures["labels"] == ["no", "yes"]
    assert {"accuracy", "macro_F1", "AUC"} <= measures.keys()
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "accuracy" in line] == [10, 20]
    assert any("loss" in line for line in lines)
    model = load_pair_scorer(teacher)
    assert model.score([("red apple", "apple")]).shape == (1, 2)
    # Given again, the finished run says the same and trains nothing.
    before = (folder / "history.jsonl").read_bytes()
    code, out, error = tfde(
        capsys, "train-matcher", "--run", work / "teacher.yaml", "--output", folder
    )
    assert code == 0, error
    assert f"model: {teacher}" in out
    assert "test (60 pairs): AUC " in out
    assert (folder / "history.jsonl").read_bytes() == before


def test_a_student_is_taught(work, teacher, capsys):
    more = f"teaching: {{models: [{teacher}], virt_weight: 1.0, logit_weight: 0.5}}"
    path = recipe(work, "student", kind="virt_encoder", epochs=1, more=more)
    output = work / "student"
    code, _, error = tfde(capsys, "train-matcher", "--run", path, "--output", output)
    assert code == 0, error
    lines = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    assert {"virt_loss", "logit_loss", "label_loss"} <= lines[0].keys()
    assert load_pair_scorer(output / "model").config.kind == "virt_encoder"


def test_a_run_is_reranked(work, teacher, capsys):
    rng = np.random.default_rng(0)
    queries = [f"q{n}" for n in range(0, 60, 5)]
    run = {q: {f"d{n}": float(s) for n, s in enumerate(rng.random(30))} for q in queries}
    write_run(work / "first.trec", run)
    code, out, error = tfde(
        capsys, "rerank", "--model", teacher, "--run_file", work / "first.trec", "--dataset",
        work / "data", "--output", work / "second.trec", "--depth", 20, "--label", "yes",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "12 queries, 240 pairs scored" in out
    assert ", by label yes\n" in out
    found = read_run(work / "second.trec")
    qrels = {q: judged for q, judged in tiny_qrels(work).items() if q in run}
    told = [evaluate(scores, qrels, "nDCG@10")["nDCG@10"] for scores in (run, found)]
    assert f"{told[0]:.4f} as given, {told[1]:.4f} reranked, " in out
    part = {q: run[q] for q in queries[:4]}
    write_run(work / "first.trec", {**part, "elsewhere": {"d1": 1.0}})
    code, out, error = tfde(
        capsys, "rerank", "--model", teacher, "--run_file", work / "first.trec", "--dataset",
        work / "data", "--output", work / "third.trec", "--depth", 2, "--label", "yes",
        "--split", "dev",
    )  # fmt: skip
    assert code == 0, error
    assert error.startswith("tfde rerank: left out: 1 queries of the run that are not in split de")
    qrels = DatasetDirectory(work / "data").qrels("dev")  # all of it, as `tfde evaluate` has it
    every = evaluate(part, qrels, "nDCG@10")["nDCG@10"]
    assert f"nDCG@10 of 12 judged queries: {every:.4f} as given" in out
    model = load_pair_scorer(teacher)
    assert model.labels == ("no", "yes")
    documents = dict(zip((f"d{n}" for n in range(60)), tiny.document_texts(), strict=False))
    for query, scores in run.items():
        old = sorted(scores, key=scores.get, reverse=True)
        new = sorted(found[query], key=found[query].get, reverse=True)
        assert set(new[:20]) == set(old[:20])
        assert new[20:] == old[20:]
        first, second, _ = documents[f"d{query[1:]}"].split()
        text = f"{second} {first}"
        logits = model.score([(text, documents[doc_id]) for doc_id in new[:20]]).astype("f8")
        expected = logits[:, 1] - np.logaddexp(logits[:, 0], logits[:, 1])
        np.testing.assert_allclose([found[query][d] for d in new[:20]], expected, atol=1e-4)


@pytest.mark.slow
def test_a_killed_run_goes_on(work):
    path = recipe(work, "killed", epochs=12)
    output, whole = work / "killed", work / "whole"
    command = [sys.executable, "-m", "tfde.cli.main", "train-matcher", "--run", str(path)]

    def start(folder):
        return subprocess.Popen(
            [*command, "--output", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    process = start(output)
    deadline = time.monotonic() + 240
    while not (output / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.stderr.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (output / "model").exists()
    process = start(output)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error[-2000:]
    assert main([*command[3:], "--output", str(whole)]) == 0
    weights = [folder / "model" / "model.weights.h5" for folder in (output, whole)]
    with h5py.File(weights[0]) as one, h5py.File(weights[1]) as other:
        names: list[str] = []
        one.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        assert names
        for name in names:
            np.testing.assert_allclose(one[name][()], other[name][()], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('labels: [maybe, "no"]',), "train.tsv:3: a label must be one of maybe, no."),
        (("objective: binary", 'labels: ["yes"]'), "a label must be one of yes"),
        (("objective: regression",), "train.tsv:2: a label must be a number. Received: 'no'"),
        (("objective: ranking",), "objective ranking needs a pair file with negatives"),
        (("epochs: 0",), "epochs"),
        (("warmup: 1",), "`warmup` must be in [0, 1)"),
        (("score_scale: 20",), "`score_scale` must be 1 with objective classification. Received"),
        (
            ("teaching: {models: [/nowhere], virt_weight: 1.0}",),
            "`teaching.models`: The checkpoint must be a directory",
        ),
        (
            ("teaching: {models: [/nowhere], virt_layers: 3}",),
            "mistake.yaml: teaching: virt_layers: must be a dict. Received: 3",
        ),
    ],
)
def test_mistakes_are_one_line(work, capsys, change, message):
    text = recipe(work, "mistake").read_text()
    names = {line.split(":")[0] for line in change}
    lines = [line for line in text.splitlines() if line.split(":")[0] not in names]
    (work / "mistake.yaml").write_text("\n".join([*lines, *change]) + "\n")
    code, _, error = tfde(
        capsys, "train-matcher", "--run", work / "mistake.yaml", "--output", work / "mistake"
    )
    assert code in (1, 2)
    assert message in error
    assert "Traceback" not in error
    assert not (work / "mistake").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{num_codes: 4}", "`options` of siamese are fusion. Received: num_codes"),
        ("{dropout: 0.2}", "`options` of siamese are fusion. Received: dropout"),
    ],
)
def test_options_of_another_kind(work, capsys, options, message):
    path = recipe(work, "options", kind="siamese")
    path.write_text(path.read_text().replace("model:", f"model:\n  options: {options}", 1))
    code, _, error = tfde(capsys, "train-matcher", "--run", path, "--output", work / "options")
    assert (code, message in error) == (1, True)


def test_validation_that_could_not_be_measured_is_refused_before_training(work, capsys):
    folder = work / "alike"
    folder.mkdir()
    lines = [f"red\t{word}\t{number}" for number, word in enumerate(("one", "two", "three"))]
    (folder / "train.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(lines) + "\n")
    (folder / "dev.tsv").write_text("sentence1\tsentence2\tlabel\nred\tone\t2\nred\ttwo\t2\n")
    text = recipe(work, "alike", more="objective: regression").read_text()
    text = text.replace(f"{work}/pairs", str(folder)).replace(
        f"test: {{data: {folder}, split: test}}", ""
    )
    (work / "alike.yaml").write_text(text)
    code, _, error = tfde(
        capsys, "train-matcher", "--run", work / "alike.yaml", "--output", work / "alike_run"
    )
    assert code == 1
    assert "`validation` must have pairs with different labels" in error
    assert not (work / "alike_run").exists()


def test_labels_of_a_pair_file(work, capsys):
    path = work / "ranked.jsonl"
    path.write_text('{"query": "red", "positive": "apple", "negatives": ["cat", "dog"]}\n' * 8)
    text = recipe(work, "named", more="objective: binary").read_text()
    text = text.replace(f"test: {{data: {work}/pairs, split: test}}", f"test: {{data: {path}}}")
    (work / "named.yaml").write_text(text)
    arguments = ["train-matcher", "--run", work / "named.yaml", "--output", work / "named_run"]
    code, _, error = tfde(capsys, *arguments)
    assert code == 1
    assert "a pair file's labels are 0 and 1 (right), those of the training pairs no, yes" in error
    (work / "named.yaml").write_text(text + '\nlabels: ["no", "yes"]\n')
    assert tfde(capsys, *arguments)[0] == 0
    measured = json.loads((work / "named_run" / "measures.json").read_text())
    assert measured["labels"] == ["no", "yes"]


def test_pairs_of_one_label(work, capsys):
    folder = work / "one_label"
    folder.mkdir()
    (folder / "train.tsv").write_text("sentence1\tsentence2\tlabel\nred\tblue\tyes\n")
    text = recipe(work, "one").read_text().replace(f"{work}/pairs", str(folder))
    (work / "one.yaml").write_text(text)
    code, _, error = tfde(
        capsys, "train-matcher", "--run", work / "one.yaml", "--output", work / "one"
    )
    assert code == 1
    assert "pairs must have at least two labels. Received: 'yes' alone" in error
