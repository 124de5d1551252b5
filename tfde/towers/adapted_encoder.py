"""Low-rank adapters in the encoders of a model of two towers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfde.argument_types import typed
from tfde.backbones.seeded_layer import NO_QUANTIZE
from tfde.config.lora import LoraConfig
from tfde.errors import ConfigError, require
from tfde.towers.sharing import Towers, add_adapters, merge_adapters
from tfde.towers.text_encoder import TextEncoder


class AdaptedEncoder(TextEncoder):
    """A model of two towers that learns by all its weights, or by adapters."""

    _towers: Towers

    @typed
    def enable_lora(
        self,
        rank: int = 8,
        *,
        alpha: float | None = None,
        target: str | Sequence[str] = ("query", "value"),
    ) -> None:
        """Trains low-rank adapters beside matrices of the encoder, in place of its weights.

        Embeddings stay as they are until the adapters have trained. Token embedder and encoder
        are frozen but for them, a projection trains as before; an encoder of both towers has its
        adapters once. Call `compile` after it.

        Args:
            rank: Columns of A and rows of B, in x W + (alpha / rank) x A B.
            alpha: Scale; `None` takes the rank, as Keras does.
            target: `"all"`; names, such as `"query"`, `"key"`, `"value"`, `"attention_output"`,
                `"intermediate"`, `"gate"` (T5) and `"output"`, of a Keras model those of its Dense
                layers; or regular expressions for whole paths (`transformer_layer_0/query`).

        Raises:
            ConfigError: there are adapters already; no such matrices; a frozen encoder.
        """
        lora = LoraConfig(rank, alpha, target if isinstance(target, str) else tuple(target))
        with self.distribute_strategy.scope():
            add_adapters((self._towers.query_parts, self._towers.document_parts), lora)
        self._note_adapters(lora)

    def merge_lora(self) -> None:
        """Adds the adapters to their matrices, which train again; embeddings stay as they are.

        Raises:
            ConfigError: there are none.
        """
        require(self.config.lora is not None, "merge_lora", "called after `enable_lora`", None)
        parts = self._towers.query_parts, self._towers.document_parts
        merge_adapters(parts, self.config.sharing)
        self._note_adapters(None)

    def _note_adapters(self, lora: LoraConfig | None) -> None:
        """What is traced and what was compiled is of the weights before."""
        self.config = dataclasses.replace(self.config, lora=lora)
        self._encoders = {}
        self.task = None
        for traced in (self, self.query_tower, self.document_tower):
            traced.train_function = traced.test_function = traced.predict_function = None

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Refuses, and says what there is instead."""
        raise ConfigError(NO_QUANTIZE)
