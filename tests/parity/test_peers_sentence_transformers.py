"""Our losses against those of sentence-transformers, gradients included."""

import importlib
import types

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.guided import GuidedTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def peer():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("sentence_transformers")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("negatives", [0, 2])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_loss_and_gradients(peer, temperature, negatives, bidirectional):
    """Cosine similarity of embeddings of any length, scale = 1 / temperature."""
    import torch

    losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    rng = np.random.default_rng(7)
    batch, dim = 6, 9
    columns = rng.normal(size=(2 + negatives, batch, dim))
    directions = ("query_to_doc", "doc_to_query") if bidirectional else ("query_to_doc",)
    loss = losses.MultipleNegativesRankingLoss(
        None, scale=1 / temperature, directions=directions, partition_mode="per_direction"
    )
    tensors = [torch.tensor(column, requires_grad=True) for column in columns]
    expected = loss.compute_loss_from_embeddings(tensors, None)
    expected.backward()

    task = RetrievalTask(temperature, bidirectional=bidirectional)
    queries = tf.constant(columns[0])
    candidates = tf.constant(columns[1:].reshape(-1, dim))
    keys = tf.range(1, len(candidates) + 1, dtype=tf.int64)
    with tf.GradientTape() as tape:
        tape.watch([queries, candidates])
        got = task(
            {"embeddings": tf.math.l2_normalize(queries, -1), "positive_keys": keys[:batch, None]},
            {"embeddings": tf.math.l2_normalize(candidates, -1), "keys": keys},
        )
    gradients = tape.gradient(got, [queries, candidates])
    np.testing.assert_allclose(got, expected.item(), rtol=1e-10)
    np.testing.assert_allclose(gradients[0], tensors[0].grad, atol=1e-10)
    theirs = np.concatenate([tensor.grad for tensor in tensors[1:]])
    np.testing.assert_allclose(gradients[1], theirs, atol=1e-10)


@pytest.mark.parametrize("dims", [None, (2, 5, 9)])
@pytest.mark.parametrize("negatives", [0, 1])
@pytest.mark.parametrize(
    ("strategy", "margin"), [("absolute", 0.0), ("absolute", 0.1), ("relative", 0.3)]
)
def test_guide_and_first_numbers(peer, strategy, margin, negatives, dims):
    """GISTEmbedLoss without its anchor and positive pairs, alone and inside MatryoshkaLoss."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[UNK]": 0})))

    class Given(torch.nn.Module):
        """Embeds a column as what stands in its features."""

        max_seq_length, device = 1, "cpu"

        def __init__(self, name):
            super().__init__()
            self.name, self.tokenizer = name, tokenizer

        def get_embedding_dimension(self):
            return 9

        def forward(self, features):
            return {**features, "sentence_embedding": features[self.name]}

    rng = np.random.default_rng(3)
    columns, guides = rng.normal(size=(2, 2 + negatives, 6, 9))
    guides[1] += guides[0]  # positives score high, but not always the highest
    tensors = [torch.tensor(column, requires_grad=True) for column in columns]
    features = [
        {"own": own, "guide": torch.tensor(guide)}
        for own, guide in zip(tensors, guides, strict=True)
    ]
    model, guide = Given("own"), Given("guide")
    loss = losses.GISTEmbedLoss(
        model, guide, temperature=0.1, margin_strategy=strategy, margin=margin,
        contrast_anchors=False, contrast_positives=False,
    )  # fmt: skip
    weights = None if dims is None else (0.5, 1.0, 2.0)
    if dims is not None:
        loss = losses.MatryoshkaLoss(model, loss, list(dims), list(weights))
    expected = loss(features, None)
    expected.backward()

    name = {"absolute": "score_margin", "relative": "relative_margin"}[strategy]
    documents = guides[1:].reshape(-1, 9)
    towers = types.SimpleNamespace(
        query_tower=lambda tokens, training: tf.constant(guides[0]),
        document_tower=lambda tokens, training: tf.constant(documents),
    )
    task = GuidedTask(towers, 0.1, **{name: margin})
    nothing = dict.fromkeys(
        f"other_{side}_{part}"
        for side in ("query", "document")
        for part in ("token_ids", "padding_mask")
    )
    of_queries, of_candidates = task.describe(nothing, chunk_size=None)
    if dims is not None:
        task = MatryoshkaTask(task, dims, weights)
    queries, candidates = tf.constant(columns[0]), tf.constant(columns[1:].reshape(-1, 9))
    keys = tf.range(1, len(candidates) + 1, dtype=tf.int64)
    with tf.GradientTape() as tape:
        tape.watch([queries, candidates])
        unit = [tf.math.l2_normalize(rows, -1) for rows in (queries, candidates)]
        got = task(
            {"embeddings": unit[0], "positive_keys": keys[:6, None], **of_queries},
            {"embeddings": unit[1], "keys": keys, **of_candidates},
        )
    gradients = tape.gradient(got, [queries, candidates])
    np.testing.assert_allclose(got, expected.item(), rtol=1e-9)
    np.testing.assert_allclose(gradients[0], tensors[0].grad, atol=1e-9)
    theirs = np.concatenate([tensor.grad for tensor in tensors[1:]])
    np.testing.assert_allclose(gradients[1], theirs, atol=1e-9)
