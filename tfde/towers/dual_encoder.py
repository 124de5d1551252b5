"""`DualEncoder`: two towers, their tokenization, training, encoding, saving and loading."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.backbone import Backbone, build_backbone
from tfde.backbones.seeded_layer import zero_weights
from tfde.checkpoints.encoder_steps import EncoderSteps
from tfde.checkpoints.loading import LoadedBackbone, load_backbones
from tfde.config import (
    BackboneConfig,
    DenseConfig,
    Pooling,
    Sharing,
    TextConfig,
    TowersConfig,
)
from tfde.data.atomic import atomic_directory
from tfde.data.pairs import PairDataset
from tfde.errors import ConfigError, shorten
from tfde.tasks.retrieval_task import RetrievalTask, in_batch_accuracy
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.batches import batches_by_length
from tfde.towers.preset import (
    DUAL_ENCODER,
    WEIGHTS_FILE,
    is_preset,
    preset_class,
    read_config,
    towers_from_mapping,
    towers_to_mapping,
    write_config,
)
from tfde.towers.sharing import Towers, build_towers, sharing_table
from tfde.towers.throughput import Throughput
from tfde.towers.weights import fingerprint, read_weights, stored_dtype, write_weights
from tfde.types import Document

_LOG = logging.getLogger(__name__)


class DualEncoder(keras.Model):
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

    def __init__(
        self,
        backbone: Backbone,
        config: TowersConfig,
        *,
        preprocessor: TextPreprocessor,
        document_backbone: Backbone | None = None,
    ) -> None:
        super().__init__(name="dual_encoder")
        self.config = config
        self.preprocessor = preprocessor
        skipped = (0, 0) if config.pool_prompts else preprocessor.prompt_lengths()
        self._towers = build_towers(
            backbone, config, document_backbone=document_backbone, skipped_tokens=skipped
        )
        self.query_tower = self._towers.query_tower
        self.document_tower = self._towers.document_tower
        self.task: RetrievalTask | None = None
        self._accuracy = keras.metrics.Mean(name="in_batch_accuracy")
        self._encode_functions: dict[str, Any] = {}
        self.built = True

    # ---- making, saving, loading -------------------------------------------------------------

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | BackboneConfig,
        *,
        document_backbone: str | Path | None = None,
        sharing: str | Sharing | Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        text: TextConfig | None = None,
        pooling: Pooling | Sequence[Pooling] | None = None,
        embedding_dim: int | None = None,
        projection_bias: bool = False,
        normalize: bool | None = None,
        dropout: float | None = None,
        dtype: str | None = None,
        seed: int | None = None,
    ) -> DualEncoder:
        """Builds a dual encoder on a pre-trained checkpoint, or on random weights of given sizes.

        Args:
            backbone: A directory of keras-hub, Hugging Face or sentence-transformers, a keras-hub
                preset name, a `kaggle://` or `hf://` handle; two of them with a comma between for
                queries and documents; or a backbone description such as
                `tfde.T5Config(num_layers=4)` for random weights.
            document_backbone: The documents' checkpoint, where it is another (DPR).
            sharing: `"sde"`, `"ade"`, `"ade_ste"`, `"ade_fte"`, `"ade_spl"`, or a mix by parts;
                `None` takes `"sde"`, or `"ade"` where queries and documents have checkpoints of
                their own.
            tokenizer: Needed for random weights; otherwise the checkpoint brings its own.
            text: Lengths, template and prompts; `None` takes those of the checkpoint. Lengths
                beyond what the checkpoint can hold are cut to it.
            pooling: `"mean"`, `"first"`, ... or several; `None` takes what the checkpoint says,
                else the mean.
            embedding_dim: Size of a new projection, which takes the place of the checkpoint's;
                `None` keeps that of the checkpoint, if it has one.
            projection_bias: Whether the new projection has a bias.
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
        if seed is not None:
            keras.utils.set_random_seed(seed)
        steps = EncoderSteps()
        loaded: list[LoadedBackbone] = []
        if isinstance(backbone, str | Path):
            loaded = load_backbones(backbone, document_backbone, dropout=dropout, dtype=dtype)
            parts, steps = loaded[0].backbone, loaded[0].steps
            tokenizer = tokenizer or loaded[0].tokenizer
            text = _text_config(text, loaded)
        elif document_backbone is not None:
            raise ConfigError(
                "`document_backbone` needs a checkpoint as `backbone`, not a description."
                f" Received: {document_backbone}"
            )
        else:
            if dropout is not None:
                backbone = dataclasses.replace(backbone, dropout=dropout)
            if tokenizer is None:
                raise ConfigError(
                    "`tokenizer` is needed when `backbone` is a description: random weights"
                    " bring no vocabulary; train one with tfde.train_sentencepiece."
                )
            parts = build_backbone(backbone, seed=seed, dtype=dtype)
            longest = getattr(backbone, "max_sequence_length", None)
            text = _cut_lengths(text or TextConfig(), longest, longest)
        if tokenizer.vocabulary_size > parts.config.vocabulary_size:
            raise ConfigError(
                f"`tokenizer` has {tokenizer.vocabulary_size} tokens, more than the backbone's"
                f" vocabulary_size={parts.config.vocabulary_size}."
            )
        if isinstance(pooling, str):
            pooling = (pooling,)
        pooling = tuple(pooling or steps.pooling or ("mean",))
        projection = steps.projection
        if embedding_dim is not None:
            projection = (DenseConfig(embedding_dim, projection_bias),)
        elif projection:
            _check_pooling(pooling, parts.config.hidden_dim, steps)
        if normalize is None:
            normalize = steps.normalize is not False
        if sharing is None:
            sharing = "ade" if len(loaded) == 2 else "sde"
        config = TowersConfig(
            backbone=parts.config,
            sharing=Sharing.of(sharing),
            pooling=pooling,
            pool_prompts=steps.pool_prompts,
            projection=projection,
            normalize=normalize,
        )
        model = cls(
            parts,
            config,
            preprocessor=TextPreprocessor(tokenizer, text),
            document_backbone=loaded[1].backbone if len(loaded) == 2 else None,
        )
        if projection and embedding_dim is None:
            towers = (model._towers.query_parts, model._towers.document_parts)
            for side, tower in zip((loaded[0], loaded[-1]), towers, strict=True):
                if tower.projection is not None:
                    tower.projection.set_weights(list(side.steps.projection_weights))
        return model

    @classmethod
    def from_preset(cls, directory: str | Path, *, dtype: str | None = None) -> DualEncoder:
        """Loads a model directory that `save_to_preset` wrote.

        Args:
            directory: The model directory.
            dtype: Keras dtype policy of the backbone, as in `from_backbone`; `None` takes
                bfloat16 or float16 where the weights were saved in it, else Keras' current one.

        Raises:
            CorruptError: a file of the directory is missing or not what was written.
        """
        directory = Path(directory)
        config = towers_from_mapping(read_config(directory, DUAL_ENCODER, TowersConfig))
        dtype = dtype or stored_dtype(directory / WEIGHTS_FILE)
        with zero_weights():
            backbone = build_backbone(config.backbone, dtype=dtype)
        model = cls(backbone, config, preprocessor=TextPreprocessor.load(directory))
        read_weights(directory / WEIGHTS_FILE, model._towers.named_weights())
        return model

    @classmethod
    def load(cls, path: str | Path, *, dtype: str | None = None) -> DualEncoder:
        """Loads whatever `--model` takes: a model directory, else what `from_backbone` takes."""
        if preset_class(path) is not None:
            return cls.from_preset(path, dtype=dtype)
        return cls.from_backbone(path, dtype=dtype)

    def save_to_preset(self, directory: str | Path) -> None:
        """Writes the model directory: configuration, weights, tokenizer, metadata. Whole or not.

        An existing model directory is replaced.

        Raises:
            ConfigError: the directory holds something else.
        """
        directory = Path(directory)
        with atomic_directory(directory, overwrite=is_preset(directory)) as temporary:
            config = towers_to_mapping(self.config)
            write_config(temporary, self, config, fingerprint=self.fingerprint())
            self.preprocessor.save(temporary)
            write_weights(temporary / WEIGHTS_FILE, self._towers.named_weights())

    def fingerprint(self) -> str:
        """Returns 16 hex digits that change with any weight, the tokenizer or the configuration.

        Embeddings and indexes carry it: vectors of another model are refused.
        """
        description = json.dumps(towers_to_mapping(self.config), sort_keys=True).encode()
        weights = [*self.query_tower.weights, *self.document_tower.weights]
        return fingerprint(description + self.preprocessor.fingerprint_bytes(), weights)

    # ---- what it is --------------------------------------------------------------------------

    @property
    def towers(self) -> Towers:
        """Both towers with the layers that they are made of."""
        return self._towers

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return int(self.query_tower.output_shape[-1])

    def summary_of_sharing(self) -> str:
        """Returns a table of parts: who shares what, parameters, and how many of them train."""
        return sharing_table(self._towers, self.config.sharing)

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
        """Returns `query_embeddings` (B, D) and `document_embeddings` (C, D), float32.

        Args:
            inputs: `query_token_ids`, `query_padding_mask` (B, L) and `document_token_ids`,
                `document_padding_mask` (C, L'), int32; other entries are passed over.
            training: Whether dropout is on.
        """
        embeddings = {}
        for side, tower in (("query", self.query_tower), ("document", self.document_tower)):
            tokens = {k: inputs[f"{side}_{k}"] for k in ("token_ids", "padding_mask")}
            embeddings[f"{side}_embeddings"] = tower(tokens, training=training)
        return embeddings

    # ---- training ----------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "adam",
        *,
        task: RetrievalTask | None = None,
        jit_compile: bool = False,
        run_eagerly: bool = False,
    ) -> None:
        """Sets optimizer and task.

        Args:
            optimizer: A Keras optimizer, such as `tfde.adafactor(1e-3, decay_steps=20_000)`.
            task: The loss; `None` takes `RetrievalTask()`.
            jit_compile: XLA. Off by default: lengths differ from batch to batch, and every new
                shape would be compiled anew.
            run_eagerly: For debugging.
        """
        self.task = task or RetrievalTask()
        super().compile(optimizer=optimizer, jit_compile=jit_compile, run_eagerly=run_eagerly)

    def fit(
        self,
        x: PairDataset | tf.data.Dataset,
        *,
        epochs: int = 1,
        steps: int | None = None,
        initial_step: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on pairs; tokenization is mapped over them here.

        Args:
            x: `tfde.pairs(...)`, or a `tf.data.Dataset` of batches with the same keys.
            epochs: Passes over the pairs.
            steps: Train up to this step instead; it counts from the beginning of the data.
            initial_step: First batch to take, to go on where an earlier run stopped.
            callbacks: Keras callbacks.
            verbose: As in Keras.

        Raises:
            ConfigError: there is nothing left to train.
        """
        if isinstance(x, PairDataset):
            total = steps if steps is not None else epochs * x.steps_per_epoch
            if total <= initial_step:
                raise ConfigError(
                    f"`initial_step` must be below the {total} steps to train."
                    f" Received: initial_step={initial_step}"
                )
            batches = x.dataset(start_step=initial_step, steps=total - initial_step)
            callbacks = [Throughput(x.batch_size), *(callbacks or ())]
            if steps is None and initial_step == 0:
                steps = x.steps_per_epoch
            else:
                epochs, steps = 1, total - initial_step
        else:
            batches = x
        halves = {weight.dtype for weight in self.trainable_weights} & {"bfloat16", "float16"}
        for dtype in sorted(halves):
            _LOG.warning(
                'weights in %s round small updates away; dtype="mixed_%s" holds them in float32',
                dtype,
                dtype,
            )
        batches = batches.map(self.prepare_batch, num_parallel_calls=tf.data.AUTOTUNE)
        return super().fit(
            batches.prefetch(tf.data.AUTOTUNE),
            shuffle=False,  # the pairs come in their order; Keras could not shuffle batches anyway
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=callbacks,
            verbose=verbose,
        )

    def prepare_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tokenizes a batch of `tfde.pairs` (graph ops); given negatives follow the positives.

        Args:
            batch: Strings and keys, as `PairDataset.dataset` yields them.

        Returns:
            Token ids and masks as `call` takes them, `positive_keys` (B, P) and `candidate_keys`
            (C,) int64, and `candidate_sampling_probability` (C,) float32 if the task wants it;
            it is how often a document is expected in a batch, B times its share of the pairs
            and at most 1; a given negative is there by choice, its probability is 1.
        """
        titles, texts, keys = (
            tf.concat([batch[f"document_{name}"], tf.reshape(batch[f"negative_{name}"], [-1])], 0)
            for name in ("title", "text", "key")
        )
        query_ids, query_mask = self.preprocessor.queries(batch["query"])
        document_ids, document_mask = self.preprocessor.documents(titles, texts)
        prepared = {
            "query_token_ids": query_ids,
            "query_padding_mask": query_mask,
            "document_token_ids": document_ids,
            "document_padding_mask": document_mask,
            "positive_keys": batch["positive_keys"],
            "candidate_keys": keys,
        }
        if self.task is not None and self.task.sampling_correction:
            given = tf.ones([tf.size(batch["negative_key"])], tf.float32)
            share = batch["document_probability"]
            expected = tf.minimum(share * tf.cast(tf.size(share), tf.float32), 1.0)
            prepared["candidate_sampling_probability"] = tf.concat([expected, given], 0)
        return prepared

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the task's loss of a batch (called by Keras' train step)."""
        if self.task is None:
            raise ConfigError("the model has no task: call `compile` before `fit`.")
        queries = tf.cast(y_pred["query_embeddings"], tf.float32)
        documents = tf.cast(y_pred["document_embeddings"], tf.float32)
        keys = {"candidate_keys": x["candidate_keys"], "positive_keys": x["positive_keys"]}
        self._accuracy.update_state(in_batch_accuracy(queries, documents, **keys))
        return self.task(
            queries,
            documents,
            candidate_sampling_probability=x.get("candidate_sampling_probability"),
            **keys,
        )

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Returns loss and in-batch accuracy so far."""
        return self.get_metrics_result()

    # ---- encoding ----------------------------------------------------------------------------

    def encode_queries(
        self, texts: Sequence[str], *, batch_size: int = 64, show_progress: bool = False
    ) -> np.ndarray:
        """Returns the embeddings of queries, (Q, D) float32, in the order given.

        Args:
            texts: Query texts.
            batch_size: Texts per batch; those of like length share one.
            show_progress: Whether a progress bar goes to stderr.
        """
        if isinstance(texts, str):
            raise ConfigError(f"`texts` must be a list of strings. Received: {shorten(texts)}")
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise ConfigError(f"`texts` must hold strings. Received: {shorten(text)}")
        return self._encode("query", [("", text) for text in texts], batch_size, show_progress)

    def encode_documents(
        self,
        documents: Iterable[Document | Mapping[str, str] | str],
        *,
        batch_size: int = 64,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the embeddings of documents, (N, D) float32, in the order given.

        Args:
            documents: `tfde.Document`, mappings with `text` (and `title`), or plain texts.
            batch_size: Documents per batch; those of like length share one.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: an entry is none of these.
        """
        if isinstance(documents, str | Mapping):
            raise ConfigError(f"`documents` must be a list. Received: {shorten(documents)}")
        pairs = [_title_and_text(document) for document in documents]
        return self._encode("document", pairs, batch_size, show_progress)

    def _encode(
        self, side: str, texts: list[tuple[str, str]], batch_size: int, show_progress: bool
    ) -> np.ndarray:
        embeddings = np.zeros((len(texts), self.embedding_dim), np.float32)
        encode = self._encode_function(side)
        lengths = [len(title) + len(text) for title, text in texts]
        for rows in batches_by_length(
            lengths, batch_size, unit="text", show_progress=show_progress
        ):
            titles = tf.constant([texts[row][0] for row in rows], tf.string)
            bodies = tf.constant([texts[row][1] for row in rows], tf.string)
            embeddings[rows] = encode(titles, bodies).numpy()
        return embeddings

    def _encode_function(self, side: str) -> Any:
        """Returns the traced function (titles, texts) -> embeddings of one side."""
        if side not in self._encode_functions:
            strings = tf.TensorSpec([None], tf.string)

            @tf.function(input_signature=[strings, strings])
            def encode(titles: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
                if side == "query":
                    token_ids, padding_mask = self.preprocessor.queries(texts)
                    tower = self.query_tower
                else:
                    token_ids, padding_mask = self.preprocessor.documents(titles, texts)
                    tower = self.document_tower
                tokens = {"token_ids": token_ids, "padding_mask": padding_mask}
                return tf.cast(tower(tokens, training=False), tf.float32)

            self._encode_functions[side] = encode
        return self._encode_functions[side]


def _title_and_text(document: Document | Mapping[str, str] | str) -> tuple[str, str]:
    if isinstance(document, str):
        return "", document
    if isinstance(document, Document):
        return document.title, document.text
    if isinstance(document, Mapping) and isinstance(document.get("text"), str):
        return document.get("title") or "", document["text"]
    raise ConfigError(
        "`documents` must hold tfde.Document, mappings with a `text`, or strings."
        f" Received: {shorten(document)}"
    )


def _text_config(text: TextConfig | None, loaded: Sequence[LoadedBackbone]) -> TextConfig:
    """Returns the text handling of a checkpoint, or the one given, cut to what it can hold."""
    query, document = loaded[0], loaded[-1]
    limits = (query.max_length_tokens, document.max_length_tokens)
    if text is not None:
        return _cut_lengths(text, *limits)
    text = TextConfig(
        query_prompt=query.steps.query_prompt, document_prompt=document.steps.document_prompt
    )
    if document.steps.document_template is not None:
        text = dataclasses.replace(text, document_template=document.steps.document_template)
    if query.steps.pooling is None:
        return _cut_lengths(text, *limits)
    # A retriever that somebody trained: texts are cut where its own library cuts them.
    query_limit, document_limit = (limit or max(text.buckets) for limit in limits)
    return dataclasses.replace(
        text, query_max_length_tokens=query_limit, document_max_length_tokens=document_limit
    )


def _cut_lengths(
    text: TextConfig, query_limit: int | None, document_limit: int | None
) -> TextConfig:
    query, document = text.query_max_length_tokens, text.document_max_length_tokens
    return dataclasses.replace(
        text,
        query_max_length_tokens=min(query, query_limit or query),
        document_max_length_tokens=min(document, document_limit or document),
    )


def _check_pooling(pooling: tuple[Pooling, ...], hidden_dim: int, steps: EncoderSteps) -> None:
    rows = steps.projection_weights[0].shape[0]
    if hidden_dim * len(pooling) != rows:
        raise ConfigError(
            f"`pooling` must give vectors of {rows} numbers, which the checkpoint's projection"
            " takes; `embedding_dim` puts a new one in its place."
            f" Received: {', '.join(pooling)} of {hidden_dim} numbers each"
        )
