"""What this machine has of what tfde needs: the machine, packages in their ranges, what loads."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import platform
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement

from tfde.errors import MissingExtraError, require
from tfde.version import __version__

_importing = threading.Lock()
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def import_recommenders() -> tuple[Any, Any]:
    """Returns tensorflow-recommenders and Keras 2, beside a Keras 3 that stays what it is.

    `import tensorflow_recommenders` by itself asks for `TF_USE_LEGACY_KERAS=1` in the environment
    before TensorFlow is imported; after this it asks for nothing.

    It refuses to be imported, and derives its layers from `tf.keras`, unless that is Keras 2, and
    asks for it again where layers and metrics are used. So `tf.keras` is Keras 2 while it is
    imported, whatever it was before and is again after, and stays so for its own modules alone.
    """
    import tensorflow as tf
    import tf_keras

    with _importing:
        users = vars(tf)["keras"]  # not `tf.keras`, which would load it
        tf.keras = tf_keras
        try:
            import tensorflow_recommenders as tfrs
        finally:
            tf.keras = users
        own = _TensorFlow(tf, tf_keras)
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{tfrs.__name__}.") and vars(module).get("tf") is tf:
                vars(module)["tf"] = own
    return tfrs, tf_keras


class _TensorFlow(types.ModuleType):
    """TensorFlow as it is, but for its `keras`."""

    def __init__(self, tf: types.ModuleType, keras: types.ModuleType) -> None:
        super().__init__(tf.__name__, tf.__doc__)
        self._tf, self.keras = tf, keras

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tf, name)


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


DISTRIBUTION = "tfde"


@cache  # what is there stays; what is missing is looked for again
def require_extra(name: str, what: str) -> None:
    """Refuses to go on without the packages of an extra; called before they are imported.

    Args:
        name: The extra.
        what: What needs it: the beginning of the message.

    Raises:
        MissingExtraError: one of its packages is not installed.
    """
    missing = missing_packages(DISTRIBUTION, name)
    if missing:
        raise MissingExtraError(
            f"{what} needs the extra '{name}': pip install '{DISTRIBUTION}[{name}]'."
            f" Received: {', '.join(missing)} not installed"
        )


def extra_names(distribution: str) -> list[str]:
    """Returns the extras of a distribution, sorted."""
    return sorted(metadata(distribution).get_all("Provides-Extra") or ())


def requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """Returns what a distribution asks for here.

    Args:
        distribution: Its name.
        extra: What this extra asks for beyond what is always asked for; "" for the latter.
    """
    found = []
    for requirement in map(Requirement, requires(distribution) or ()):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        asked = marker is None or marker.evaluate({"extra": extra})
        if asked and always != bool(extra):
            found.append(requirement)
    return found


def missing_packages(distribution: str, extra: str) -> list[str]:
    """Returns the packages of an extra that are not installed, perhaps as `name[extra]`."""
    missing = []
    for requirement in requirements(distribution, extra):
        try:
            version(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement.name)
            continue
        for inner in sorted(requirement.extras):
            if missing_packages(requirement.name, inner):
                missing.append(f"{requirement.name}[{inner}]")
    return missing


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `wrong` (tfde does not work so) or `note`."""

    state: Literal["ok", "wrong", "note"]
    line: str


def usable_cores() -> int:
    """Returns how many cores this process may keep busy.

    They are those that it is bound to, or fewer where its container has a quota. `TFDE_CORES` says
    another number, such as what a pod asks for without a limit.

    Raises:
        ConfigError: `TFDE_CORES` is no whole number above 0.
    """
    given = os.environ.get("TFDE_CORES")
    if given:
        holds = given.isascii() and given.isdigit() and int(given) > 0
        require(holds, "TFDE_CORES", "a whole number above 0", given)
        return int(given)
    bound = len(os.sched_getaffinity(0))
    return max(1, min(bound, math.ceil(_quota() or bound)))


@cache
def _quota() -> float | None:
    """Returns the cores that the control group of this process has; `None` for no such bound.

    It is read once: a search asks for it each time.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            words = " ".join((_CONTROL_GROUP / name).read_text("utf-8") for name in names).split()
            quota, period = map(float, words)  # "max" or -1: none
            return quota / period if quota > 0 else None
    return None


def describe_machine() -> str:
    """Returns one line: versions, system, cores and what they can, memory."""
    flags = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    able = ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"tfde {__version__}, Python {platform.python_version()}, {platform.system()}"
        f" {platform.machine()}, {usable_cores()} cores ({able}), {memory:.0f} GiB"
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


def load_text_ops() -> None:
    """Loads TensorFlow's text ops, without the package around them, which imports Keras.

    Raises:
        ImportError: tensorflow-text is not installed.
    """
    import tensorflow as tf

    package = find_spec("tensorflow_text")
    if package is None or package.origin is None:
        raise ImportError("No module named 'tensorflow_text'")
    libraries = sorted(Path(package.origin).parent.glob("python/*/_*.so"))
    for library in libraries:
        tf.load_op_library(str(library))
    if not libraries:  # of a version that keeps them elsewhere
        importlib.import_module("tensorflow_text")


def load_scann_ops() -> bool:
    """Loads the TensorFlow ops of SavedModels with ScaNN; returns whether they are there."""
    try:
        import scann.scann_ops.py.scann_ops  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
