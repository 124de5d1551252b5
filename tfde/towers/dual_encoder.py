"""`DualEncoder`: two towers, their tokenization, training, encoding, saving and loading."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import tensorflow as tf

from tfde.argument_types import typed
from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.functional import seeded
from tfde.checkpoints.checkpoint_files import check_checkpoint
from tfde.checkpoints.initial_backbones import load_starts
from tfde.config.backbones import BackboneConfig
from tfde.config.engines import EngineChoice
from tfde.config.model import Pooling, Sharing, TextConfig, TowersConfig
from tfde.engines.tower_engine import require_engine
from tfde.errors import require
from tfde.tasks.task import Task
from tfde.text.batch_preprocessor import BatchPreprocessor
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.adapted_encoder import AdaptedEncoder
from tfde.towers.checkpoint_rules import text_config
from tfde.towers.describe_towers import describe_towers, take_projections
from tfde.towers.keras_saving import StoredModel
from tfde.towers.pair_steps import tokens_of
from tfde.towers.preset import (
    DUAL_ENCODER,
    is_for_from_preset,
    towers_from_mapping,
    towers_to_mapping,
)
from tfde.towers.saved_models import BothEncoders
from tfde.towers.sharing import Towers, build_towers, sharing_table
from tfde.towers.weights import fingerprint


@keras.saving.register_keras_serializable(package="tfde")
class DualEncoder(AdaptedEncoder, StoredModel):
    """A query tower and a document tower with their tokenization.

    Made by `from_backbone`, `from_preset` or `load`; the constructor joins parts that exist.

    Args:
        backbone: Layers of the query tower, with their weights.
        config: What the towers share and what follows the backbone. `config.backbone` must
            describe `backbone`.
        preprocessor: Texts to token ids, for both towers.
        document_backbone: Layers of the document tower, where they have weights of their own;
            `config.sharing` must then be `ade`.

    Attributes:
        query_tower: Functional model, (B, L) `token_ids` and `padding_mask` -> (B, D) float32.
        document_tower: The same for documents; shares layers as `config.sharing` says.
    """

    kind: ClassVar[str] = DUAL_ENCODER
    config_class: ClassVar[type] = TowersConfig
    preprocessor_class: ClassVar[type[BatchPreprocessor]] = TextPreprocessor

    config: TowersConfig
    preprocessor: TextPreprocessor

    def __init__(
        self,
        backbone: Backbone,
        config: TowersConfig,
        *,
        preprocessor: TextPreprocessor,
        document_backbone: Backbone | None = None,
    ) -> None:
        fill = preprocessor.text_config.query_fill
        require(not fill, "query_fill", "empty with a dual encoder; matchers have it", fill)
        super().__init__(preprocessor, name="dual_encoder", dtype=backbone.encoder.dtype_policy)
        self.config = config
        skipped = (0, 0) if config.pool_prompts else preprocessor.prompt_lengths()
        self._towers = build_towers(
            backbone, config, document_backbone=document_backbone, skipped_tokens=skipped
        )
        self.query_tower = self._towers.query_tower
        self.document_tower = self._towers.document_tower
        if config.encode_before_projection:  # Keras finds weights by attributes
            self._trained_towers = list(self._towers.trained)
        self.built = True

    # ---- making, saving, loading -------------------------------------------------------------

    @classmethod
    @typed
    def from_backbone(
        cls,
        backbone: str | Path | BackboneConfig | keras.Model,
        *,
        document_backbone: str | Path | None = None,
        num_layers: int | None = None,
        second_segment: bool = False,
        sharing: str | Sharing | Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        text: TextConfig | None = None,
        pooling: Pooling | Sequence[Pooling] | keras.layers.Layer | None = None,
        projection: keras.layers.Layer | None = None,
        embedding_dim: int | None = None,
        projection_bias: bool = False,
        encode_before_projection: bool = False,
        normalize: bool | None = None,
        dropout: float | None = None,
        dtype: str | None = None,
        seed: int | None = None,
    ) -> DualEncoder:
        """Builds a dual encoder on a pre-trained checkpoint, or on random weights of given sizes.

        Args:
            backbone: A directory of keras-hub, Hugging Face or sentence-transformers, a keras-hub
                preset name, a `kaggle://` or `hf://` handle; two of them with a comma between for
                queries and documents; a description such as `tfde.T5Config(num_layers=4)` for
                random weights; or a Keras model (keras-hub's, or any functional one).
            document_backbone: The documents' checkpoint, where it is another (DPR).
            num_layers: Only the first so many layers of the checkpoint; `None` for all.
            second_segment: Whether what follows the first separator of a text has BERT's segment
                1, such as the context in `{text} [SEP] {context}`.
            sharing: `"sde"`, `"ade"`, `"ade_ste"`, `"ade_fte"`, `"ade_spl"`, or a mix by parts;
                `None` takes `"sde"`, or `"ade"` where queries and documents have checkpoints of
                their own.
            tokenizer: Needed for random weights and Keras models; may be keras-hub's.
            text: Lengths, template and prompts; `None` takes those of the checkpoint. Lengths
                beyond what the checkpoint can hold are cut to it.
            pooling: `"mean"`, `"first"`, ... or several; `None` takes what the checkpoint says,
                else the mean. Or a Keras layer without weights that takes a mask.
            projection: A Keras layer (B, H) -> (B, D) in place of the checkpoint's; weights that
                it has are taken over.
            embedding_dim: Size of a new projection, which takes the place of the checkpoint's;
                `None` keeps that of the checkpoint, if it has one.
            projection_bias: Whether the new projection has a bias.
            encode_before_projection: Whether the projection is part of training alone: then
                embeddings are the pooled vectors before it.
            normalize: Whether embeddings have unit length (cosine similarity); `None` takes what
                the checkpoint says, else yes.
            dropout: Replaces the checkpoint's dropout rate.
            dtype: Keras dtype policy of the backbone: `"bfloat16"` holds its weights in half the
                memory, for encoding (training would round small updates away);
                `"mixed_bfloat16"` only computes so; `None` takes Keras' current one.
            seed: Seed of random weights.

        Raises:
            ConfigError: a tokenizer is missing or does not fit; an option is unknown; `pooling`
                does not fit the checkpoint's projection; the two checkpoints do not fit together.
            DataError: a file of the checkpoint is not what its name says.
        """
        with seeded(seed):
            starts = load_starts(
                backbone,
                document_backbone,
                num_layers=num_layers,
                second_segment=second_segment,
                tokenizer=tokenizer,
                dropout=dropout,
                dtype=dtype,
                seed=seed,
            )
            config = describe_towers(
                starts,
                sharing=sharing,
                pooling=pooling,
                projection=projection,
                embedding_dim=embedding_dim,
                projection_bias=projection_bias,
                encode_before_projection=encode_before_projection,
                normalize=normalize,
            )
            query, document = starts[0], starts[-1]
            model = cls(
                query.backbone,
                config,
                preprocessor=TextPreprocessor(query.tokenizer, text_config(text, starts)),
                document_backbone=None if document is query else document.backbone,
            )
            if embedding_dim is None:
                take_projections(model.towers, starts, projection)
            return model

    @classmethod
    def from_description(
        cls, value: Mapping[str, Any], preprocessor: Any, *, dtype: str | None
    ) -> Self:
        """Returns the model that `description` described, with random weights."""
        config = towers_from_mapping(value)
        return cls(build_backbone(config.backbone, dtype=dtype), config, preprocessor=preprocessor)

    def description(self) -> dict[str, Any]:
        """Returns what the towers are, as JSON values."""
        return towers_to_mapping(self.config)

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight once, by `part/shared/...`, or `part/query/...` and so on."""
        return self._towers.named_weights()

    @classmethod
    def load(
        cls, path: str | Path, *, dtype: str | None = None, engine: EngineChoice = "tensorflow"
    ) -> DualEncoder:
        """Loads whatever `--model` takes.

        Args:
            path: A model directory, a `.keras` file, or what `from_backbone` takes.
            dtype: As for `from_backbone`.
            engine: What runs the towers; see `set_engine`.

        Raises:
            ConfigError: it is none of these.
            MissingExtraError: the engine is not installed.
        """
        require_engine(engine, writes=True)
        check_checkpoint(path)
        load = cls.from_preset if is_for_from_preset(path) else cls.from_backbone
        model = load(path, dtype=dtype)
        model.set_engine(engine)
        return model

    def exported(self) -> tuple[tf.Module, dict[str, Any]]:
        """Returns both encoders; their signatures are those of a bundle's two models."""
        from tfde.towers.change_sharing import without_adapters  # which imports this module

        model = without_adapters(self)
        both = BothEncoders(
            model.query_tower,
            model.document_tower,
            self.preprocessor,
            trained_dims=[d for d in self.config.trained_dims if d < self.embedding_dim],
            normalize=self.config.normalize,
        )
        return both, both.signatures_by_name.value

    def fingerprint(self) -> str:
        """Returns 16 hex digits that change with any weight, the tokenizer or the configuration.

        Embeddings and indexes carry it: vectors of another model are refused.
        """
        config = self.description()
        del config["trained_dims"]  # which no embedding depends on
        description = json.dumps(config, sort_keys=True).encode()
        weights = [*self.query_tower.weights, *self.document_tower.weights]
        return fingerprint(description + self.preprocessor.fingerprint_bytes(), weights)

    # ---- what it is --------------------------------------------------------------------------

    def __repr__(self) -> str:
        text = self.preprocessor.text_config
        return (
            f"DualEncoder({self.config.backbone.summary()}, {self.config.sharing.name},"
            f" {self.embedding_dim} numbers, queries of {text.query_max_length_tokens} tokens,"
            f" documents of {text.document_max_length_tokens})"
        )

    @property
    def towers(self) -> Towers:
        """Both towers with the layers that they are made of."""
        return self._towers

    @property
    def trained_towers(self) -> dict[str, keras.Model]:
        """Both towers as they train, with the projection, by side."""
        return dict(zip(("query", "document"), self._towers.trained, strict=True))

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return int(self.query_tower.output_shape[-1])

    def summary(
        self, *args: Any, print_fn: Callable[[str], Any] | None = None, **kwargs: Any
    ) -> None:
        """Shows Keras' table of the towers, and which of their parts are shared.

        Args:
            *args: As in Keras.
            print_fn: Takes the text; `None` writes it to stdout.
            **kwargs: As in Keras.
        """
        super().summary(*args, print_fn=print_fn, **kwargs)
        (print_fn or sys.stdout.write)(f"{self.summary_of_sharing()}\n")

    def summary_of_sharing(self) -> str:
        """Returns a table of parts: who shares what, parameters, and how many of them train."""
        return sharing_table(self._towers, self.config.sharing)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
        """Returns `query_embeddings` (B, D) and `document_embeddings` (C, D), float32, as trained.

        With `encode_before_projection` they are those after the projection, which `encode_queries`
        and `encode_documents` leave out.

        Args:
            inputs: `query_token_ids`, `query_padding_mask` (B, L) and `document_token_ids`,
                `document_padding_mask` (C, L'), int32; other entries are passed over.
            training: Whether dropout is on.
        """
        embeddings = {}
        for side, tower in self.trained_towers.items():
            embeddings[f"{side}_embeddings"] = tower(tokens_of(side, inputs), training=training)
        return embeddings

    def note_task(self, task: Task) -> None:
        """Notes which first numbers of an embedding the task trains; called by `fit`."""
        self.config = dataclasses.replace(self.config, trained_dims=task.trained_dims)
