"""What all tests share: where the real data lies, what is left to `make test-all`, memory."""

import ctypes
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import missing

TESTS = Path(__file__).parent
_LIBC = ctypes.CDLL(None)
_COLLECT_MIB = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks as slow what `repeats.txt` names, and refuses a line there that names nothing."""
    lines = (TESTS / "repeats.txt").read_text().splitlines()
    repeats = {line: False for line in lines if line and not line.startswith("#")}
    files = set()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        files.add(name.partition("::")[0])
        for line in repeats:
            if name.startswith(line):
                item.add_marker(pytest.mark.slow)
                repeats[line] = True
    whole = len(files) > 100  # else single tests may have been asked for
    unknown = [line for line, found in repeats.items() if whole and not found]
    if unknown:
        raise pytest.UsageError(f"tests/repeats.txt names no test: {', '.join(unknown)}")


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back():
    """Frees the graphs of a module's models, which Python seldom looks for."""
    before = _resident_mib()
    yield
    if _resident_mib() > before + _COLLECT_MIB:
        gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


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
