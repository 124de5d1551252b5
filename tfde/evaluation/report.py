"""One table of several systems, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from tfde.text.cut_texts import CutTexts


class Row(NamedTuple):
    """A system, its measures, the seconds it took (`None`: results were given), texts it cut."""

    name: str
    measures: dict[str, float]
    seconds: float | None
    cut: Sequence[CutTexts] = ()


def format_table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table with aligned columns, one row a system."""
    names = list(rows[0].measures)
    lines = [["system", *names, "seconds"]]
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.1f}"
        lines.append([row.name, *(f"{row.measures[name]:.4f}" for name in names), seconds])
    return align_table(lines, text_columns=1)


def align_table(lines: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """Returns a Markdown table whose columns are aligned: texts to the left, numbers to the right.

    Args:
        lines: The cells, the header first.
        text_columns: How many columns hold texts; they come first.
    """
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = [
        "| "
        + " | ".join(
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    ]
    rule = [
        "-" * (width + 2) if column < text_columns else "-" * (width + 1) + ":"
        for column, width in enumerate(widths)
    ]
    return "\n".join([rows[0], "|" + "|".join(rule) + "|", *rows[1:]])


def format_json(rows: Sequence[Row], **about: object) -> str:
    """Returns a JSON object: `about`, then `rows` with what `Row` has, measures unrounded."""
    found = [{**row._asdict(), "cut": [asdict(part) for part in row.cut]} for row in rows]
    return json.dumps({**about, "rows": found}, indent=2)
