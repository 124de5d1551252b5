"""What a test needs and this machine lacks."""

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be missing (`TFDE_REQUIRE_DATA=1`)."""
    if os.environ.get("TFDE_REQUIRE_DATA") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
