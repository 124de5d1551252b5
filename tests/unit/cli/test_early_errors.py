"""What is wrong with a command line is told before TensorFlow, which takes long to import."""

import json
import subprocess
import sys

# Runs commands, each a list of arguments, where TensorFlow cannot be imported.
RUN = """
import contextlib, io, json, sys

class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name in ("tensorflow", "keras"):
            raise RuntimeError("TensorFlow was wanted")

sys.meta_path.insert(0, NoTensorFlow())
from tfde.cli.main import main

answers = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        answers.append((main(arguments), said.getvalue()))
print(json.dumps(answers))
"""
MODEL = "The checkpoint must be a directory"
RECIPE = """
model: {backbone: "BACKBONE"}
stages: {only: {steps: 1, data: DATA, validation: {dataset: data}}}
"""
MATCHER = """
model: {kind: siamese, backbone: "BACKBONE"}
data: {data: DATA}
"""
STUDY = """
base:
  model: {backbone: "BACKBONE"}
  stages: {only: {steps: 1, data: DATA}}
  evaluate: {dataset: data, measures: [RR]}
axes: {a: {b: {}}}
"""


def test_errors_that_need_no_tensorflow(tmp_path):
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"_id": "d", "text": "a text"}\n')
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "a question"}\n')
    for split in ("train", "test"):
        (data / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    (tmp_path / "run.trec").write_text("q Q0 d 1 1.0 x\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years of work")

    def written(name, text, **values):
        for place, value in {"BACKBONE": "t5_1.1_base", "DATA": "data", **values}.items():
            text = text.replace(place, value)
        (tmp_path / name).write_text(text)
        return name

    unset, missing = {"BACKBONE": "${TFDE_UNSET}"}, {"BACKBONE": "models/none"}
    no_data = {"DATA": "data/none"}
    out = ("--output", "o")
    cases = [
        (["train", "--run", written("1.yaml", RECIPE, **unset)], "TFDE_UNSET is not set"),
        (["train", "--run", written("2.yaml", RECIPE, **missing)], f"model.backbone: {MODEL}"),
        (["train", "--run", written("3.yaml", RECIPE, **no_data)], "data/none does not exist"),
        (["train-matcher", "--run", written("4.yaml", MATCHER, **unset)], "TFDE_UNSET is not set"),
        (["train-matcher", "--run", written("5.yaml", MATCHER, **missing)], MODEL),
        (["train-matcher", "--run", written("6.yaml", MATCHER, **no_data)], "must stand here"),
        (["study", "--run", written("7.yaml", STUDY, **unset)], "TFDE_UNSET is not set"),
        (["study", "--run", written("8.yaml", STUDY, **missing)], MODEL),
        (["study", "--run", written("9.yaml", STUDY, **no_data)], "data/none does not exist"),
        (["encode", "--model", "models/none", "--dataset", "data"], MODEL),
        (["encode", "--model", "run.trec", "--dataset", "data"], MODEL),
        (["average", "--model", "models/none", "--model", "data"], MODEL),
        (["export", "--model", "models/none"], MODEL),
        (["export", "--model", "t5_1.1_base", "--embeddings", "none"], "no embeddings.json there"),
        (["export", "--model", "data"], "must be a model's directory, which holds config.json"),
        (["cluster-queries", "--model", "models/none", "--data", "data", "--clusters", "2"], MODEL),
        (["mine-negatives", "--model", "models/none", "--dataset", "data"], MODEL),
        (["generate-queries", "--model", "models/none", "--dataset", "data"], MODEL),
        (["build-index", "--embeddings", "none"], "no embeddings.json there"),
        (["rerank", "--model", "a/b", "--dataset", "data", "--run_file", "run.trec"], MODEL),
        (["demo", "--backbone", "models/none"], MODEL),
    ]
    cases = [([*arguments, *out], message) for arguments, message in cases]
    tsne = ["probe", "tsne", "--model", "a/b", "--dataset", "data", "--output", "p.png"]
    cases += [
        (tsne, MODEL),
        (["evaluate", "--model", "small=models/none", "--dataset", "data"], MODEL),
        (["index", "add", "none", "--model", "models/none", "--input", "none"], MODEL),
        (["verify", "none"], "no manifest.json there"),
        (["serve", "none"], "no models.config there"),
        (["demo", "--output", "foreign"], "is not empty and holds no demo"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([arguments for arguments, _ in cases])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for (arguments, message), (code, said) in zip(cases, json.loads(done.stdout), strict=True):
        assert message in said, arguments
        assert (code, said.count("\n")) == (1, 1), said
