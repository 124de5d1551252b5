"""The pages of the reference, made from docstrings and argument parsers.

Imports no TensorFlow: docstrings are read from the sources, parsers know their options without it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from pathlib import Path

import tfde
from tfde.cli.main import COMMANDS
from tfde.cli.model_server import build_parser as model_server_parser

ROOT = Path(__file__).parents[2]

# Every name of `tfde.__all__` stands in one group; a test compares.
GROUPS = {
    "models": (
        "Models",
        "What embeds texts, and what scores pairs of texts.",
        [
            "DualEncoder",
            "CrossEncoder",
            "Matcher",
            "DualEncoderScorer",
            "PhraseEncoder",
            "average_models",
        ],
    ),
    "configurations": (
        "Configurations",
        "What a model is made of. All are frozen dataclasses.",
        [
            "T5Config",
            "BertConfig",
            "BagOfWordsConfig",
            "BackboneConfig",
            "register_backbone",
            "Sharing",
            "TextConfig",
            "ParentConfig",
            "MatcherConfig",
            "PhraseConfig",
            "CrossEncoderConfig",
            "PairTextConfig",
        ],
    ),
    "tokenizers": (
        "Tokenizers",
        "Text to token ids, as graph ops.",
        ["WordPieceTokenizer", "SentencePieceTokenizer", "train_sentencepiece"],
    ),
    "data": (
        "Data",
        "Records, datasets and pairs.",
        ["Query", "Document", "Pair", "DatasetDirectory", "pairs"],
    ),
    "training": (
        "Training",
        "Tasks, optimizers, validation while training, and teachers.",
        [
            "RetrievalTask",
            "AnchorTask",
            "GuidedTask",
            "MarginTask",
            "MatryoshkaTask",
            "ScoreTask",
            "Task",
            "import_recommenders",
            "adafactor",
            "adamw",
            "ValidationConfig",
            "RetrievalValidation",
            "MatchTrainer",
            "Teaching",
        ],
    ),
    "retrieval": (
        "Retrieval",
        "Encoding a corpus, indexes and runs.",
        [
            "encode_corpus",
            "Embeddings",
            "ExactIndex",
            "ScannIndex",
            "ScannParameters",
            "FaissIndex",
            "LiveIndex",
            "Bm25Index",
            "MultiVectorIndex",
            "PhraseIndex",
            "StoredTexts",
            "retrieve",
            "rerank",
            "read_run",
            "write_run",
        ],
    ),
    "evaluation": ("Evaluation", "Measures of a run.", ["evaluate"]),
    "serving": (
        "Export and serving",
        "Bundles, and clients of a server.",
        [
            "SavedEncoder",
            "export_bundle",
            "verify_bundle",
            "export_sentence_transformers",
            "Client",
            "ShardedClient",
        ],
    ),
}


def pages() -> dict[str, str]:
    """Returns the pages: path below `docs/reference` -> Markdown."""
    made = {f"{group}.md": _group(*GROUPS[group]) for group in GROUPS}
    for command in COMMANDS:
        module = importlib.import_module(f"tfde.cli.{command.replace('-', '_')}")
        made[f"commands/{command}.md"] = _command(f"tfde {command}", module.build_parser())
    made["commands/tfde-model-server.md"] = _command("tfde-model-server", model_server_parser())
    return made


def tables() -> str:
    """Returns every public name and every command in a line, with links to their pages."""
    lines = []
    for group, (title, purpose, names) in GROUPS.items():
        lines += [f"### {title}", "", purpose, "", "| name | what it is |", "|---|---|"]
        lines += [
            f"| [`tfde.{name}`](reference/{group}.md#tfde.{name}) | {first_line(name)} |"
            for name in names
        ]
        lines.append("")
    lines += ["### Commands", "", "| command | what it does |", "|---|---|"]
    lines += [
        f"| [`tfde {name}`](reference/commands/{name}.md) | {_escaped(purpose)} |"
        for name, purpose in COMMANDS.items()
    ]
    link = "reference/commands/tfde-model-server.md"
    lines.append(f"| [`tfde-model-server`]({link}) | TensorFlow Serving's flags and protocol |")
    return "\n".join(lines)


def first_line(name: str) -> str:
    """Returns the first sentence of a public name's docstring, read from its source."""
    tree = ast.parse((ROOT / f"{where(name).rpartition('.')[0].replace('.', '/')}.py").read_text())
    kinds = (ast.ClassDef, ast.FunctionDef)
    node = next(node for node in tree.body if isinstance(node, kinds) and node.name == name)
    return _escaped(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))


def where(name: str) -> str:
    """Returns the path of a public name: module and name."""
    module = tfde._WHERE[name]
    if not (ROOT / f"{module.replace('.', '/')}.py").exists():  # a package that hands it on
        source = (ROOT / module.replace(".", "/") / "__init__.py").read_text()
        module = re.search(rf"from ([\w.]+) import [^\n]*\b{name}\b", source)[1]
    return f"{module}.{name}"


def _group(title: str, purpose: str, names: list[str]) -> str:
    blocks = [f"# {title}\n\n{purpose}\n"]
    for name in names:
        blocks.append(f"## tfde.{name} {{ #tfde.{name} }}\n\n::: {where(name)}\n")
    return "\n".join(blocks)


def _command(title: str, parser: argparse.ArgumentParser) -> str:
    lines = [f"# {title}", "", parser.description or "", ""]
    children = [a for a in parser._actions if type(a).__name__ == "ActionSubCommands"]
    if not children:
        lines += _options(parser)
    for option, make in getattr(parser, "alternatives", {}).items():
        other = make()
        lines += [f"## {title} {option}", "", other.description or "", "", *_options(other)]
    for action in children:
        for name, child in action.choices.items():
            lines += [f"## {title} {name}", "", child.description or "", "", *_options(child)]
    if parser.epilog:
        lines += ["", _escaped(parser.epilog)]
    return "\n".join(lines) + "\n"


def _options(parser: argparse.ArgumentParser) -> list[str]:
    usage = _usage(parser)
    lines = ["```text", usage, "```", "", "| argument | default | meaning |", "|---|---|---|"]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or "help" in (action.dest or "").split("."):
            continue
        lines.append(f"| {_name(action)} | {_default(action)} | {_meaning(action, parser)} |")
    return [*lines, ""]


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or not action.required:
            continue
        words.append(action.option_strings[-1] if action.option_strings else "")
        words.append(str(action.metavar or action.dest.rpartition(".")[2]).upper())
    return " ".join(word for word in words if word) + " [options]"


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    return ", ".join(f"`{option}`" for option in action.option_strings)


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.default in (None, argparse.SUPPRESS, [], "", False):
        return ""
    many = isinstance(action.default, (list, tuple))
    return f"`{' '.join(map(str, action.default)) if many else action.default}`"


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default))
    text = re.sub(r" ?\(default: [^()]*\)", "", text)
    if action.choices:
        listed = ", ".join(f"`{choice}`" for choice in action.choices)
        text = f"{text}{'; ' if text else ''}one of {listed}"
    if action.nargs == "+" or type(action).__name__ == "_AppendAction":
        text += " (may be given more than once)" if action.nargs != "+" else " (one or more)"
    if not text and action.dest.startswith("run."):
        text = "[a recipe's field](../../recipes.md)"
    return _escaped(text, keep_links=True)


def _escaped(text: str, *, keep_links: bool = False) -> str:
    """Returns text that stands in a cell of a table; `<` and `|` mean nothing there."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return text if keep_links else re.sub(r"\]\(", "]\\(", text)
