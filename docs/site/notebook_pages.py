"""Notebooks as Markdown, with what they print and draw."""

from __future__ import annotations

import base64
import json
from pathlib import Path


def write_page(notebook: Path, folder: Path) -> None:
    """Writes `folder/NAME.md`, and its pictures as `folder/NAME_N.png`.

    Args:
        notebook: The `.ipynb` file.
        folder: Where the page goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.strip():
            parts.append(f"````python\n{source.strip()}\n````")
            parts += [_output(output, notebook.stem, folder) for output in cell["outputs"]]
    text = "\n\n".join(part for part in parts if part)
    (folder / f"{notebook.stem}.md").write_text(f"{text}\n", encoding="utf-8")


def _output(output: dict, name: str, folder: Path) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}_{len(list(folder.glob(f'{name}_*.png')))}.png"
        (folder / file).write_bytes(base64.b64decode(data["image/png"]))
        return f"![what the cell above draws]({file})"
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"````text\n{text}\n````" if text else ""
