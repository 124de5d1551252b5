"""Our towers and our loss against sentence-transformers: same weights, texts and embeddings."""

import gzip
import json
import random

import numpy as np
import pytest
import tensorflow as tf

from tfde.tasks.retrieval_task import RetrievalTask
from tfde.towers.dual_encoder import DualEncoder

pytestmark = pytest.mark.peers

TRAPS = [
    "",
    " ",
    "?",
    "wait… ﬁne ﬂow ½ ② ™",
    "İstanbul and CRÈME BRÛLÉE",
    "日本語テキスト 中文，标点。",
    "say [MASK] and [SEP] here",
    "👩‍👩‍👧‍👦 family",
]


@pytest.fixture(scope="module")
def peer():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def texts(data_dir):
    """200 texts: traps, sentences, paragraphs in eleven languages, and some beyond 256 tokens."""
    rng = random.Random(3)
    sentences = corpus(data_dir / "squad_sent", rng, 80)
    paragraphs = corpus(data_dir / "xquad_multi", rng, 80)
    english = corpus(data_dir / "squad", rng, 64)
    joined = [" ".join(english[i : i + 4]) for i in range(0, 64, 2)]
    texts = [*TRAPS, *sentences, *paragraphs, *joined]
    assert len(texts) == 200
    return texts


def corpus(directory, rng, count):
    with gzip.open(directory / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    return [json.loads(line)["text"] for line in rng.sample(lines, count)]


def test_embeddings_of_minilm(peer, minilm, texts):
    theirs = peer.SentenceTransformer(str(minilm), device="cpu")
    lengths = [len(theirs.tokenizer(text)["input_ids"]) for text in texts]
    assert min(lengths) == 2
    assert sum(length > 256 for length in lengths) >= 10
    ours = DualEncoder.load(minilm)
    expected = theirs.encode(texts, batch_size=32, normalize_embeddings=True)
    got = ours.encode_documents(texts, batch_size=32)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # Queries are cut where the library cuts them, too.
    np.testing.assert_allclose(ours.encode_queries(texts), got, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_directories_as_the_library_writes_them_today(peer, tmp_path, pooling):
    """No vocab.txt, new class paths in modules.json, `pooling_mode` in one word."""
    transformers = pytest.importorskip("transformers")
    import torch

    words = ["red", "green", "blue", "apple", "pear", "##s", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    source = tmp_path / "bert"
    torch.manual_seed(1)
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=24,
            max_position_embeddings=32,
            initializer_range=0.5,
        )
    ).save_pretrained(source)
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(source)
    from sentence_transformers.sentence_transformer import modules

    transformer = modules.Transformer(str(source), max_seq_length=12)
    pool = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    theirs = peer.SentenceTransformer(modules=[transformer, pool, modules.Normalize()])
    theirs.save(str(tmp_path / "model"))
    assert not list((tmp_path / "model").rglob("vocab.txt"))
    texts = ["", "red apples", "a green pear and a blue one", " ".join(["apple"] * 40)]
    expected = theirs.encode(texts)
    got = DualEncoder.load(tmp_path / "model").encode_documents(texts)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("negatives", [0, 2])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_loss_and_gradients(peer, temperature, negatives, bidirectional):
    """Cosine similarity of embeddings of any length, scale = 1 / temperature."""
    import torch

    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
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
            tf.math.l2_normalize(queries, -1),
            tf.math.l2_normalize(candidates, -1),
            candidate_keys=keys,
            positive_keys=keys[:batch, None],
        )
    gradients = tape.gradient(got, [queries, candidates])
    np.testing.assert_allclose(got, expected.item(), rtol=1e-10)
    np.testing.assert_allclose(gradients[0], tensors[0].grad, atol=1e-10)
    theirs = np.concatenate([tensor.grad for tensor in tensors[1:]])
    np.testing.assert_allclose(gradients[1], theirs, atol=1e-10)
