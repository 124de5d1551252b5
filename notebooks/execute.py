"""Runs notebooks from the first cell to the last and keeps what they print and draw.

    python notebooks/execute.py notebooks/virt.ipynb       # or several; make notebooks runs all

Files that a notebook makes go to a temporary folder. TFDE_MINILM names the checkpoint that the
notebooks start from where it is set (README). Progress bars are stored as they stand at
their end, without the codes of a terminal.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_QUIET = "ignore:IProgress not found"  # tqdm would like ipywidgets


def execute(
    path: Path, folder: Path, *, parameters: str = "", at_end: str = "", timeout_s: int = 1800
) -> NotebookNode:
    """Returns a notebook with its outputs.

    Args:
        path: The notebook.
        folder: Where it runs, and leaves its files.
        parameters: Code that is run after the cell that is tagged `parameters`.
        at_end: Code that is run after the last cell.
        timeout_s: Seconds that a cell may take.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    if parameters:
        tagged = [
            place
            for place, cell in enumerate(notebook.cells)
            if "parameters" in cell.metadata.get("tags", [])
        ]
        notebook.cells.insert(tagged[0] + 1, new_code_cell(parameters, id="set-parameters"))
    if at_end:
        notebook.cells.append(new_code_cell(at_end, id="at-end"))
    # Shell lines find the commands of this environment.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    NotebookClient(
        notebook,
        timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute(env={**os.environ, "PATH": programs, "PYTHONWARNINGS": _QUIET})
    return notebook


def fold(notebook: NotebookNode, hidden: Mapping[str, str] = MappingProxyType({})) -> None:
    """Leaves of each cell what a reader saw at its end.

    Args:
        notebook: With its outputs; changed in place.
        hidden: Text -> what stands in its place, such as this machine's folders.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            cell.outputs = [_without(output, hidden) for output in _joined(cell.outputs)]


def _without(output: NotebookNode, hidden: Mapping[str, str]) -> NotebookNode:
    text = json.dumps(output)
    for found, instead in hidden.items():
        text = text.replace(json.dumps(found)[1:-1], instead)
    return nbformat.from_dict(json.loads(text))


def _joined(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Puts the parts of a stream together and drops what was drawn over."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            lines = _CODES.sub("", output.text).replace("\r\n", "\n").split("\n")
            # A bar draws itself anew after each carriage return.
            output.text = "\n".join(line.rpartition("\r")[2] for line in lines)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in parser.parse_args().notebooks:
        print(path, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
            hidden = {f"{folder}/": ""}
        if checkpoint := os.environ.get("TFDE_MINILM"):
            hidden |= {checkpoint: "$TFDE_MINILM", checkpoint.replace("_", r"\_"): "$TFDE_MINILM"}
        fold(notebook, hidden)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
