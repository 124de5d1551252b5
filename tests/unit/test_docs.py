"""The documents: links lead somewhere, commands and names exist, the reference is whole."""

import ast
import dataclasses
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import tfde
from tfde.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "serving/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
FENCE = re.compile(r"^( *)(`{3,})(\w*)\n(.*?)^\1\2", re.MULTILINE | re.DOTALL)
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        yield importlib.import_module("reference")
    finally:
        sys.path.pop(0)


def text_of(path):
    return path.read_text(encoding="utf-8")


def blocks(path, *languages):
    """The code blocks of a document, without the indentation they have in lists."""
    for indent, _, language, code in FENCE.findall(text_of(path)):
        if language in languages:
            yield re.sub(f"^{indent}", "", code, flags=re.MULTILINE)


def anchors(path):
    """What code hosts make of a document's headings."""
    prose = FENCE.sub("", text_of(path))
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings}


@every_document
def test_no_placeholder_is_left(path):
    assert re.findall(r"@[A-Z0-9]+@", text_of(path)) == []


@every_document
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text_of(path)))
    wrong = []
    for target in targets:
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        place = path.parent / file if file else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            wrong.append(target)
    assert wrong == []


def parser_of(command):
    if command == "tfde-model-server":
        return importlib.import_module("tfde.cli.model_server").build_parser()
    return importlib.import_module(f"tfde.cli.{command.replace('-', '_')}").build_parser()


def options_of(command):
    """All options of a command and of its actions."""
    parsers = [parser_of(command)]
    options = set()
    for parser in parsers:
        for action in parser._actions:
            options |= set(action.option_strings)
            if type(action).__name__ == "ActionSubCommands":
                parsers += action.choices.values()
        parsers += [make() for make in getattr(parser, "alternatives", {}).values()]
    return options


def fields():
    from tfde.config import matching, model, study, training
    from tfde.plain_errors import field_names

    return {"sizes", *field_names(model, training, matching, study)}


def engine_options():
    from tfde.retrieval.index import ENGINES, index_class

    classes = [index_class(kind).parameters_class for kind in ENGINES]
    return {field.name for one in classes if one for field in dataclasses.fields(one)}


def wrong_words(line):
    """What a shell line says to our commands that they do not know."""
    line = re.sub(r"\$\(([^()]*)\)", r" ; \1 ; ", line)
    # A comment begins after white space; an apostrophe in it would open a string.
    lexer = shlex.shlex(re.sub(r"(^|\s)#.*", r"\1", line), posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    wrong, command = [], None
    words = list(lexer)
    for number, word in enumerate(words):
        if re.fullmatch(r"[;|&()<>]+", word):
            command = None
        elif word == "tfde-model-server" and command is None:
            command = word
        elif word == "tfde" and command is None and number + 1 < len(words):
            command = words[number + 1]
            if command not in COMMANDS:
                wrong += [command] if command not in ("COMMAND", "--help", "--version") else []
                command = None
        elif command and word.startswith("-") and not re.fullmatch(r"-?[\d.]+|-|--", word):
            option = word.partition("=")[0]
            known = options_of(command)
            if option.startswith("--run.") and "--run" in known:
                wrong += [f"{command} {option}"] if option.split(".")[-1] not in fields() else []
            elif option.startswith("--options.") and "--options" in known:
                wrong += (
                    [] if option.split(".")[-1] in engine_options() else [f"{command} {option}"]
                )
            elif option not in known | {"--help"}:
                wrong.append(f"{command} {option}")
    return wrong


def test_wrong_words_are_found():
    assert wrong_words("X=1 tfde train --run r.yaml --run.sed 1; tfde evaluate --bm26 -k 3") == [
        "train --run.sed",
        "evaluate --bm26",
    ]
    assert wrong_words("tfde build-index --options.factory x --options.speed 3") == [
        "build-index --options.speed"
    ]
    assert wrong_words("tfde evalute --bm25 # tfde evaluate --bm26") == ["evalute"]


@every_document
def test_commands_and_options_exist(path):
    wrong = []
    for code in blocks(path, "", "bash", "shell", "sh", "console"):
        for line in code.replace("\\\n", " ").splitlines():
            if re.search(r"\btfde\b", line):
                wrong += wrong_words(line)
    prose = FENCE.sub("", text_of(path))
    for code in re.findall(r"`((?:\w+=\S+ )*tfde(?:-model-server)? [^`]*)`", prose):
        wrong += wrong_words(code.replace("\n", " "))
    assert wrong == []


@every_document
def test_python_compiles_and_its_names_exist(path):
    for code in blocks(path, "python"):
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if node.value.id == "tfde":
                assert node.attr in tfde.__all__
    prose = FENCE.sub("", text_of(path))
    for name in re.findall(r"\btfde\.([A-Za-z_]\w*)(?=[(`])", prose):
        assert name in tfde.__all__ or importlib.util.find_spec(f"tfde.{name}")


@every_document
def test_keywords_of_python_calls_exist(path):
    """`tfde.NAME(...)` and `tfde.NAME.method(...)` take the keywords that documents give them."""
    import inspect

    for code in blocks(path, "python"):
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            if not re.fullmatch(r"tfde(\.\w+)+", ast.unparse(call.func)):
                continue
            chain = ast.unparse(call.func).split(".")
            value = tfde
            for name in chain[1:]:
                value = getattr(value, name)
            parameters = inspect.signature(value).parameters
            if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
                continue
            assert {word.arg for word in call.keywords} <= set(parameters), ast.unparse(call)


def test_every_public_name_stands_in_one_group_of_the_reference(reference):
    listed = [name for _, _, names in reference.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(tfde.__all__) - {"__version__"})
    pages = reference.pages()
    for group, (_, _, names) in reference.GROUPS.items():
        for name in names:
            assert f"## tfde.{name} {{ #tfde.{name} }}" in pages[f"{group}.md"]
            assert f"::: {reference.where(name)}\n" in pages[f"{group}.md"]
            module, _, attribute = reference.where(name).rpartition(".")
            assert getattr(importlib.import_module(module), attribute) is getattr(tfde, name)
            assert reference.first_line(name).endswith((".", ":", "`"))


@pytest.mark.parametrize("command", [*COMMANDS, "tfde-model-server"])
def test_every_command_stands_in_the_reference_with_its_options(reference, command):
    page = reference.pages()[f"commands/{command}.md"]
    hidden = set()
    if command == "tfde-model-server":
        options = importlib.import_module("tfde.serving.server.options")
        hidden = {f"--{name}" for name in {**options.NO_EFFECT, **options.UNSUPPORTED}}
    shown = {o for o in options_of(command) if not o.endswith("help") and o != "-h"} - hidden
    assert [option for option in sorted(shown) if f"`{option}`" not in page] == []


def test_the_site_has_a_place_for_every_page():
    settings = text_of(ROOT / "docs/site/zensical.toml")
    listed = set(re.findall(r'"([\w./-]+\.md)"', settings))
    for folder in re.findall(r'"FILES ([^"]+)"', settings):
        listed |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md")}
    written = {str(path.relative_to(ROOT)) for path in DOCUMENTS} - {"README.md"}
    made = {name for name in listed if name.startswith(("docs/reference/", "notebooks/"))}
    # A page that is missing here wants a line in docs/site/zensical.toml.
    assert written == listed - made - {"index.md", "CHANGELOG.md"}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {name for name in made if name.startswith("notebooks/")} == notebooks
