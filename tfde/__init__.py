"""Dual-encoder text retrieval on Keras and TensorFlow.

Names are imported on first use, so that `import tfde` costs nothing; `__init__.pyi` lists them.
"""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path
from typing import Any

from tfde.keras_classes import make_known
from tfde.version import __version__

_WHERE = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

# Names that people try first -> what there is.
_LOAD = "`tfde.DualEncoder.from_backbone(path)`, or `.load(path)` of what tfde saved"
_INSTEAD = {
    "load": _LOAD,
    "load_model": _LOAD,
    "SentenceTransformer": _LOAD,
    "load_index": "`tfde.ScannIndex.load(path)`, or `.load` of another kind",
    "Index": "`tfde.ExactIndex` or `tfde.ScannIndex`",
    "InputExample": "a tuple `(question, answer)`, or `tfde.Document` for an answer with a title",
    "losses": "`tfde.RetrievalTask(temperature)`, which `compile` takes as `task`",
    "util": "`model.similarity(a, b)`, and `index.search(embeddings, k)`",
    "train": "`model.fit(pairs)`, or `tfde train --run RECIPE`",
    "InfoNCE": "`tfde.RetrievalTask(temperature)`, which `compile` takes as `task`",
    "MultipleNegativesRankingLoss": "`tfde.RetrievalTask(temperature=0.05)`, its softmax",
    "Trainer": "`model.fit(pairs)`, or `tfde train --run RECIPE`",
    "Dataset": "`tfde.pairs(data)`",
    "BruteForce": "`tfde.ExactIndex`",
    "ScaNN": "`tfde.ScannIndex`",
    "HnswIndex": "`tfde.ScannIndex` or `tfde.FaissIndex`",
    "search": "`tfde.retrieve(model, index, queries, k)`, or `index.search(embeddings, k)`",
}

# C++ says on stderr what it has not found; its errors reach us as exceptions. Who wants to read it
# sets the variable.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
make_known()

__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tfde' has no attribute {name!r}{_hint(name)}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    """Returns what there is in the place of a name, for its error."""
    if name in _INSTEAD:
        return f"; instead: {_INSTEAD[name]}"
    if name.startswith("_"):  # what programs look for, not people
        return ""
    import difflib  # here: `import tfde` costs nothing

    small = {known.lower(): known for known in _WHERE}
    near = difflib.get_close_matches(name.lower(), small, n=1, cutoff=0.6)
    return f"; did you mean {small[near[0]]}?" if near else ""


def __dir__() -> list[str]:
    return __all__
