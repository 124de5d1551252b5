"""The documents: nothing left to fill in, no link into the void."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "serving/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_no_placeholder_is_left(path):
    assert re.findall(r"@[A-Z0-9]+@", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_relative_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    assert [file for file in files if not (path.parent / file).exists()] == []
