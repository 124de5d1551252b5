"""What all tests share: where the real data lies, what is left to other targets, memory."""

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import missing

TESTS = Path(__file__).parent
_LIBC = ctypes.CDLL(None)
_COLLECT_MIB = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what `repeats.txt` and `long.txt` name, and refuses a line there that names nothing."""
    names = [item.nodeid.removeprefix("tests/") for item in items]
    whole = len({name.partition("::")[0] for name in names}) > 100  # else few may be asked for
    for list_name, marker in (("repeats.txt", pytest.mark.slow), ("long.txt", pytest.mark.long)):
        lines = (TESTS / list_name).read_text().splitlines()
        unknown = {line for line in lines if line and not line.startswith("#")}
        beginnings = tuple(unknown)
        for item, name in zip(items, names, strict=True):
            if name.startswith(beginnings):
                item.add_marker(marker)
                unknown -= {line for line in unknown if name.startswith(line)}
        if whole and unknown:
            raise pytest.UsageError(f"tests/{list_name} names no test: {', '.join(unknown)}")


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back():
    """Frees the graphs of a module's models, which Python seldom looks for."""
    before, known = _resident_mib(), set(_custom_gradients())
    yield
    gradients = _custom_gradients()
    for name in gradients.keys() - known:
        del gradients[name]
    if _resident_mib() > before + _COLLECT_MIB:
        gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def _custom_gradients() -> dict:
    """What each trace of a custom gradient leaves in TensorFlow, and with it its graph."""
    ops = sys.modules.get("tensorflow.python.framework.ops")
    return ops.gradient_registry._registry if ops else {}


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


@pytest.fixture(autouse=True)
def logs_reach_caplog() -> Iterator[None]:
    """A command that a test ran in this process keeps its log on stderr: not for the next test."""
    yield
    logger = logging.getLogger("tfde")
    logger.propagate = True
    for handler in [known for known in logger.handlers if known.get_name() == "tfde commands"]:
        logger.removeHandler(handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, from `TFDE_DATA`."""
    value = os.environ.get("TFDE_DATA", "")
    if value and Path(value).is_dir():
        return Path(value)
    missing(f"real data not found: TFDE_DATA={value!r} is not a folder")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real all-MiniLM-L6-v2, from `TFDE_MINILM`; for tests marked `peers`."""
    value = os.environ.get("TFDE_MINILM", "")
    if value and (Path(value) / "modules.json").is_file():
        return Path(value)
    missing(f"all-MiniLM-L6-v2 not found: TFDE_MINILM={value!r} does not hold it")
