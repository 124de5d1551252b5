"""What this machine has of what tfde needs: the machine, packages in their ranges, what loads."""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from tfde.extras import DISTRIBUTION, extra_names, missing_packages, requirements
from tfde.recommenders import import_recommenders
from tfde.version import __version__

_LOADED: dict[str, Callable[[], object]] = {
    "tensorflow": lambda: importlib.import_module("tensorflow"),
    "tensorflow_text": lambda: importlib.import_module("tensorflow_text"),
    "keras": lambda: importlib.import_module("keras"),
    "keras_hub": lambda: importlib.import_module("keras_hub"),
    "tensorflow_recommenders": import_recommenders,
    "scann": lambda: importlib.import_module("scann"),
}
_INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "bfloat16", "amx_bf16": "AMX"}
_FOLDERS = {
    "TFDE_DATA": "dataset directories for recipes, benchmarks and tests",
    "TFDE_MINILM": "all-MiniLM-L6-v2, a start of recipes and studies",
}
_DEVELOPMENT = ("dev", "docs", "peers", "browser")


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `wrong` (tfde does not work so) or `note`."""

    state: Literal["ok", "wrong", "note"]
    line: str


def describe_machine() -> str:
    """Returns one line: versions, system, cores and what they can, memory."""
    flags = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    able = ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"tfde {__version__}, Python {platform.python_version()}, {platform.system()}"
        f" {platform.machine()}, {len(os.sched_getaffinity(0))} cores ({able}), {memory:.0f} GiB"
    )


def check_packages(distribution: str = DISTRIBUTION) -> Iterator[Finding]:
    """Yields a finding for each package that a distribution needs, and for each extra.

    Args:
        distribution: Whose requirements are looked at.
    """
    needed = requirements(distribution)
    extras = [name for name in extra_names(distribution) if name not in _DEVELOPMENT]
    for extra in extras:
        missing = missing_packages(distribution, extra)
        if not missing:
            needed += requirements(distribution, extra)
    seen: set[str] = set()
    for requirement in needed:
        if requirement.name in seen or requirement.name == distribution:
            continue
        seen.add(requirement.name)
        asked = f"{requirement.name} {requirement.specifier}".strip()
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Finding("wrong", f"{asked}: not installed")
            continue
        if requirement.specifier.contains(found, prereleases=True):
            yield Finding("ok", f"{requirement.name} {found}")
        else:
            yield Finding("wrong", f"{asked}: version {found} was not tested and may not fit")
    for extra in extras:
        missing = missing_packages(distribution, extra)
        if missing:
            command = f"pip install '{distribution}[{extra}]'"
            line = f"extra {extra}: {', '.join(missing)} not installed; {command}"
            yield Finding("note", line)
        else:
            yield Finding("ok", f"extra {extra}")


def check_loading() -> Iterator[Finding]:
    """Yields a finding for each library that is imported, then for the devices."""
    for name, load in _LOADED.items():
        if name == "scann" and missing_packages(DISTRIBUTION, "scann"):
            continue  # an extra that is not there has its line already
        started = time.perf_counter()
        try:
            load()
        except Exception as error:  # whatever a broken installation raises
            text = " ".join(str(error).split())
            yield Finding("wrong", f"import {name}: {type(error).__name__}: {text}")
        else:
            yield Finding("ok", f"import {name}: {time.perf_counter() - started:.1f} s")
            if name == "tensorflow":
                yield _devices()


def check_folders() -> Iterator[Finding]:
    """Yields a finding for each environment variable that names a folder."""
    for name, what in _FOLDERS.items():
        value = os.environ.get(name)
        if value is None:
            yield Finding("note", f"{name} is not set ({what})")
        elif Path(value).is_dir():
            yield Finding("ok", f"{name}={value}")
        else:
            yield Finding("wrong", f"{name}={value}: no such folder ({what})")


def _devices() -> Finding:
    import tensorflow as tf

    found = [
        device.name.partition("physical_device:")[2] for device in tf.config.list_physical_devices()
    ]
    return Finding("ok", f"devices: {', '.join(found)}")
