"""Trains on one device and on two logical ones; prints what came out, one JSON line a case.

Its arguments are cases; the last may be `refusals`, which prints what is refused.

A program: logical devices can be made only before TensorFlow starts.
"""

import dataclasses
import json
import os
import sys
from contextlib import nullcontext

import numpy as np
import tensorflow as tf
import tiny

import tfde
from tfde.config.backbones import BackboneConfig
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.labelled import LabelledBatches, LabelledPairs
from tfde.matching.match_trainer import MatchTrainer
from tfde.matching.matcher import Matcher
from tfde.tasks.adapters import SumTask
from tfde.training.masked_language_model import MaskedLanguageModel
from tfde.types import Document, Pair, Query

STEPS = 3
CASES = {
    "plain": {},
    "adamw": {"adamw": True},
    "hard_negatives": {"negatives": 2},
    "bidirectional": {"bidirectional": True},
    "sampling_correction": {"sampling_correction": True},
    "anchored": {"anchored": True, "negatives": 2},
    "guided": {"guided": True, "bidirectional": True, "negatives": 2},
    "matryoshka": {"dims": (2, 6)},
    "all_in_chunks": {
        "backbone": dataclasses.replace(tiny.T5, num_layers=1, dropout=0.0),
        "negatives": 2,
        "bidirectional": True,
        "sampling_correction": True,
        "chunk_size": 3,
        "guided": True,
        "dims": (3, 6),
    },
    "lora": {"backbone": dataclasses.replace(tiny.BERT, dropout=0.0), "lora": True},
    "own_losses": {"own_losses": True, "negatives": 2},
    "own_losses_in_chunks": {"own_losses": True, "chunk_size": 3},
    "masked_lm": {"backbone": dataclasses.replace(tiny.BERT, dropout=0.0), "masked_lm": True},
}


def some_pairs() -> list[Pair]:
    """48 pairs, one document in many, so that copies and known positives stand in every batch."""
    rng = np.random.default_rng(5)
    documents = [
        Document(f"d{i}", "", text) for i, text in enumerate(tiny.document_texts()[:300:10])
    ]
    pairs = []
    for i in range(48):
        own = 0 if i % 4 == 0 else i % 30
        # Long and short texts, so that the replicas pad to different lengths.
        words = documents[own].text.split()[:2] * (1 if i % 3 else 3)
        others = [documents[j] for j in rng.permutation(30) if j != own][: i % 3]
        known = (f"d{own}", f"d{(own + i) % 30}", f"d{(own + 7) % 30}")
        pairs.append(
            Pair(Query(f"q{i}", " ".join(words)), documents[own], tuple(others), known[: 1 + i % 3])
        )
    return pairs


def train(
    strategy: tf.distribute.Strategy | None,
    *,
    backbone: BackboneConfig = tiny.BAG_OF_WORDS,
    negatives: int = 0,
    bidirectional: bool = False,
    sampling_correction: bool = False,
    chunk_size: int | None = None,
    adamw: bool = False,
    masked_lm: bool = False,
    guided: bool = False,
    anchored: bool = False,
    dims: tuple[int, ...] = (),
    lora: bool = False,
    own_losses: bool = False,
) -> dict:
    """Trains the same small model; returns the losses, accuracies and weights."""
    import keras

    with strategy.scope() if strategy else nullcontext():
        model = tiny.dual_encoder(backbone, sharing="ade_spl", embedding_dim=6)
        if lora:
            model.enable_lora(2, target="all")
        # SGD clips every step, and says what a gradient is, not only what sign it has.
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.2)
        if adamw:
            optimizer = tfde.adamw(0.01, decay_steps=10, clip_norm=0.2, start_decay=0.5)
        if masked_lm:
            model = MaskedLanguageModel(model, seed=4)
            model._head.choose = every_third_token
        task = task_of(
            bidirectional=bidirectional,
            sampling_correction=sampling_correction,
            guided=guided,
            anchored=anchored,
            dims=dims,
        )
        options = {"task": task}
        if own_losses:
            options = {**losses_of_others(), "metrics": measures_of_others()}
        model.compile(optimizer, chunk_size=chunk_size, **options)
    batches = PairDataset(some_pairs(), batch_size=12, seed=2, negatives_per_query=negatives)
    accuracy = "masked_token_accuracy" if masked_lm else "in_batch_accuracy"
    if own_losses:
        accuracy = "top_3"
    seen: dict[str, list[float]] = {"loss": [], accuracy: []}
    if own_losses and len(model.metrics) > 3:
        seen["rr"] = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for name, values in seen.items():
                values.append(float(logs[name]))
            self.model.reset_metrics()

    before = [weight.numpy() for weight in model.weights]
    model.fit(batches, steps=STEPS, callbacks=[Record()], verbose=0)
    after = {weight.path: weight.numpy() for weight in model.weights}
    moved = max(float(abs(a - b).max()) for a, b in zip(after.values(), before, strict=True))
    accuracies = [*seen[accuracy], *seen.get("rr", [])]
    kept = {"loss": seen["loss"], "accuracy": accuracies, "weights": after, "moved": moved}
    return kept | {"texts": [dataclasses.astuple(part) for part in model.trained_texts()]}


def task_of(*, guided: bool, anchored: bool, dims: tuple[int, ...], **options: bool) -> tfde.Task:
    """Returns the loss; its guide or anchor is a random model of another kind."""
    task: tfde.Task = tfde.RetrievalTask(0.1, **options)
    if anchored:
        anchor = tiny.dual_encoder(dataclasses.replace(tiny.BERT, dropout=0.0), seed=8)
        return SumTask([task, tfde.AnchorTask(anchor, embedding_weight=0.0, score_weight=1.0)])
    if guided:
        guide = tiny.dual_encoder(dataclasses.replace(tiny.BERT, dropout=0.0), seed=8)
        task = tfde.GuidedTask(guide, 0.1, relative_margin=0.01, **options)
    return tfde.MatryoshkaTask(task, dims, [0.5, 1.0]) if dims else task


def losses_of_others() -> dict:
    """Returns a task of TFRS', a Keras loss that is a sum, and a function, with weights."""
    import keras

    from tfde.environment import import_recommenders

    tfrs, _ = import_recommenders()
    task = tfrs.tasks.Retrieval(temperature=0.2, remove_accidental_hits=True, num_hard_negatives=3)
    squares = keras.losses.MeanSquaredError(reduction="sum")
    return {"loss": [task, squares, both_ways], "loss_weights": [0.1, 0.5, 2.0]}


def both_ways(
    query_embeddings: tf.Tensor, document_embeddings: tf.Tensor, batch: dict
) -> tf.Tensor:
    """A loss of a whole batch, no mean over queries: columns have their own softmax too."""
    scores = tf.matmul(query_embeddings, document_embeddings, transpose_b=True)
    scores = tf.where(batch["allowed"], scores / 0.2, -1e9)
    rows = tf.linalg.diag_part(tf.nn.log_softmax(scores, axis=1))
    columns = tf.linalg.diag_part(tf.nn.log_softmax(scores, axis=0))
    return -tf.reduce_mean(rows) * tf.math.exp(-tf.reduce_mean(columns))


def measures_of_others() -> list:
    """Returns measures of Keras, and of keras-rs where it is installed."""
    import importlib.util

    import keras

    measures = [keras.metrics.TopKCategoricalAccuracy(3, name="top_3")]
    if importlib.util.find_spec("keras_rs"):
        import keras_rs

        measures.append(keras_rs.metrics.MeanReciprocalRank(name="rr"))
    return measures


def every_third_token(token_ids: tf.Tensor, padding_mask: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Chooses what to mask by the token, for draws would differ from device to device."""
    places = tf.broadcast_to(tf.range(tf.shape(token_ids)[1]), tf.shape(token_ids))
    chosen = (padding_mask > 0) & (token_ids % 3 == 0)
    shown = tf.where(chosen, tiny.VOCABULARY.index("[MASK]"), token_ids)
    return places, tf.cast(chosen, tf.float32), shown


def refusals(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """Returns what is said of what replicas cannot do."""
    from tfde.errors import ConfigError
    from tfde.training.distribution import open_strategy

    pairs = some_pairs()[:8]
    data = PairDataset
    with strategy.scope():
        model = tiny.dual_encoder()
        model.compile("sgd")
        scorer = Matcher.from_backbone(tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer())
        scorer.compile("sgd")
    rows = [(pair.query.text, pair.positive.text, 1) for pair in pairs]
    columns = [pair.query.text for pair in pairs[:7]], [pair.positive.text for pair in pairs[:7]]
    strings = tf.data.Dataset.from_tensor_slices(columns).batch(4)
    attempts = {
        "batch_size": lambda: model.fit(data(pairs, batch_size=3)),
        "groups": lambda: rank_groups(strategy, group_size=3, batch_size=9),
        "whole_groups": lambda: rank_groups(strategy, group_size=3, batch_size=6, held_out=4),
        "held_out_groups": lambda: rank_groups(strategy, group_size=3, batch_size=6, held_out=5),
        "last_batch": lambda: model.fit(data(pairs[:7], batch_size=4, shuffle=False)),
        "held_out": lambda: scorer.fit(rows, batch_size=4, validation_data=rows[:3]),
        "measured": lambda: scorer.evaluate(rows[:7], batch_size=4),
        "one_batch": lambda: scorer.train_on_batch(rows[:5]),
        "batches": lambda: model.fit(strings, verbose=0),
        "measured_batches": lambda: model.evaluate(strings),
        "jit_compile": lambda: model.compile("sgd", jit_compile=True),
        "metrics": lambda: model.compile("sgd", metrics=measures_of_others()),
        "late": lambda: open_strategy("multi_worker", timeout_s=5),
    }
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1"] * 2}, "task": task})
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ConfigError as error:
            said[name] = str(error)
    return said


def rank_groups(
    strategy: tf.distribute.Strategy, *, group_size: int, batch_size: int, held_out: int = 0
) -> None:
    """Trains a matcher on groups of pairs, or measures it on some that are held out."""
    count = 2 * batch_size
    labels = np.tile(np.eye(1, group_size, dtype=np.float32)[0], count // group_size)
    words = (tiny.WORDS * count)[:count]
    pairs = LabelledPairs(words, [""] * count, words, labels, ("0", "1"), group_size)
    with strategy.scope():
        student = Matcher.from_backbone(tiny.BERT, kind="siamese", tokenizer=tiny.tokenizer())
        trainer = MatchTrainer(student, objective="ranking", group_size=group_size)
        trainer.compile("sgd")
    if held_out:
        groups = [tuple(tiny.WORDS[: group_size + 1])] * held_out
        trainer.evaluate(groups, batch_size=batch_size)
        return
    trainer.fit(LabelledBatches(pairs, batch_size=batch_size, seed=1), steps=1, verbose=0)


def main() -> None:
    """Prints one line a case."""
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for name in sys.argv[1:]:
        if name == "refusals":
            line = {"case": name, "said": refusals(strategy)}
            sys.stdout.write(json.dumps(line) + "\n")
            continue
        one = train(None, **CASES[name])
        two = train(strategy, **CASES[name])
        pairs = zip(one["weights"].values(), two["weights"].values(), strict=True)
        line = {
            "case": name,
            "one": {key: one[key] for key in ("loss", "accuracy")},
            "two": {key: two[key] for key in ("loss", "accuracy")},
            "moved": one["moved"],
            "texts": [one["texts"], two["texts"]],
            "difference": max(float(abs(a - b).max()) for a, b in pairs),
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
