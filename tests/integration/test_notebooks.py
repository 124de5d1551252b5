"""Runs every notebook in a fresh kernel and folder on few data, and looks at what it made."""

import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

# What the cell tagged `parameters` is set to.
PARAMETERS = {
    "quickstart": "",
    "train_your_own": "checkpoint, rows = None, 400",
    "pretraining_without_labels": """
packages = {"numpy"}
pretrain_steps = finetune_steps = 4
labels = {"50 pairs": 50}
pretraining = ["none", "ict"]
""",
    "virt": "checkpoint, packages, questions, epochs = None, {'numpy'}, 56, 1",
    "study_of_sharing": """
checkpoint, packages, steps, points = None, {"numpy"}, 10, 30
variants = ["ade", "sde"]
""",
    "serving_and_live_index": "checkpoint, packages, requests = None, {'numpy'}, 30",
}

# Run after a notebook's own cells; prints one JSON object of what is to be checked.
FACTS = {
    "quickstart": """
import json
best = (-model.encode_queries(questions) @ embeddings.T).argsort(1)[:, :3]
print(json.dumps({
    "pages": counts.documents,
    "tokens": tokenizer.vocabulary_size,
    "losses": history.history["loss"],
    "shape": embeddings.shape,
    "queries": len(queries),
    "documents": len(documents),
    "measured": measured,
    "differences": differences,
    "served": [[hit.doc_id for hit in hits] for hits in answers],
    "direct": [[documents[row].doc_id for row in rows] for rows in best],
    "texts": [[hit.title, hit.text] for hits in answers for hit in hits],
    "known": [[d.title, d.text] for d in documents],
    "returncode": server.returncode,
}))
""",
    "train_your_own": """
import json
print(json.dumps({
    "documents": len(documents),
    "train": len(qrels),
    "measured": measured,
    "report": report,
    "found": list(found[0]),
    "known": list(documents),
    "card": card,
}))
""",
    "pretraining_without_labels": """
import csv
import json
import gzip
held = gzip.open(work / "pages.jsonl.gz", "rt").read()
print(json.dumps({
    "queries": len(list(dataset.queries("test"))),
    "rows": list(csv.DictReader((work / "table.csv").open())),
    "records": [json.loads(line) for line in (work / "study" / "results.jsonl").open()],
    "held": sum(
        json.dumps(query.text, ensure_ascii=False)[1:-1] in held
        for query in dataset.queries("test")
    ),
}))
""",
    "virt": """
import json
print(json.dumps({
    "measures": {name: json.loads((work / name / "measures.json").read_text()) for name in recipes},
    "virt_losses": [value for _, value in distances],
    "apart": apart.tolist(),
    "together": together.tolist(),
}))
""",
    "study_of_sharing": """
import csv
import json
print(json.dumps({
    "rows": list(csv.DictReader((work / "table.csv").open())),
    "parameters": {r["axes"]["sharing"]: r["parameters"] for r in results},
}))
""",
    "serving_and_live_index": """
import json
print(json.dumps({
    "ranks": [before, after, gone],
    "added": added,
    "later": len(later),
    "shape": embedded.shape,
    "difference": float(abs(embedded - model.encode_queries(questions[:2])).max()),
    "taken": taken,
    "returncode": server.returncode,
}))
""",
}


def test_there_are_notebooks_and_each_is_checked():
    assert {path.stem for path in NOTEBOOKS} == set(FACTS) == set(PARAMETERS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_holds_the_outputs_of_a_whole_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert path.stem == "quickstart" or "image/png" in kinds
    # A notebook shows nobody's folders.
    assert not re.search(r"/(tmp|home|root|work)/", json.dumps(outputs))
    sources = [line for cell in code for line in cell.source.splitlines()]
    assert "# %pip install" in code[0].source
    assert next(line for line in sources if not line.startswith("#")) == "import tfde"


def marked(path):
    """One is run by `make test`, all of them by `make test-notebooks`."""
    others = [] if path.stem == "train_your_own" else [pytest.mark.notebook]
    return pytest.param(path, marks=others, id=path.stem)


@pytest.fixture(scope="module", params=[marked(path) for path in NOTEBOOKS])
def executed(request, tmp_path_factory):
    """A notebook's name, its executed cells by id, and the facts."""
    name = request.param.stem
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    notebook = runner.execute(
        request.param,
        tmp_path_factory.mktemp(name),
        parameters=PARAMETERS[name],
        at_end=FACTS[name],
        timeout_s=900,
    )
    runner.fold(notebook)
    cells = {cell.id: cell for cell in notebook.cells}
    return name, cells, json.loads(printed(cells["at-end"]))


def printed(cell):
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def pictures(cells):
    outputs = [output for cell in cells.values() for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_every_notebook_runs(executed):
    name, cells, facts = executed
    CHECKS[name](cells, facts)


def check_quickstart(cells, facts):
    assert facts["pages"] > 1000
    assert facts["tokens"] == 4000
    assert facts["shape"] == [facts["documents"], 128]
    assert facts["queries"] == 200
    # Chance would be a reciprocal rank of about ln(N) / N, 0.004 for 2,000 documents.
    assert 0.05 < facts["measured"]["tfde ade_spl"]["RR"] <= 1
    assert 0.3 < facts["measured"]["BM25"]["RR"] <= 1
    assert facts["differences"] == []
    assert facts["served"] == facts["direct"]
    assert all(passage in facts["known"] for passage in facts["texts"])
    assert facts["returncode"] == 0
    table = printed(cells["build-towers"])
    for part, how in (
        ("token_embedder", "separate"),
        ("encoder", "separate"),
        ("projection", "shared"),
    ):
        assert any(part in line and how in line for line in table.splitlines())
    answers = printed(cells["ask-server"])
    assert answers.count("\n  1  ") == 2
    assert answers.count("\n  3  ") == 2


def check_train_your_own(cells, facts):
    assert 100 < facts["train"] < facts["documents"]
    # The start, validations (how many depends on how many pairs the packages here give), and
    # at the last step the model itself and its two means with the start.
    steps = [step for step, _ in facts["measured"]]
    assert steps.count(0) == 1
    assert steps == sorted(steps)
    assert steps.count(steps[-1]) == 3
    assert "## Measures" in facts["report"]
    assert "| BM25 " in facts["report"]
    assert len(facts["found"]) == 3
    assert set(facts["found"]) <= set(facts["known"])
    assert "finetune" in facts["card"]
    assert pictures(cells) == 2


def check_pretraining(cells, facts):
    assert [record["axes"]["pretraining"] for record in facts["records"]] == ["none", "ict"]
    assert [set(record["steps"]) for record in facts["records"]] == [
        {"finetune"},
        {"pretrain", "finetune"},
    ]
    compared = {row["pretraining"]: row["against"] for row in facts["rows"]}
    assert compared == {"none": "", "ict": "none"}
    # What is pre-trained on holds none of the questions that are asked.
    assert facts["queries"] == 150
    assert facts["held"] == 0
    assert pictures(cells) == 1
    assert "query     " in printed(cells["look-at-pairs"])


def check_virt(cells, facts):
    assert set(facts["measures"]) == {"teacher", "student", "student_with_virt"}
    assert all(0.0 < value["AUC"] < 1.0 for value in facts["measures"].values())
    assert facts["virt_losses"]
    assert min(facts["virt_losses"]) > 0
    assert facts["apart"] == pytest.approx(facts["together"], abs=1e-4)
    assert pictures(cells) == 2


def check_study_of_sharing(cells, facts):
    compared = {(row["sharing"], row["measure"]): row["against"] for row in facts["rows"]}
    assert set(compared) == {(s, m) for s in ("ade", "sde") for m in ("P@1", "RR")}
    assert compared["sde", "RR"] == "ade"
    assert facts["parameters"]["ade"] == 2 * facts["parameters"]["sde"]
    assert pictures(cells) == 2
    assert "separability" in printed(cells["spaces"])


def check_serving(cells, facts):
    assert facts["ranks"] == [None, 1, None]
    assert facts["added"]["sequence"] > 0
    assert facts["shape"] == [2, 128]
    assert facts["difference"] < 1e-5
    assert len(facts["taken"]) == 30
    assert facts["returncode"] == 0
    assert pictures(cells) == 1


CHECKS = {
    "quickstart": check_quickstart,
    "train_your_own": check_train_your_own,
    "pretraining_without_labels": check_pretraining,
    "virt": check_virt,
    "study_of_sharing": check_study_of_sharing,
    "serving_and_live_index": check_serving,
}
