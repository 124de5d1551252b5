"""What cross-encoders and matchers have in common: pairs of texts in, logits out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.backbone import build_backbone
from tfde.config.backbones import backbone_from_mapping, from_mapping
from tfde.errors import ConfigError, require, shorten
from tfde.matching.pair_states import PairStates, TextTokens, Tokens
from tfde.matching.relevance import relevance_of
from tfde.matching.scorer_training import ScorerTraining
from tfde.text.batch_preprocessor import BatchPreprocessor
from tfde.text.graph_function import graph_function
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.batches import batches_by_length
from tfde.towers.keras_saving import StoredModel
from tfde.towers.measured import refuse_callbacks
from tfde.towers.other_words import OF_PAIR_SCORER, OtherWords, takes_words_of_predict
from tfde.towers.texts import checked_text
from tfde.types import Document, Query

_LOG = logging.getLogger(__name__)
_STRINGS = tf.TensorSpec([None], tf.string)

# A first text, the title of the second (may be empty), the second text.
PairTexts = tuple[str, str, str]


class PairScorer(OtherWords, ScorerTraining, StoredModel):
    """A model that scores pairs of texts.

    Args:
        scorer: Functional model from the tensors of `prepare` to logits (B, N) float32.
        config: Its description, a dataclass with a `backbone`.
        preprocessor: Texts to token ids.
        name: The model's name.
        dtype: Keras dtype policy of the encoder: in `mixed_float16` losses are scaled.

    Raises:
        ConfigError: the document template has `{context}`.

    Attributes:
        num_labels: N.
    """

    other_words = OF_PAIR_SCORER

    def __init__(
        self,
        scorer: keras.Model,
        config: Any,
        preprocessor: BatchPreprocessor,
        *,
        name: str,
        dtype: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        template = preprocessor.text_config.document_template
        rule = "without {context}, for a model of pairs reads titles and texts alone"
        require("{context}" not in template, "document_template", rule, template)
        self.scorer = scorer
        self.config = config
        self.preprocessor = preprocessor
        self.num_labels = int(scorer.output_shape[-1])
        # Traced once; not a decorator, see tfde/text/tokenizer.py.
        self._score = graph_function(self._score_texts, input_signature=[_STRINGS] * 3)
        self.built = True

    def __repr__(self) -> str:
        kind = getattr(self.config, "kind", None)
        parts = [kind] if kind else []
        parts += [self.config.backbone.summary()]
        parts += [f"{self.num_labels} label" + ("s" if self.num_labels > 1 else "")]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def labels(self) -> tuple[str, ...]:
        """What the logits are called, in their order; of one logit, both that it tells apart."""
        return getattr(self.config, "labels", ())

    @classmethod
    def from_description(
        cls, value: Mapping[str, Any], preprocessor: Any, *, dtype: str | None
    ) -> Self:
        """Returns the model that `description` described, with random weights."""
        value = {**value, "backbone": backbone_from_mapping(value["backbone"])}
        value["labels"] = tuple(value["labels"])
        config = from_mapping(cls.config_class, value, "config")
        backbone = build_backbone(config.backbone, dtype=dtype)
        return cls(backbone, config, preprocessor=preprocessor)  # type: ignore[call-arg]

    def exported(self) -> tuple[tf.Module, dict[str, Any]]:
        """Returns the scorer: `first`, `title`, `text` (B,) string -> `logits` (B, N) float32."""
        names = ("first", "title", "text")
        specs = [tf.TensorSpec([None], tf.string, name=name) for name in names]

        @tf.function(input_signature=specs, autograph=False)
        def serve(first: tf.Tensor, title: tf.Tensor, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"logits": self._score_texts(first, title, text)}

        module = tf.Module()
        module.preprocessor = self.preprocessor
        module.kept = [variable.value for variable in self.variables]
        module.serve = serve
        return module, {"serving_default": serve}

    def prepare(
        self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns what `call` takes: token ids and masks, (B, L) int32 (graph ops).

        Args:
            first: First texts, (B,) string.
            titles: Titles of the second ones, which may be empty, (B,) string.
            texts: The second ones, (B,) string.
        """
        return self.prepare_tokens(first, titles, texts)[0]

    def prepare_tokens(
        self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Tokens]:
        """Returns what `prepare` does, and where the tokens of both texts stand in it."""
        raise NotImplementedError

    def encoder_and_apart(self) -> tuple[Any, int] | None:
        """Returns the encoder, and how many of its layers see one text alone, from below.

        `None` for a model whose encoder is no Transformer.
        """
        return None

    def call_with_states(
        self, inputs: Mapping[str, tf.Tensor], tokens: Tokens, *, training: bool
    ) -> tuple[tf.Tensor, PairStates]:
        """Returns the logits of `call`, and what the encoder computed on its way.

        Args:
            inputs: As `prepare_tokens` gives them.
            tokens: Where the texts' tokens stand in them.
            training: Whether dropout is on.
        """
        raise NotImplementedError

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Returns the logits, (B, N) float32.

        Args:
            inputs: As `prepare` gives them.
            training: Whether dropout is on.
        """
        return self.scorer(inputs, training=training)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns what `call` does.

        Raises:
            ConfigError: texts, which `score` takes.
        """
        if not isinstance(inputs, Mapping):
            raise ConfigError(
                "the model is called on token ids by name, as `prepare` gives them: for texts write"
                f" `score([(first, second)])`. Received: {shorten(inputs)}"
            )
        return super().__call__(inputs, *args, **kwargs)

    def score(
        self,
        pairs: Iterable[tuple[str, str | Document]],
        *,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Returns the logits of pairs in the order given: (P,) float32, or (P, N) for N > 1 labels.

        They are not squeezed into (0, 1): `sentence_transformers.CrossEncoder.predict` applies a
        sigmoid by default where there is one label, which changes no order.

        Args:
            pairs: The two texts of each pair, such as query and document; a `tfde.Document`, or
                a text without a title, goes through the preprocessor's template.
            batch_size: Pairs per batch; those of like length share one.
            show_progress: Whether a progress bar goes to stderr.

        Raises:
            ConfigError: an entry is no such pair; `batch_size` is below 1.
        """
        self.warn_untrained()
        texts = texts_of_pairs(pairs)
        scores = np.zeros((len(texts), self.num_labels), np.float32)
        lengths = [sum(map(len, pair)) for pair in texts]
        for rows in batches_by_length(
            lengths, batch_size, unit="pair", show_progress=show_progress
        ):
            batch = [tf.constant([texts[row][i] for row in rows], tf.string) for i in range(3)]
            scores[rows] = self._score(*batch).numpy()
        return scores[:, 0] if self.num_labels == 1 else scores

    def warn_untrained(self) -> None:
        """Tells once of a head that has learned nothing."""
        if self.untrained:
            self.untrained = False
            _LOG.warning("%s scores with a new head of random weights: train it first", self)

    @takes_words_of_predict
    def predict(
        self,
        x: Iterable[tuple[str, str | Document]],
        *,
        batch_size: int = 32,
        callbacks: Sequence[Any] | None = None,
        verbose: str | int = "auto",
        show_progress: bool | None = None,
    ) -> np.ndarray:
        """Returns what `score` does, the model's outputs: logits, no probabilities.

        Args:
            x: The pairs.
            batch_size: Pairs per batch.
            callbacks: None: no step of it is Keras' own.
            verbose: 0 for no progress bar.
            show_progress: In place of `verbose`.

        Raises:
            ConfigError: as of `score`; callbacks; or an argument of sentence-transformers asks for
                more.
        """
        refuse_callbacks(callbacks)
        shown = verbose not in (0, "0") if show_progress is None else show_progress
        return self.score(x, batch_size=batch_size, show_progress=shown)

    @takes_words_of_predict
    def rank(
        self,
        query: str,
        documents: Iterable[str | Document],
        *,
        top_k: int | None = None,
        label: str | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> list[dict[str, Any]]:
        """Returns documents in the order of their scores for one query, best first.

        Args:
            query: The query.
            documents: What it is paired with.
            top_k: How many to return; `None` for all.
            label: Of a model with labels the one that says relevant: the score is the logarithm of
                its probability. `None` takes `1`, if there is such a label.
            return_documents: Whether each result has its `text`.
            batch_size: Pairs per batch.
            show_progress: Whether a progress bar goes to stderr.

        Returns:
            Dicts with `corpus_id`, the position among the documents, and `score`.

        Raises:
            ConfigError: the model has no such label, or one must be chosen; or as of `score`.
        """
        score = relevance_of(self, label)
        require(top_k is None or top_k >= 1, "top_k", "at least 1", top_k)
        require(not isinstance(documents, str | Document), "documents", "a list", documents)
        documents = list(documents)
        pairs = [(query, document) for document in documents]
        scores = score(pairs, batch_size, show_progress)
        best = np.argsort(-scores, kind="stable")[:top_k]
        found: list[dict[str, Any]] = []
        for row in best:
            document = documents[row]
            text = document.text if isinstance(document, Document) else document
            found.append({"corpus_id": int(row), "score": float(scores[row])})
            found[-1] |= {"text": text} if return_documents else {}
        return found

    def _score_texts(self, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        return self.scorer(self.prepare(first, titles, texts), training=False)


def prepare_apart(
    preprocessor: TextPreprocessor, first: tf.Tensor, titles: tf.Tensor, texts: tf.Tensor
) -> tuple[dict[str, tf.Tensor], Tokens]:
    """Returns the tokens of texts that are encoded apart, and where their own tokens stand.

    Args:
        preprocessor: First texts are its queries, second ones its documents.
        first: First texts, (B,) string.
        titles: Titles of the second ones, (B,) string.
        texts: The second ones, (B,) string.

    Returns:
        `first_token_ids`, `first_padding_mask` and those of the second, (B, L) int32; places.
    """
    sides = (preprocessor.queries(first), preprocessor.documents(titles, texts))
    places = []
    for (_, mask), start in zip(sides, preprocessor.frame_lengths(), strict=True):
        count = tf.reduce_sum(mask, axis=1)
        places.append(TextTokens(tf.fill(tf.shape(count), start), count - start - 1))
    inputs = {
        f"{side}_{name}": tensor
        for side, tensors in zip(("first", "second"), sides, strict=True)
        for name, tensor in zip(("token_ids", "padding_mask"), tensors, strict=True)
    }
    return inputs, (places[0], places[1])


def texts_of_pairs(pairs: Any) -> list[PairTexts]:
    """Returns the first text of each pair, and title and text of the second.

    Raises:
        ConfigError: as of `PairScorer.score`.
    """
    single = isinstance(pairs, str | Mapping | Document) or not isinstance(pairs, Iterable)
    require(not single and not hasattr(pairs, "columns"), "pairs", "a list of pairs", pairs)
    return [_texts_of(pair) for pair in pairs]


def _texts_of(pair: Any) -> PairTexts:
    if isinstance(pair, np.ndarray):
        pair = tuple(pair)
    if (
        isinstance(pair, tuple | list)
        and not isinstance(pair, Query)
        and len(pair) == 2
        and isinstance(pair[0], str | bytes)
        and isinstance(pair[1], str | bytes | Document)
    ):
        first, second = pair
        found = (second.title, second.text) if isinstance(second, Document) else ("", second)
        first, title, text = (checked_text("pairs", part) for part in (first, *found))
        return first, title, text
    raise ConfigError(
        "`pairs` must hold pairs of two texts, or of a text and a tfde.Document."
        f" Received: {shorten(pair)}"
    )
