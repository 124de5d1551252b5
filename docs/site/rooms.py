"""Writes the map of docs/architecture.md: the rooms of the package and what they import.

    python docs/site/rooms.py [--check]

A room is a folder under tfde/, or a module beside them. Their order is that of .importlinter; what
is said of each is the first line of its docstring. `--check` writes nothing, and fails where the
page says something else.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- map -->\n", "<!-- end -->"


def rooms_map(package: Path = ROOT / "tfde") -> str:
    """Returns the map as a Markdown table, the highest room first."""
    imports: dict[str, set[str]] = defaultdict(set)
    for file in sorted(package.rglob("*.py")):
        here = _room(file.relative_to(package).with_suffix("").parts)
        for name in _imported(file):
            there = _room(name.split(".")[1:]) if name.startswith("tfde.") else here
            if there != here:
                imports[here].add(there)
    order = _order()
    lines = ["| room | what is in it | imports |", "|---|---|---|"]
    for room in order:
        path = package / room
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        inner = [
            f"<br>`{part.parent.relative_to(package)}/`: {_summary(part)}"
            for part in sorted(path.glob("*/__init__.py"))
        ]
        name = f"`{room}/`" if path.is_dir() else f"`{room}.py`"
        below = ", ".join(sorted(imports[room], key=order.index)) or "nothing"
        lines.append(f"| {name} | {_summary(source)}{''.join(inner)} | {below} |")
    return "\n".join(lines) + "\n"


def page_with_map() -> str:
    """Returns the page with the map of today."""
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    return f"{before}{START}\n{rooms_map()}\n{END}{rest.partition(END)[2]}"


def _order() -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    layers = parser["importlinter:contract:layers"]["layers"]
    return [
        room.strip() for line in layers.splitlines() for room in line.split("|") if room.strip()
    ]


def _room(parts: list[str] | tuple[str, ...]) -> str:
    return parts[0] if parts else "__init__"


def _imported(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "tfde":
            names += [f"tfde.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


def _summary(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n")[0]


def main() -> int:
    """Writes the page, or looks whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it would")
    text = page_with_map()
    if not parser.parse_args().check:
        PAGE.write_text(text, "utf-8")
    elif text != PAGE.read_text("utf-8"):
        print(f"{PAGE}: the map is not today's; python docs/site/rooms.py writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
