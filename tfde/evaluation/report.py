"""One table of several systems, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A system, its measures and the seconds it took (`None`: results were given)."""

    name: str
    measures: dict[str, float]
    seconds: float | None


def format_table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table with aligned columns, one row a system."""
    names = list(rows[0].measures)
    cells = [["system", *names, "seconds"]]
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.1f}"
        cells.append([row.name, *(f"{row.measures[name]:.4f}" for name in names), seconds])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in cells
    ]
    rule = [
        "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":"
        for column, width in enumerate(widths)
    ]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def format_json(rows: Sequence[Row], **about: object) -> str:
    """Returns a JSON object: `about`, then `rows` with name, measures (unrounded) and seconds."""
    return json.dumps({**about, "rows": [row._asdict() for row in rows]}, indent=2)
