"""Builds the documentation site into build/site.

    python docs/site/build.py [--pages_only]

The pages keep their places in the repository (`docs/serving.md`, `serving/README.md`), so that a
link that works on a code host works on the site. What a page links to and is no page itself (a
recipe, a CSV file) is copied beside it; a linked folder becomes a page that lists its files.
Notebooks and the reference are made here. A warning of the builder is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebook_pages
import reference

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
SETTINGS = Path(__file__).parent / "zensical.toml"
STYLE = Path(__file__).parent / "site.css"
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def write_pages(output: Path) -> None:
    """Writes all pages of the site as Markdown.

    Args:
        output: An empty folder, or one that is not there.
    """
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook_pages.write_page(notebook, output / "notebooks")
    for name, text in reference.pages().items():
        _write(output / "docs" / "reference" / name, text)
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "serving" / "README.md"]
    for source in sorted(sources):
        target = output / source.relative_to(ROOT)
        if source == ROOT / "README.md":
            target = output / "index.md"
        _write(target, source.read_text(encoding="utf-8"))
    overview = output / "docs" / "reference.md"
    overview.write_text(f"{overview.read_text('utf-8')}\n{reference.tables()}\n", "utf-8")
    for page in sorted(output.rglob("*.md")):
        _write(page, _with_links(page, output))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _with_links(page: Path, output: Path) -> str:
    """Returns a page whose links lead to what is on the site, which is copied where it is not."""

    def linked(match: re.Match) -> str:
        before, target, after = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        if target.endswith(".ipynb"):
            return f"{before}{target.removesuffix('.ipynb')}.md{after}"
        place = (page.parent / target).resolve().relative_to(output.resolve())
        if place == Path("README.md"):
            return f"{before}{target.removesuffix('README.md')}index.md{after}"
        source = ROOT / place
        if source.is_dir():
            _list_folder(source, output / place)
            return f"{before}{target.rstrip('/')}/index.md{after}"
        if source.is_file() and not (output / place).exists():
            (output / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, output / place)
        return match[0]

    parts = _CODE.split(_apart(page.read_text(encoding="utf-8")))
    return "".join(
        part if number % 2 else _LINK.sub(linked, part) for number, part in enumerate(parts)
    )


def _apart(text: str) -> str:
    """Returns Markdown with an empty line before lists and tables, and after tables.

    A code host needs none, Python's Markdown does.
    """
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        if not fenced and before.strip() and not before.startswith("#"):
            begins = _ITEM.match(line) and not (_ITEM.match(before) or before.startswith(" "))
            if begins or line.startswith("|") != before.startswith("|"):
                lines.append("")
        lines.append(line)
        fenced ^= line.lstrip().startswith("```")
    return "\n".join(lines) + "\n"


def _list_folder(source: Path, target: Path) -> None:
    lines = [f"# {source.relative_to(ROOT)}", ""]
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source)
        if not file.is_file() or "__pycache__" in relative.parts or relative.name == "index.md":
            continue
        if file.suffix != ".md":
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)
        lines.append(f"- [{relative}]({relative.as_posix()})")
    _write(target / "index.md", "\n".join(lines) + "\n")


def _with_folders(settings: str) -> str:
    """Returns settings in which `FILES folder` is its pages that stand nowhere else."""

    def listed(match: re.Match) -> str:
        files = sorted((PAGES / match[2]).glob("*.md"))
        names = [str(file.relative_to(PAGES)) for file in files if file.name != "index.md"]
        new = [f'"{name}"' for name in names if f'"{name}"' not in settings]
        return f"{{{match[1]} = [{', '.join(new)}]}}," if new else ""

    return re.sub(r'\{("[^"]+") = "FILES ([^"]+)"\},', listed, settings)


def main() -> None:
    """Builds what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages_only", action="store_true", help="write build/pages and stop")
    arguments = parser.parse_args()
    for folder in (PAGES, BUILD / "site"):
        shutil.rmtree(folder, ignore_errors=True)
    write_pages(PAGES)
    if arguments.pages_only:
        return
    settings = _with_folders(SETTINGS.read_text("utf-8"))
    _write(PAGES / "docs" / "site.css", STYLE.read_text("utf-8"))
    _write(BUILD / "zensical.toml", settings)  # its paths are relative to itself
    done = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"],
        cwd=BUILD,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    # What mkdocstrings warns of does not count as strict there.
    if done.returncode or re.search(r"WARNING|ERROR|^griffe:", done.stdout, re.MULTILINE):
        sys.exit(done.stdout)
    print(f"{BUILD / 'site' / 'index.html'}: open it, or serve it with"
          f" `python -m http.server --directory {BUILD / 'site'}`")  # fmt: skip


if __name__ == "__main__":
    main()
