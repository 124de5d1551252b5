"""What all tests share: where the real data lies, and one thread pool per worker."""

import os
from pathlib import Path

import pytest
from missing import missing

import tfde  # noqa: F401  # sets TF_USE_LEGACY_KERAS before anything imports keras_hub


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
