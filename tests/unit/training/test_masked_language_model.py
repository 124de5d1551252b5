"""Masked language modelling: what is masked, what is learned, what trains."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from tfde.config.training import SourceConfig, StageConfig
from tfde.data.pairs.dataset import pairs
from tfde.errors import ConfigError
from tfde.storage.json_lines import write_json_lines
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.training.masked_language_model import MaskedLanguageModel, MaskedTokenHead
from tfde.training.optimizers import adamw

MASK = tiny.VOCABULARY.index("[MASK]")
VOCABULARY = 120


def head(seed=1):
    return MaskedTokenHead(tiny.tokenizer(), 8, vocabulary_size=VOCABULARY, seed=seed)


def test_how_many_and_which_tokens_are_chosen():
    rng = np.random.default_rng(0)
    lengths = np.array([3, 10, 22, 100] * 200)
    mask = (np.arange(100) < lengths[:, None]).astype(np.int32)
    ids = rng.integers(5, VOCABULARY, mask.shape).astype(np.int32)
    ids[:, 0] = tiny.tokenizer().start_id
    ids[np.arange(len(ids)), lengths - 1] = tiny.tokenizer().end_id
    places, chosen, shown = (x.numpy() for x in head().choose(ids * mask, mask, training=True))
    # 15 % of the tokens but [CLS] and [SEP]: of 1, 8, 20 and 98 that is 0.15, 1.2, 3 and 14.7.
    assert set(map(tuple, chosen.sum(1).reshape(-1, 4))) == {(1, 1, 3, 15)}
    for row in range(len(ids)):
        here = places[row][chosen[row] > 0]
        assert len(set(here)) == len(here)
        assert (here > 0).all()
        assert (here < lengths[row] - 1).all()
        others = np.setdiff1d(np.arange(100), here)
        np.testing.assert_array_equal(shown[row][others], (ids * mask)[row][others])
    # Of the chosen, 80 % become the mask; of the 10 % replaced, one in 120 by the token itself.
    before, after = (np.take_along_axis(x, places, 1)[chosen > 0] for x in (ids * mask, shown))
    assert (after == MASK).mean() == pytest.approx(0.8, abs=0.03)
    assert (after == before).mean() == pytest.approx(0.1, abs=0.02)
    # Every place is as likely.
    longest = np.bincount(places[3::4][chosen[3::4] > 0], minlength=100)[1:99]
    assert longest.min() > 10
    assert longest.mean() == pytest.approx(200 * 15 / 98)


def test_nothing_to_choose():
    ids = np.array([[tiny.tokenizer().start_id, tiny.tokenizer().end_id, 0]], np.int32)
    _, chosen, shown = head().choose(ids, np.array([[1, 1, 0]], np.int32), training=True)
    assert not chosen.numpy().any()
    np.testing.assert_array_equal(shown, ids)


def test_the_padding_token_stands_in_where_there_is_no_mask(tmp_path):
    texts = [f"{first} {second}" for first in tiny.WORDS for second in tiny.WORDS]
    path = train_sentencepiece(texts, tmp_path / "v.model", vocabulary_size=60)
    tokenizer = SentencePieceTokenizer.from_file(path)
    layer = MaskedTokenHead(tokenizer, 8, vocabulary_size=60, seed=1)
    ids = np.full((4, 20), 9, np.int32)
    shown = layer.choose(ids, np.ones_like(ids), training=True)[2].numpy()
    assert tokenizer.pad_id in shown


def test_the_mask_token_may_stand_anywhere():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(1100)), "[MASK]", "end"]
    layer = MaskedTokenHead(WordPieceTokenizer(words), 8, vocabulary_size=len(words), seed=1)
    ids = np.full((4, 20), 9, np.int32)
    assert words.index("[MASK]") in layer.choose(ids, np.ones_like(ids), training=True)[2].numpy()


@pytest.mark.parametrize(
    ("backbone", "sharing", "dtype"),
    [(tiny.BERT, "sde", None), (tiny.T5, "ade_spl", "mixed_bfloat16")],
)
def test_it_learns_and_leaves_the_projection(tmp_path, backbone, sharing, dtype):
    """Documents are two words and a third that follows from the first: it can be found."""
    data = pairs(tiny.write_dataset(tmp_path / "data"), batch_size=32)
    model = tiny.dual_encoder(backbone, sharing=sharing, embedding_dim=6, dtype=dtype, dropout=0.0)
    before = {k: np.array(w) for k, w in model.towers.named_weights().items()}
    trainer = MaskedLanguageModel(model, seed=2)
    trainer.compile(adamw(0.02, decay_steps=None))
    history = trainer.fit(data, steps=60, verbose=0).history
    first = trainer.fit(data, steps=1, verbose=0).history["loss"][0]
    again = MaskedLanguageModel(tiny.dual_encoder(backbone, seed=3), seed=2)
    again.compile(adamw(1e-6, decay_steps=None))
    fresh = again.fit(data, steps=1, verbose=0).history["loss"][0]
    assert fresh == pytest.approx(np.log(VOCABULARY), rel=0.2)  # no better than a guess
    assert first < 0.8 * fresh
    assert 0 <= history["masked_token_accuracy"][0] <= 1
    for name, weight in model.towers.named_weights().items():
        trained = not np.array_equal(before[name], np.array(weight))
        assert trained is (not name.startswith("projection")), name


def test_gradients_are_those_of_the_masked_tokens_alone():
    """The loss by hand: the mean over the chosen places of -log softmax at the true token."""
    model = tiny.dual_encoder(tiny.BERT, dropout=0.0)
    trainer = MaskedLanguageModel(model, seed=4)
    rng = np.random.default_rng(1)
    ids = rng.integers(5, VOCABULARY, (6, 12)).astype(np.int32)
    mask = np.ones_like(ids)
    parts = model.towers.query_parts
    losses, _, count = trainer._sums(parts, {"token_ids": ids, "padding_mask": mask}, training=True)
    layer = head(seed=4)  # the same draws
    layer.build(None)
    places, chosen, shown = layer.choose(ids, mask, training=True)
    for source, target in zip(trainer._head.weights, layer.weights, strict=True):
        target.assign(source)
    hidden = parts.encoder(parts.token_embedder(shown), mask).numpy()
    table = parts.token_embedder.token_table.numpy().astype(np.float64)
    kernel, bias, gamma, beta, output = (w.numpy().astype(np.float64) for w in layer.weights)
    expected, number = 0.0, 0
    for row in range(6):
        for place, weight in zip(places[row].numpy(), chosen[row].numpy(), strict=True):
            if not weight:
                continue
            x = hidden[row, place].astype(np.float64) @ kernel + bias
            x = np.array([v * 0.5 * (1 + tf.math.erf(v / np.sqrt(2)).numpy()) for v in x])
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-6) * gamma + beta
            logits = table @ x + output
            expected += np.log(np.exp(logits).sum()) - logits[ids[row, place]]
            number += 1
    assert float(count) == number
    assert float(losses) == pytest.approx(expected, rel=1e-4)


def test_impossible():
    with pytest.raises(ConfigError, match=r"`objective` masked_lm needs a Transformer.*BagOfWords"):
        MaskedLanguageModel(tiny.dual_encoder())
    for option in ({"chunk_size": 4}, {"freeze": ("projection",)}):
        stage = StageConfig("x", steps=1, objective="masked_lm", **option)
        with pytest.raises(ConfigError, match=rf"`pre\.{next(iter(option))}` must be .*masked_lm"):
            stage.check("pre")
    StageConfig(mixture=(SourceConfig("x"),), steps=1, objective="masked_lm").check("pre")


def test_a_batch_with_nothing_to_mask_changes_nothing(tmp_path):
    nothing = "\u200b"  # the tokenizer keeps none of it
    write_json_lines(tmp_path / "p.jsonl", [{"query": nothing, "positive": nothing}])
    dual_encoder = tiny.dual_encoder(tiny.BERT)
    model = MaskedLanguageModel(dual_encoder, seed=0)
    model.compile(keras.optimizers.SGD(0.1))
    before = [weight.numpy() for weight in model.trainable_weights]
    history = model.fit(pairs(tmp_path / "p.jsonl", batch_size=1), steps=1, verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
    assert set(history.history) >= {"loss", "masked_token_accuracy"}
    assert "in_batch_accuracy" not in history.history
