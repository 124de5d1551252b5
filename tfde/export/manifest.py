"""The manifest of a bundle, which needs no TensorFlow to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfde.errors import CorruptError
from tfde.storage.files import read_json

MANIFEST = "manifest.json"
FORMAT = 1
_FIELDS = {
    "format",
    "version",
    "models",
    "files",
    "embedding_dim",
    "towers_fingerprint",
    "index_fingerprint",
    "golden_queries",
    "golden_k",
    "compute_dtype",
    "int8_weights",
}


def read_manifest(bundle: str | Path) -> dict[str, Any]:
    """Returns the manifest of a bundle.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: its manifest cannot be read.
    """
    path = Path(bundle) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{bundle}: no {MANIFEST} there, so no bundle.")
    manifest = read_json(path)
    missing = _FIELDS - set(manifest)
    if missing or manifest["format"] != FORMAT:
        what = f"has no {sorted(missing)[0]!r}" if missing else "has another format"
        raise CorruptError(f"{path}: {what}; expected format {FORMAT}.")
    return manifest
