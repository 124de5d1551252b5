"""Runs every notebook in a fresh kernel and folder, and looks at what it made."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

# Run after a notebook's own cells; prints one JSON object of what is to be checked.
FACTS = {
    "quickstart": """
import json
best = (-model.encode_queries(questions) @ embeddings.T).argsort(1)[:, :3]
print(json.dumps({
    "pages": counts.pages,
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
"""
}


def test_there_are_notebooks_and_each_is_checked():
    assert {path.stem for path in NOTEBOOKS} == set(FACTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    for cell in notebook.cells:
        assert cell.id
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    lines = [line for source in code for line in source.splitlines() if not line.startswith("#")]
    assert lines[0] == "import tfde"
    assert "# %pip install" in code[0]


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request, tmp_path_factory):
    """A notebook's name, its executed cells by id, and the facts."""
    path = request.param
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(FACTS[path.stem], id="facts"))
    folder = tmp_path_factory.mktemp(path.stem)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    cells = {cell.id: cell for cell in notebook.cells}
    return path.stem, cells, json.loads(printed(cells["facts"]))


def printed(cell):
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def test_every_notebook_runs(executed):
    name, cells, facts = executed
    if name == "quickstart":
        check_quickstart(cells, facts)


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
