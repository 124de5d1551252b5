"""`Matcher`: two texts encoded apart, which meet in a small network that can run by itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.backbone import Backbone
from tfde.backbones.functional import seeded
from tfde.checkpoints.colbert_files import read_colbert
from tfde.checkpoints.initial_backbones import load_start
from tfde.config.backbones import BackboneConfig, from_mapping
from tfde.config.matching import FUSION_BEFORE, MatcherConfig, MatcherKind
from tfde.config.model import TextConfig
from tfde.data.batched import batched
from tfde.errors import MismatchError, require
from tfde.matching.meetings import TextVectors
from tfde.matching.model_starts import model_start
from tfde.matching.networks import SIDES, MatcherNetworks, meeting
from tfde.matching.pair_model import PairScorer, prepare_apart, texts_of_pairs
from tfde.matching.pair_states import PairStates, TextTokens, Tokens
from tfde.matching.stored_texts import StoredTexts, check_stored_dtype, join_texts
from tfde.progress import progress_bar
from tfde.text.batch_preprocessor import BatchPreprocessor
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.tokenizer import Tokenizer
from tfde.towers.batches import batches_by_length
from tfde.towers.checkpoint_rules import text_config
from tfde.towers.pair_steps import tokens_of
from tfde.towers.texts import checked_text, query_text, texts_of_document
from tfde.types import Document

_SECOND_TEXTS_AT_ONCE = 512  # whose vectors are held while pairs are scored
_SAMPLES = 16  # of each weight, to see that it is the one of before
_STRINGS = tf.TensorSpec([None], tf.string)


@keras.saving.register_keras_serializable(package="tfde")
class Matcher(PairScorer):
    """Scores pairs of texts that are encoded apart, so one of them can be encoded beforehand.

    Made by `from_backbone` or `from_preset`; the constructor joins parts that exist.
    Offline: `store` computes the vectors of second texts. Online: `score_stored` encodes first
    texts and lets the vectors meet; it gives what `score` gives.

    Args:
        backbone: The layers with their weights, which both texts share.
        config: Where the texts meet; `config.backbone` must describe `backbone`.
        preprocessor: Texts to token ids; first texts are its queries, second ones its documents.
        seed: Seed of new weights; `None` takes Keras's global seed.

    Attributes:
        networks: The functional models: an encoder for each side, and where they meet.

    Source: Li et al. 2021, sections 3.2 and 4.2.
    """

    kind: ClassVar[str] = "Matcher"
    config_class: ClassVar[type] = MatcherConfig
    preprocessor_class: ClassVar[type[BatchPreprocessor]] = TextPreprocessor

    config: MatcherConfig
    preprocessor: TextPreprocessor

    def __init__(
        self,
        backbone: Backbone,
        config: MatcherConfig,
        *,
        preprocessor: TextPreprocessor,
        seed: int | None = None,
    ) -> None:
        networks = MatcherNetworks(
            backbone,
            config,
            tokenizer=preprocessor.tokenizer,
            filled=bool(preprocessor.text_config.query_fill),
            seed=seed,
        )
        dtype = backbone.encoder.dtype_policy
        super().__init__(networks.scorer, config, preprocessor, name=config.kind, dtype=dtype)
        self.networks = networks
        self._own_texts: Callable[[], StoredTexts | None] = lambda: None  # checked last
        self._weights_then = b""  # of the model, when they were
        self._sample_weights = graph_function(self._sample_of_weights, input_signature=[])
        self._encode_first = graph_function(self._encode_first_texts, input_signature=[_STRINGS])
        self._encode_second = graph_function(
            self._encode_second_texts, input_signature=[_STRINGS, _STRINGS]
        )
        shape = networks.encoders["second"].output["vectors"].shape
        self._score_vectors = graph_function(
            self._score_stored,
            input_signature=[
                _STRINGS,
                tf.TensorSpec([None, None, shape[-1]], tf.float32),
                tf.TensorSpec([None, None], tf.int32),
            ],
        )

    # ---- making, saving, loading -------------------------------------------------------------

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | BackboneConfig | keras.Model,
        *,
        kind: MatcherKind,
        num_labels: int = 1,
        labels: Sequence[str] = (),
        num_layers: int | None = None,
        tokenizer: Tokenizer | None = None,
        text: TextConfig | None = None,
        dropout: float | None = None,
        dtype: str | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Matcher:
        """Builds a matcher on a pre-trained checkpoint, or on random weights of given sizes.

        Args:
            backbone: As for `DualEncoder.from_backbone`; a description has random weights. Or a
                model directory, whose encoder is taken, such as that of the teacher. Of a ColBERT
                (its own program's directory), `late_interaction` takes projection, marks, lengths
                and `skip_punctuation` too.
            kind: Where the texts meet, see `MatcherConfig`.
            num_labels: Logits of a pair; 1 is a score.
            labels: What the logits are called, in their order; of one logit, the two labels that
                it tells apart. May be empty.
            num_layers: Only the first so many layers of the checkpoint; `None` for all.
            tokenizer: Needed for random weights; otherwise the checkpoint brings its own.
            text: Lengths and template; `None` takes those of the checkpoint.
            dropout: Replaces the checkpoint's rate; also the rate before the classifier.
            dtype: Keras dtype policy of the backbone.
            seed: Seed of random weights.
            **options: Fields of the kind, see `MatcherConfig`.

        Raises:
            ConfigError: a tokenizer is missing or does not fit; an option is unknown.
            DataError: a file of the checkpoint is not what its name says.
        """
        with seeded(seed):
            cut: dict[str, Any] = {"num_layers": num_layers, "dropout": dropout, "dtype": dtype}
            start, colbert = model_start(backbone, **cut), None
            if start is None:
                start = load_start(backbone, tokenizer=tokenizer, seed=seed, **cut)
                if kind == "late_interaction" and isinstance(backbone, str | Path):
                    colbert = read_colbert(backbone, start.backbone.config.hidden_dim)
            if colbert is not None:
                text = text or colbert.text
                dim = colbert.kernel.shape[1]
                own = {"embedding_dim": dim, "skip_punctuation": colbert.skip_punctuation}
                options = {**own, **options}
            sizes = start.backbone.config
            values = {"backbone": sizes, "kind": kind, "num_labels": num_labels, **options}
            values["labels"] = tuple(labels)
            if dropout is not None:
                values["dropout"] = dropout
            config = from_mapping(MatcherConfig, values, "options")
            preprocessor = TextPreprocessor(start.tokenizer, text_config(text, [start]))
            model = cls(start.backbone, config, preprocessor=preprocessor, seed=seed)
            model.untrained = isinstance(backbone, str | Path)
            if colbert is not None and config.embedding_dim == colbert.kernel.shape[1]:
                model.untrained = False
                model.networks.layers["projection"].set_weights([colbert.kernel])
            return model

    @classmethod
    def from_description(
        cls, value: Mapping[str, Any], preprocessor: Any, *, dtype: str | None
    ) -> Self:
        """Returns the model that `description` described, with random weights."""
        value = {"fusion": FUSION_BEFORE.get(value["kind"]), **value}
        return super().from_description(value, preprocessor, dtype=dtype)

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""
        return self.networks.named_weights()

    def description(self) -> dict[str, Any]:
        """Returns `config` as JSON values, without what earlier versions did not have.

        So the fingerprint of a model that they could describe stays.
        """
        found = super().description()
        if found["fusion"] == FUSION_BEFORE.get(self.config.kind):
            del found["fusion"]
        return found

    # ---- scoring -----------------------------------------------------------------------------

    def score(
        self,
        pairs: Iterable[tuple[str, str | Document]],
        *,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the logits of pairs as `PairScorer.score`; each second text is encoded once."""
        self.warn_untrained()
        texts = texts_of_pairs(pairs)
        rows_of: dict[tuple[str, str], list[int]] = {}
        for row, (_, title, text) in enumerate(texts):
            rows_of.setdefault((title, text), []).append(row)
        scores = np.zeros((len(texts), self.num_labels), np.float32)
        progress = progress_bar(total=len(texts), unit="pair", disable=not show_progress)
        by_length = sorted(rows_of, key=lambda second: -sum(map(len, second)))
        with progress:
            for some in batched(by_length, _SECOND_TEXTS_AT_ONCE):
                parts = self._vectors_of(some, "float32", batch_size)
                ids = [str(place) for place in range(len(some))]
                stored = join_texts(
                    parts, ids, dtype="float32", kind=self.config.kind, fingerprint=""
                )
                places = [
                    (row, place) for place, second in enumerate(some) for row in rows_of[second]
                ]
                rows, of_pairs = [row for row, _ in places], [place for _, place in places]
                first = [texts[row][0] for row in rows]
                scores[rows] = self._scores_of(first, stored, of_pairs, batch_size)
                progress.update(len(rows))
        return scores[:, 0] if self.num_labels == 1 else scores

    def prepare_tokens(
        self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Tokens]:
        """Returns what `prepare` does, and where the tokens of both texts stand in it."""
        return prepare_apart(self.preprocessor, first, titles, texts)

    def encoder_and_apart(self) -> tuple[Any, int]:
        """Returns the encoder of both texts, and how many of its layers see one text alone."""
        return self.networks.encoder, self.networks.apart_layers

    def store(
        self,
        documents: Iterable[Document | Mapping[str, str] | str],
        *,
        doc_ids: Sequence[str] | None = None,
        dtype: str = "float32",
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> StoredTexts:
        """Computes all of second texts that does not depend on the first.

        Args:
            documents: The texts; those of a `tfde.Document` are known by its id.
            doc_ids: Ids of the texts, where they bring none; `None` numbers them, from "0".
            dtype: `float32`, with which scores are those of `score`; `float16` for half the bytes,
                `int8` with a scale a vector for a quarter.
            batch_size: Texts per batch.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: no text; ids are given that are not as many, or one of them twice; an
                unknown dtype.
        """
        check_stored_dtype(dtype)
        single = isinstance(documents, str | Mapping | Document)
        require(not single, "documents", "a list", documents)
        documents = list(documents)
        if doc_ids is None:
            doc_ids = [getattr(d, "doc_id", str(row)) for row, d in enumerate(documents)]
        fits = len(doc_ids) == len(documents)
        require(fits, "doc_ids", f"{len(documents)}, one for each text", len(doc_ids))
        texts = [texts_of_document(document) for document in documents]
        parts = self._vectors_of(texts, dtype, batch_size, show_progress)
        return join_texts(
            parts, doc_ids, dtype=dtype, kind=self.config.kind, fingerprint=self.fingerprint()
        )

    def encode_first(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns all of first texts that does not depend on the second, what an index searches by.

        Args:
            texts: Q texts, which make one batch.

        Returns:
            vectors (Q, X, D) float32, and mask (Q, X) int32, 1 = a vector that counts.
        """
        require(not isinstance(texts, str), "texts", "a list of strings", texts)
        texts = [query_text(text) for text in texts]
        found = self._encode_first(tf.constant(texts, tf.string))
        return found["vectors"].numpy(), found["mask"].numpy()

    def score_stored(
        self,
        pairs: Sequence[tuple[str, str]],
        stored: StoredTexts,
        *,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the logits of first texts and stored second ones, as `score` gives them.

        Args:
            pairs: The first text, and the id of the stored one.
            stored: What `store` of this model gave, with the weights that it has now: this is
                checked when an object comes for the first time, and after training.
            batch_size: Pairs per batch; those of like length share one.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            MismatchError: another model computed what is stored; an id is not stored.
        """
        # All weights are read for the check: some of each tell whether it must be done again.
        weights = self._sample_weights().numpy().tobytes()
        if self._own_texts() is not stored or weights != self._weights_then:
            own = self.fingerprint()
            if stored.fingerprint != own:
                raise MismatchError(
                    f"`stored` must be of this model ({own}). Received: {stored.fingerprint}"
                )
            self._own_texts, self._weights_then = weakref.ref(stored), weights
        rows = [stored.row(doc_id) for _, doc_id in pairs]
        first = [checked_text("pairs", text) for text, _ in pairs]
        scores = self._scores_of(first, stored, rows, batch_size, show_progress)
        return scores[:, 0] if self.num_labels == 1 else scores

    # ---- training with a teacher -------------------------------------------------------------

    def call_with_states(
        self, inputs: Mapping[str, tf.Tensor], tokens: Tokens, *, training: bool
    ) -> tuple[tf.Tensor, PairStates]:
        """Returns the logits of `call`, and what the encoder computed on its way."""
        found: list[TextVectors] = []
        states: list[Any] = []
        for side in SIDES:
            vectors, of_side = self.networks.encode(
                side, **tokens_of(side, inputs), training=training, return_states=True
            )
            found.append(vectors)
            states.append(of_side)
        logits, joint = self.networks.meet(*found, training=training, return_states=True)
        joint_tokens: Tokens | None = None
        if joint is not None:  # the texts stand one behind the other there, as far as they are kept
            lengths = [tf.reduce_sum(part.mask, axis=1) for part in found]
            starts = (tokens[0].start, lengths[0] + tokens[1].start)
            x, y = (
                TextTokens(start, tf.clip_by_value(length - text.start, 0, text.count))
                for text, start, length in zip(tokens, starts, lengths, strict=True)
            )
            joint_tokens = (x, y)
        return logits, PairStates(states[0], states[1], tokens, joint, joint_tokens)

    def _vectors_of(
        self,
        texts: Sequence[tuple[str, ...]],
        dtype: str,
        batch_size: int,
        show_progress: bool = False,
    ) -> list[np.ndarray]:
        """Returns what is kept of second texts, (V, D) of each."""
        parts: list[np.ndarray] = [np.empty(0)] * len(texts)
        lengths = [len(title) + len(text) for title, text in texts]
        kept = np.float16 if dtype == "float16" else np.float32
        for rows in batches_by_length(
            lengths, batch_size, unit="text", show_progress=show_progress
        ):
            batch = [tf.constant([texts[row][i] for row in rows], tf.string) for i in range(2)]
            found = {name: x.numpy() for name, x in self._encode_second(*batch).items()}
            for row, vectors, mask in zip(rows, found["vectors"], found["mask"], strict=True):
                parts[row] = vectors[mask > 0].astype(kept)
        return parts

    def _scores_of(
        self,
        first: Sequence[str],
        stored: StoredTexts,
        rows: Sequence[int],
        batch_size: int,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the logits (P, N) of first texts and stored ones."""
        scores = np.zeros((len(rows), self.num_labels), np.float32)
        counts = np.diff(stored.offsets)[list(rows)].tolist()
        for places in batches_by_length(
            counts, batch_size, unit="pair", show_progress=show_progress
        ):
            texts = tf.constant([first[place] for place in places], tf.string)
            vectors = stored.padded([rows[place] for place in places])
            scores[places] = self._score_vectors(texts, *vectors).numpy()
        return scores

    def _sample_of_weights(self) -> tf.Tensor:
        """Returns some numbers of every weight."""
        flat = [tf.reshape(weight.value, [-1]) for weight in self.weights]
        some = [x[:: max(x.shape[0] // _SAMPLES, 1)] for x in flat]
        return tf.concat([tf.cast(x, tf.float32) for x in some], axis=0)

    def _encode_first_texts(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("token_ids", "padding_mask")
        tokens = dict(zip(names, self.preprocessor.queries(texts), strict=True))
        return self.networks.encoders["first"](tokens, training=False)

    def _encode_second_texts(self, titles: tf.Tensor, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("token_ids", "padding_mask")
        tokens = dict(zip(names, self.preprocessor.documents(titles, texts), strict=True))
        return self.networks.encoders["second"](tokens, training=False)

    def _score_stored(self, first: tf.Tensor, vectors: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        texts, places = tf.unique(first)  # a query and its documents: it is encoded once
        encoded = self._encode_first_texts(texts)
        found = {
            "first": {name: tf.gather(x, places) for name, x in encoded.items()},
            "second": {"vectors": vectors, "mask": mask},
        }
        return self.networks.interaction(meeting(found), training=False)
