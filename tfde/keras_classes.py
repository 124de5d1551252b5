"""Our classes, which Keras knows once tfde is imported, and which are imported when it asks.

`import tfde` loads neither Keras nor TensorFlow, yet `keras.saving.load_model` after it finds what
a file of ours is made of. So Keras' table of classes gets a placeholder for each of them, now or as
soon as Keras is imported; `keras.saving.register_keras_serializable` puts the class in its place.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tfde.import_watch import ImportWatch

# Module -> what it registers; a test finds what is missing.
CLASSES = {
    "tfde.backbones.bag_of_words": ("BagOfWordsEncoder",),
    "tfde.backbones.bert": ("BertEncoder", "BertTokenEmbedder", "BertTransformerLayer"),
    "tfde.backbones.keras_model": ("KerasModelEncoder", "KerasTokenEmbedder", "TokenIds"),
    "tfde.backbones.t5": ("T5Encoder", "T5TransformerLayer"),
    "tfde.backbones.token_table": ("TokenTable",),
    "tfde.layers.keras_layer": ("KerasPooling", "KerasProjection"),
    "tfde.layers.pooling": ("Pooling",),
    "tfde.layers.projection": ("Projection", "UnitNorm"),
    "tfde.matching.cross_encoder": ("CrossEncoder",),
    "tfde.matching.interactions": (
        "ContextCodes",
        "Fusion",
        "JoinedTexts",
        "MaxSimilarity",
        "MeanVector",
        "VirtAdaptedInteraction",
    ),
    "tfde.matching.matcher": ("Matcher",),
    "tfde.matching.meetings": ("TokenFilter",),
    "tfde.phrases.phrase_encoder": ("PhraseEncoder",),
    "tfde.tasks.adapters": ("FunctionTask", "SumTask"),
    "tfde.tasks.margins": ("MarginTask",),
    "tfde.tasks.matryoshka": ("MatryoshkaTask",),
    "tfde.tasks.retrieval_task": ("RetrievalTask",),
    "tfde.tasks.score_task": ("ScoreTask",),
    "tfde.towers.dual_encoder": ("DualEncoder",),
    "tfde.training.optimizers": ("FusedAdamW", "LinearDecay"),
}


class Placeholder:
    """Stands in Keras' table for a class that nobody has imported yet."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        """Returns what the class makes of a configuration."""
        return getattr(importlib.import_module(self.module), self.name).from_config(config)


@contextlib.contextmanager
def _add_afterwards(keras: ModuleType) -> Iterator[None]:
    yield
    _add(keras)


def make_known() -> None:
    """Makes our classes known to Keras, if it is imported, else as soon as it is."""
    keras = sys.modules.get("keras")
    if keras is None:
        sys.meta_path.insert(0, ImportWatch("keras", _add_afterwards))
    else:
        _add(keras)


def _add(keras: Any) -> None:
    known = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            known.setdefault(f"tfde>{name}", Placeholder(module, name))
