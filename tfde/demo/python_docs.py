"""The demo's corpus: the documentation of the Python packages that are installed here.

Sources are found and parsed; nothing of them is imported or run.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from tqdm import tqdm

from tfde.data.pages import Page, Section
from tfde.errors import ConfigError

_log = logging.getLogger(__name__)
# What a stranger knows beside the standard library. Each thousand pages more costs the demo about
# fifteen seconds of encoding, by the start and by the trained model.
PACKAGES = ("numpy", "keras")
# Tests, copies of other packages, tables of characters, what programs wrote, and what newer
# versions or many machines do not have.
_SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__", "_api", "_bundled", "_pyrepl", "_vendor", "_vendored", "api", "distutils",
        "encodings", "ensurepip",
        "externals", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests",
        "third_party", "tkinter", "turtledemo", "vendor",
    }
)  # fmt: skip
_SKIPPED_FILES = re.compile(r"test_.*|.*_test|gen_.*|.*_pb2(_grpc)?|setup|conftest|__main__|this")
# Folders that are a package's inside, though their names do not begin with an underscore.
_INSIDE = frozenset({"src", "python"})
_EXPORT = re.compile(r"(?:\w+_)?export")
_NAME = re.compile(r"`~?([A-Za-z_][\w.]*)(?:\(\))?`|\b([A-Za-z_]\w*(?:\.\w+)+)\b")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Google's style (and Keras'): a line of its own that ends in a colon, then indented text; of one
# word ("Example:") also before code that is not indented.
_GOOGLE = re.compile(r"([A-Z][A-Za-z]+(?: [A-Za-z]+){0,2}):{1,2}\s*$")
_INDENTED = re.compile(r"\s+\S")
_CODE_OR_BLANK = re.compile(r"\s*$|```|~~~|>>>")
_UNDERLINE = re.compile(r"\s*([-=~^])\1{2,}\s*$")
_FENCE = re.compile(r"\s*(```|~~~)")
_DIRECTIVE = re.compile(r"\s*\.\. [\w-]+::")


class _Source(NamedTuple):
    module: str
    path: Path
    package: str  # where relative imports start: the module itself if it is a package


def python_pages(packages: Sequence[str] = ()) -> list[Page]:
    """Returns a page for each public module, class, function and method with a docstring.

    A class without one that its module's `__all__` lists has a page too, with its signature and
    the module's first line: `csv.DictReader` is one. The packages are the standard library and
    those of `PACKAGES` that are installed. A page's id and title are its public qualified name:
    the one an export decorator gives, or its module's and its own, where a name defined in a
    private module counts if a package around imports it. Links are the names in the docstring
    that are pages. Of equal docstrings the first is kept.

    Args:
        packages: Names of further installed packages.

    Raises:
        ConfigError: a further package is not installed or has no Python sources.
    """
    sources = list(_standard_library())
    for name in dict.fromkeys((*PACKAGES, *packages)):
        found = list(_package(name))
        if not found and name in packages:
            raise ConfigError(
                "`packages` must name installed top-level packages with Python sources."
                f" Received: {name!r}"
            )
        sources += found
    docstrings: dict[str, str] = {}
    known: set[str] = set()
    imported: dict[str, set[str]] = {}
    for source in tqdm(sources, desc="reading docstrings", unit=" files", disable=None):
        for name, written in _documented(source, imported):
            # A string literal may hold half a surrogate pair, which no file can.
            docstring = written.encode(errors="replace").decode()
            if docstring not in known and name not in docstrings:
                known.add(docstring)
                docstrings[name] = docstring
    pages = []
    for name, docstring in docstrings.items():
        sections = docstring_sections(docstring)
        if sections:
            pages.append(Page(name, name, sections, _links(name, docstring, docstrings)))
    return pages


def _standard_library() -> Iterator[_Source]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.iterdir()):
        if path.suffix == ".py" and not path.stem.startswith("_"):
            if not _SKIPPED_FILES.fullmatch(path.stem):
                yield _Source(path.stem, path, "")
        elif (path / "__init__.py").is_file() and not path.name.startswith("_"):
            yield from _walk(path, path.name)


def _package(name: str) -> Iterator[_Source]:
    # Of a name without a dot, find_spec imports nothing.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        yield from _walk(Path(folder), name)
    if not spec.submodule_search_locations and spec.origin and spec.origin.endswith(".py"):
        yield _Source(name, Path(spec.origin), "")


def _walk(folder: Path, module: str) -> Iterator[_Source]:
    """Yields the sources below a package's folder, its `__init__` first."""
    if folder.name in _SKIPPED_FOLDERS:
        return
    entries = sorted(folder.iterdir(), key=lambda path: (path.name != "__init__.py", path.name))
    for path in entries:
        if path.name == "__init__.py":
            yield _Source(module, path, module)
        elif path.suffix == ".py" and path.stem.isidentifier():
            if not _SKIPPED_FILES.fullmatch(path.stem):
                yield _Source(f"{module}.{path.stem}", path, module)
        elif path.is_dir() and path.name.isidentifier():
            yield from _walk(path, f"{module}.{path.name}")


def _documented(source: _Source, imported: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yields public name and docstring of what a file defines.

    Args:
        source: The file.
        imported: For each package read so far, the names that its `__init__` imports, and
            `MODULE.*` for each module that it imports whole; this file's are added.
    """
    content = source.path.read_bytes()
    around = _public_packages(source.module)
    if around and _INSIDE & set(source.module.split(".")) and b"export(" not in content:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError) as error:
        _log.debug("skipped %s: %s", source.path, error)
        return
    if source.path.name == "__init__.py":
        imported[source.module] = set(_imports(tree, source.package))
    about = ast.get_docstring(tree) or ""
    if around is None and about:
        yield source.module, about
    listed = _listed(tree)
    for node in _definitions(tree.body):
        name = _exported_as(node)
        if name is None and not node.name.startswith("_"):
            wanted = {node.name, f"{source.module}.*"}
            places = [source.module] if around is None else around
            name = next(
                (
                    f"{place}.{node.name}"
                    for place in places
                    if around is None or wanted & imported.get(place, set())
                ),
                None,
            )
        if name is not None:
            if isinstance(node, ast.ClassDef) and node.name in listed and around is None:
                yield from _signature(node, name, about)
            yield from _docstrings(node, name)


def _docstrings(node: _Definition, name: str) -> Iterator[tuple[str, str]]:
    if docstring := ast.get_docstring(node):
        yield name, docstring
    if isinstance(node, ast.ClassDef):
        for member in _definitions(node.body):
            if not member.name.startswith("_"):
                yield from _docstrings(member, f"{name}.{member.name}")


def _signature(node: ast.ClassDef, name: str, about: str) -> Iterator[tuple[str, str]]:
    """Yields what is known of a class without a docstring: its signature and its module."""
    if ast.get_docstring(node) is None:
        made = next((member for member in node.body if _is_init(member)), None)
        arguments = ast.unparse(made.args).removeprefix("self").lstrip(", ") if made else ""
        methods = [m.name for m in _definitions(node.body) if not m.name.startswith("_")]
        text = f"Signature:\n    {name}({arguments})\n"
        if methods:
            text += f"\nMethods:\n    {', '.join(dict.fromkeys(methods))}\n"
        if about:
            text += f"\nModule:\n    {about.splitlines()[0]}\n"
        yield name, text


def _is_init(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _listed(tree: ast.Module) -> set[str]:
    """Returns the names in `__all__ = [...]`."""
    return {
        entry.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple)
        if any(isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets)
        for entry in node.value.elts
        if isinstance(entry, ast.Constant) and isinstance(entry.value, str)
    }


def _definitions(body: Sequence[ast.stmt]) -> Iterator[_Definition]:
    """Yields classes and functions, those inside `if` and `try` too."""
    for node in body:
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, ast.If):
            yield from _definitions([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _definitions(node.body)


def _public_packages(module: str) -> list[str] | None:
    """Returns the public packages around a private module, outermost first; `None` if public."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if part.startswith("_") or (place and part in _INSIDE):
            return [".".join(parts[:length]) for length in range(1, place + 1)]
    return None


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")
            base = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.*" if alias.name == "*" else (alias.asname or alias.name)


def _exported_as(node: _Definition) -> str | None:
    """Returns the name in `@keras_export("keras.NAME")`, `@tf_export("NAME")` and their like."""
    for decorator in node.decorator_list:
        if not isinstance(decorator, ast.Call) or not decorator.args:
            continue
        function = decorator.func
        called = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        value = decorator.args[0]
        if isinstance(value, ast.List | ast.Tuple) and value.elts:
            value = value.elts[0]
        if (
            _EXPORT.fullmatch(called)
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
            and not any(part.startswith("_") for part in value.value.split("."))
        ):
            return f"tf.{value.value}" if called == "tf_export" else value.value
    return None


def _links(name: str, docstring: str, names: dict[str, str]) -> tuple[str, ...]:
    """Returns the pages that a docstring refers to, by full name or as seen from `name`."""
    parts = name.split(".")
    scopes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    links: dict[str, None] = {}
    for match in _NAME.finditer(docstring):
        reference = (match[1] or match[2]).rstrip(".")
        candidates = [reference, *(f"{scope}.{reference}" for scope in scopes)]
        target = next((candidate for candidate in candidates if candidate in names), None)
        if target is not None and target != name:
            links[target] = None
    return tuple(links)


def docstring_sections(docstring: str) -> tuple[Section, ...]:
    """Returns the sections of a docstring without indentation (`inspect.cleandoc`).

    Passages are its paragraphs and list entries with white space run together; doctests, fenced
    code and directives are left out.
    """
    sections: list[tuple[str, list[str]]] = [("", [])]
    paragraph: list[str] = []

    def close() -> None:
        text = " ".join(" ".join(paragraph).split())
        paragraph.clear()
        if text:
            sections[-1][1].append(text)

    lines = docstring.splitlines()
    fenced = doctest = False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if _FENCE.match(line):
            close()
            fenced = not fenced
        elif fenced:
            continue
        elif not line.strip():
            close()
            doctest = False
        elif line.lstrip().startswith(">>>"):
            close()
            doctest = True
        elif doctest or _UNDERLINE.match(line) or _DIRECTIVE.match(line):
            continue
        elif _UNDERLINE.match(following):
            close()
            sections.append((" ".join(line.split()), []))
        elif (heading := _GOOGLE.match(line)) and (
            _INDENTED.match(following)
            or (" " not in heading[1] and _CODE_OR_BLANK.match(following))
        ):
            close()
            sections.append((heading[1], []))
        else:
            if paragraph and _begins_entry(line):
                close()
            paragraph.append(line)
    close()
    return tuple(Section(heading, tuple(passages)) for heading, passages in sections if passages)


def _begins_entry(line: str) -> bool:
    """Whether a line begins an entry of a list or a parameter (`name: text`, `name : type`)."""
    return bool(re.match(r"\s*(?:[-*+] |\d+[.)] |`?\*{0,2}\w+`? ?(?:\([^)]*\))?:\s)", line))
