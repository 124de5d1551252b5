"""What the package imports it also asks for, within the versions that are tested."""

import ast
import configparser
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def requirements(extra=None):
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    parts = parser["options.extras_require"] if extra else parser["options"]
    lines = parts[extra or "install_requires"].split("\n")
    found = {}
    for requirement in (Requirement(line) for line in lines if line.strip()):
        if requirement.name == "tfde":  # an extra made of others
            for part in requirement.extras:
                found |= requirements(part)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def imported():
    for path in (ROOT / "tfde").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.module.partition(".")[0]


def test_every_import_is_required():
    distributions = packages_distributions()
    # An extra's import stands where it is used, beside the line that says how to install it.
    required = {*requirements(), *requirements("all")}
    missing = {
        name
        for name in set(imported()) - sys.stdlib_module_names - {"tfde"}
        if not required & {canonicalize_name(found) for found in distributions.get(name, [])}
    }
    assert missing == set()


def pinned(*names):
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
    pairs = (re.fullmatch(r"(\S+)==(\S+)", line) for line in lines)
    return {canonicalize_name(pair[1]): pair[2] for pair in pairs if pair}


@pytest.mark.parametrize(
    ("extra", "files"),
    [
        (None, ["constraints.txt"]),
        ("all", ["constraints.txt"]),
        ("dev", ["constraints.txt"]),
        ("peers", ["constraints.txt", "constraints-peers.txt"]),
    ],
)
def test_the_tested_versions_are_allowed(extra, files):
    versions = pinned(*files)
    for name, requirement in requirements(extra).items():
        assert versions[name] in requirement.specifier, requirement
