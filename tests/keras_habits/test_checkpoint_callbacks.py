"""Keras' callbacks that keep a model while it trains; a run that is killed and started again."""

import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.data.pairs.labelled import LabelledBatches, LabelledPairs
from tfde.errors import ConfigError

PAIRS = [(word, f"{word} {word}") for word in tiny.WORDS[:24]]
EPOCHS = 3


def model_of():
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4)  # with dropout
    model.compile(tfde.adamw(1e-2, decay_steps=100))
    return model


class Stop(keras.callbacks.Callback):
    """Ends a run in the middle of a step's callbacks."""

    def __init__(self, after, how):
        super().__init__()
        self.left, self.how = after, how

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.how()


class CutError(Exception):
    """What `Stop` raises in place of a signal."""


def cut():
    raise CutError


def kill(pairs_per_batch=4):
    """The run of a process of its own: 6 steps an epoch, killed after step 9."""
    import os

    by_epoch, by_steps = (
        keras.callbacks.BackupAndRestore(name, save_freq=freq)
        for name, freq in (("by_epoch", "epoch"), ("by_steps", 4))
    )
    stop = Stop(9, lambda: os.kill(os.getpid(), signal.SIGKILL))
    model_of().fit(
        PAIRS, batch_size=pairs_per_batch, epochs=EPOCHS, callbacks=[by_epoch, by_steps, stop],
        verbose=0,
    )  # fmt: skip


@pytest.mark.kill
def test_a_killed_run_goes_on_at_its_step(tmp_path):
    here = Path(__file__)
    code = f"import sys; sys.path[:0] = {[str(here.parent), str(here.parents[1])]!r}\n"
    code += f"import {here.stem} as script; script.kill()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    whole = model_of()
    history = whole.fit(PAIRS, batch_size=4, epochs=EPOCHS, verbose=0)
    # Keras notes the epoch alone beside the weights: epoch 1; after step 8 it is 2 batches in.
    for name, taken in (("by_epoch", 12), ("by_steps", 10)):
        backup = keras.callbacks.BackupAndRestore(tmp_path / name)
        steps = Stop(-1, cut)
        model = model_of()
        again = model.fit(PAIRS, batch_size=4, epochs=EPOCHS, callbacks=[backup, steps], verbose=0)
        assert -1 - steps.left == taken, name
        assert again.epoch == [1, 2]
        for key in ("loss", "in_batch_accuracy"):
            np.testing.assert_allclose(again.history[key], history.history[key][1:], rtol=1e-6)
        assert model.fingerprint() == whole.fingerprint(), name
        assert not (tmp_path / name).exists()  # done, so Keras removes it


def cut_and_go_on(build, fit, directory, *, after, save_freq):
    """Returns the model of a run that is cut, and goes on in another object."""
    for stop in (Stop(after, cut), None):
        backup = keras.callbacks.BackupAndRestore(directory, save_freq=save_freq)
        model = build()
        try:
            fit(model, callbacks=[backup, stop] if stop else [backup])
        except CutError:
            continue
    return model


@pytest.mark.kill
@pytest.mark.parametrize(
    ("after", "options"),
    [(6, {"epochs": 2}), (8, {"steps": 10}), (5, {"steps_per_epoch": 5, "epochs": 2})],
)
def test_data_of_unknown_length_and_steps_in_place_of_epochs(tmp_path, after, options):
    strings = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*PAIRS, strict=True))))

    def build():
        keras.utils.set_random_seed(1)
        model = tiny.dual_encoder()
        model.compile(keras.optimizers.Adam(0.01))
        return model

    def fit(model, callbacks=()):
        return model.fit(strings, batch_size=4, callbacks=callbacks, verbose=0, **options)

    fit(whole := build())
    broken = cut_and_go_on(build, fit, tmp_path / "backup", after=after, save_freq=3)
    assert broken.fingerprint() == whole.fingerprint()


def test_training_on_labelled_pairs_goes_on_too(tmp_path):
    texts = [query for query, _ in PAIRS]
    labels = np.arange(len(texts), dtype=np.float32) % 2
    pairs = LabelledPairs(texts, [""] * len(texts), texts[::-1], labels, ("0", "1"))
    batches = LabelledBatches(pairs, batch_size=6, seed=3)

    def build():
        keras.utils.set_random_seed(1)
        student = tfde.CrossEncoder.from_backbone(
            tiny.BERT, num_labels=2, tokenizer=tiny.tokenizer(), seed=1
        )
        trainer = tfde.MatchTrainer(student)
        trainer.compile(tfde.adamw(1e-2, decay_steps=20))
        return trainer

    def fit(trainer, callbacks=()):
        return trainer.fit(batches, steps=7, callbacks=callbacks, verbose=0)

    fit(whole := build())
    broken = cut_and_go_on(build, fit, tmp_path / "backup", after=5, save_freq=2)
    assert broken.student.fingerprint() == whole.student.fingerprint()


def test_weights_that_were_loaded_before_do_not_move_the_data(tmp_path):
    model = model_of()
    model.fit(PAIRS, batch_size=4, epochs=2, verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    fresh = model_of()
    fresh.load_weights(tmp_path / "w.weights.h5")
    assert int(fresh.optimizer.iterations.numpy()) == int(model.optimizer.iterations.numpy()) > 0
    assert len(fresh.fit(PAIRS, batch_size=4, epochs=2, verbose=0).history["loss"]) == 2


def test_the_best_model_and_its_weights_are_kept(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=20)
    validation = tfde.RetrievalValidation(
        tfde.ValidationConfig(dataset=str(data), every_steps=100, measures=("RR",))
    )
    best, weights = tmp_path / "best.keras", tmp_path / "best.weights.h5"
    follow = {"monitor": "val_RR", "mode": "max", "save_best_only": True}
    callbacks = [
        validation,
        keras.callbacks.ModelCheckpoint(best, **follow),
        keras.callbacks.ModelCheckpoint(weights, save_weights_only=True, **follow),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=4),
    ]
    model = model_of()
    rule = "a list with RetrievalValidation, which measures val_RR, first. Received: 'ModelCh"
    with pytest.raises(ConfigError, match=rule):
        model.fit(PAIRS, batch_size=4, callbacks=callbacks[::-1], verbose=0)
    history = model.fit(PAIRS, batch_size=4, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    values = history.history["val_RR"]
    kept = keras.saving.load_model(best)
    assert validation(kept)["RR"] == max(values)
    again = keras.models.clone_model(model)
    again.compile(tfde.adamw(1e-2, decay_steps=100))
    again.load_weights(weights)
    assert again.fingerprint() == kept.fingerprint()
    names = sorted(path.name for path in tmp_path.glob("*-*.keras"))
    assert names == ["1-4.keras", "2-2.keras", "2-6.keras", "3-4.keras"]
    assert int(keras.saving.load_model(tmp_path / "2-2.keras").optimizer.iterations) == 8


def test_a_file_is_whole_or_the_one_before(tmp_path, monkeypatch):
    model = model_of()
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["m.keras", "m.weights.h5"]

    def disk_is_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tfde.DualEncoder, "save_own_variables", disk_is_full)
    for save, name in ((model.save, "m.keras"), (model.save_weights, "m.weights.h5")):
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class Recorded(keras.utils.PyDataset):
    """Batches of pairs, and in which order they were taken."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.taken.append(index)
        rows = PAIRS[4 * index : 4 * index + 4]
        return [query for query, _ in rows], [document for _, document in rows]


@pytest.mark.parametrize("of", [Recorded, lambda: PAIRS], ids=["PyDataset", "list"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_run_that_goes_on_has_the_order_in_which_it_began(tmp_path, of, earlier):
    """In a later epoch, and where it was not the first run of its model."""

    def start():
        model = model_of()
        model.fit(PAIRS, batch_size=8, epochs=earlier, verbose=0) if earlier else None
        return model, of(), {} if of is Recorded else {"batch_size": 4}

    model, x, options = start()
    model.fit(x, epochs=EPOCHS, verbose=0, **options)
    whole = model.fingerprint()
    model, other, options = start()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "b", save_freq=2)
    with pytest.raises(CutError):
        model.fit(other, epochs=EPOCHS, callbacks=[backup, Stop(9, cut)], verbose=0, **options)
    again = model_of()  # without the earlier run, which the backup has
    again.fit(other, epochs=EPOCHS, callbacks=[backup], verbose=0, **options)
    assert again.fingerprint() == whole


def test_a_fit_that_goes_on_at_an_epoch_has_the_order_of_the_last():
    found = []
    for epochs in ([3], [1, 3]):
        model = model_of()
        model.fit(PAIRS[:8], batch_size=4, verbose=0)
        for number, last in enumerate(epochs):
            first = epochs[number - 1] if number else 0
            model.fit(PAIRS, batch_size=5, epochs=last, initial_epoch=first, verbose=0)
        found.append(model.fingerprint())
    assert found[0] == found[1]
