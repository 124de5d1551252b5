"""What all tests share: where the real data lies, and one thread pool per worker."""

import os
from pathlib import Path

import pytest

import tfde  # noqa: F401  # sets TF_USE_LEGACY_KERAS before anything imports keras_hub


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, from `TFDE_DATA`."""
    value = os.environ.get("TFDE_DATA", "")
    if value and Path(value).is_dir():
        return Path(value)
    reason = f"real data not found: TFDE_DATA={value!r} is not a folder"
    if os.environ.get("TFDE_REQUIRE_DATA") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
