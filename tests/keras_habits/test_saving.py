"""`save`, `load_model`, `clone_model` and their kin, as users of Keras write them."""

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError, CorruptError
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.towers.weights import stored_dtype

TESTS = str(Path(__file__).parents[1])
TEXTS = ["red apple", "blue plum cat", "zzz", ""]
PAIRS = [(word, f"{word} {word}") for word in tiny.WORDS[:24]]
SCORED = [("red", "cat dog"), ("blue plum", "river, lake!")]
LOAD = """
import json, sys
import tfde, keras
import numpy as np
found = {}
for path, expected in json.loads(sys.argv[1]).items():
    model = keras.saving.load_model(path)
    if hasattr(model, "encode_queries"):
        values = model.encode_queries(expected["texts"])
    else:
        values = model.score([tuple(pair) for pair in expected["texts"]])
    same = np.array_equal(values, np.load(path + ".npy"))
    found[path] = [bool(same), model.fingerprint() == expected["fingerprint"]]
print(json.dumps(found))
"""


def whole_keras_model() -> keras.Model:
    ids, mask = (keras.Input((None,), dtype="int32", name=n) for n in ("token_ids", "padding_mask"))
    x = keras.layers.Embedding(120, 8)(ids)
    x = keras.layers.Conv1D(8, 3, padding="same", activation="tanh")(x)
    return keras.Model({"token_ids": ids, "padding_mask": mask}, x)


def many_models(tmp_path) -> dict:
    """Models that differ in what a file has to hold."""
    pieces = tfde.train_sentencepiece(tiny.document_texts(), tmp_path / "p", vocabulary_size=60)
    letters = ["<s>", "<pad>", "</s>", "<unk>", "\u0120", "ap", *"abcdefghijklmnopqrstuvwxyz"]
    bytes_of = BytePairTokenizer(letters, merges=[("a", "p")], special_tokens=letters[:4])
    prompts = tfde.TextConfig(query_prompt="red: ", document_prompt="blue ", buckets=(4, 8))
    dense = {"token_ids": np.zeros((1, 2), "int32"), "padding_mask": np.ones((1, 2), "int32")}
    hub = keras_hub.models.AlbertBackbone(
        vocabulary_size=120, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12,
        embedding_dim=8, max_sequence_length=32,
    )  # fmt: skip
    hub({**dense, "segment_ids": np.zeros((1, 2), "int32")})

    def towers(backbone, tokenizer, **options):
        return tfde.DualEncoder.from_backbone(backbone, tokenizer=tokenizer, seed=1, **options)

    small = tfde.BagOfWordsConfig(vocabulary_size=120, embedding_dim=8, hidden_dim=6)
    sharings = ("sde", "ade", "ade_ste", "ade_fte", "ade_spl")
    colbert = {"kind": "late_interaction", "embedding_dim": 4, "skip_punctuation": True}
    marks = tfde.WordPieceTokenizer([*tiny.VOCABULARY, ",", "!"])
    text = tfde.TextConfig(12, 16, query_mark="red", document_mark="blue", query_fill="[MASK]")
    matcher = tfde.Matcher.from_backbone(tiny.BERT, tokenizer=marks, seed=1, text=text, **colbert)
    return {
        **{name: tiny.dual_encoder(tiny.BERT, sharing=name, embedding_dim=4) for name in sharings},
        "prompts": towers(tiny.T5, tiny.tokenizer(), text=prompts, pooling=("first", "max")),
        "sentence_piece": towers(small, tfde.SentencePieceTokenizer.from_file(pieces)),
        "byte_pair": towers(small, bytes_of),
        "keras_hub_tokenizer": towers(
            small, keras_hub.models.BertTokenizer(vocabulary=tiny.VOCABULARY, lowercase=True)
        ),
        "bfloat16": towers(tiny.BERT, tiny.tokenizer(), dtype="bfloat16", embedding_dim=4),
        "keras_model": towers(whole_keras_model(), tiny.tokenizer()),
        "keras_hub_model": towers(hub, tiny.tokenizer(), sharing="ade"),
        "cross_encoder": tfde.CrossEncoder.from_backbone(
            tiny.BERT, tokenizer=tiny.tokenizer(), seed=1
        ),
        "matcher": matcher,
    }


def test_a_saved_model_is_the_same_in_a_fresh_process(tmp_path):
    expected = {}
    for name, model in many_models(tmp_path).items():
        path = str(tmp_path / f"{name}.keras")
        model.save(path)
        scores = not isinstance(model, tfde.DualEncoder)
        texts = SCORED if scores else TEXTS
        values = model.score(texts) if scores else model.encode_queries(texts)
        np.save(f"{path}.npy", values)
        expected[path] = {"texts": texts, "fingerprint": model.fingerprint()}
    command = [sys.executable, "-c", LOAD, json.dumps(expected)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {path: [True, True] for path in expected}


def compiled(**options):
    keras.utils.set_random_seed(1)
    model = tiny.dual_encoder(sharing="ade_spl", embedding_dim=4)
    task = tfde.MatryoshkaTask(tfde.RetrievalTask(0.1, bidirectional=True), [2, 4])
    model.compile(tfde.adamw(1e-2, decay_steps=100, warmup_steps=2), task=task, **options)
    return model


def test_fit_goes_on_with_the_optimizer_and_the_task(tmp_path):
    pairs = tfde.pairs(PAIRS, batch_size=8)
    whole, half = compiled(), compiled()
    whole.fit(pairs, epochs=4, verbose=0)
    half.fit(pairs, epochs=2, verbose=0)
    half.save(tmp_path / "half.keras")
    again = keras.saving.load_model(tmp_path / "half.keras")
    assert again.config.trained_dims == (2, 4)
    assert again.task.task.bidirectional
    assert again.optimizer.get_config() == half.optimizer.get_config()
    again.fit(pairs, epochs=4, initial_epoch=2, verbose=0)
    assert int(again.optimizer.iterations) == 12
    assert again.fingerprint() == whole.fingerprint()


@keras.saving.register_keras_serializable(package="test_saving")
def own_loss(query_embeddings, document_embeddings, batch):
    scores = tf.matmul(query_embeddings, document_embeddings, transpose_b=True)
    return -tf.reduce_mean(tf.linalg.diag_part(tf.nn.log_softmax(scores)))


def test_a_task_in_a_task_goes_on(tmp_path):
    losses = {
        "name": "categorical_crossentropy",
        "loss": keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum"),
        "task": tfde.ScoreTask("categorical_hinge", temperature=0.5),
        "function": own_loss,
        "sum": ["categorical_crossentropy", own_loss, tfde.RetrievalTask(0.2)],
    }
    model = tiny.dual_encoder(embedding_dim=4)
    for name, loss in losses.items():
        model.compile("sgd", task=tfde.MatryoshkaTask(loss, [2, 4], [0.5, 1.0]))
        found = model.evaluate(PAIRS, batch_size=8)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.save(tmp_path / f"{name}.keras")
        again = keras.saving.load_model(tmp_path / f"{name}.keras")
        assert again.evaluate(PAIRS, batch_size=8) == pytest.approx(found, rel=1e-6), name


def test_every_task_without_a_model_in_it_goes_on(tmp_path):
    tasks = [tfde.RetrievalTask(0.2, bidirectional=True), tfde.ScoreTask("mse"), own_loss]
    tasks += [tfde.MarginTask(temperature=0.5, pair_weight=2.0), tfde.MatryoshkaTask("mse", [2, 4])]
    model = tiny.dual_encoder(embedding_dim=4)
    for task in [*tasks, [tasks[0], tasks[3]]]:
        model.compile("adam", task=task)
        model.fit(PAIRS, batch_size=8, verbose=0)
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert type(again.task) is type(model.task)
        assert again.optimizer.iterations.numpy() == model.optimizer.iterations.numpy()


def test_weights_bring_the_optimizer_of_a_task_that_is_not_stored(tmp_path):
    models = [tiny.dual_encoder(), tiny.dual_encoder()]
    for model in models:
        model.compile("adam", task=tfde.GuidedTask(tiny.dual_encoder()))
    models[0].fit(PAIRS, batch_size=8, verbose=0)
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
    then = [model.fit(PAIRS, batch_size=8, verbose=0).history["loss"] for model in models]
    assert then[0] == pytest.approx(then[1], rel=1e-6)
    assert models[1].optimizer.iterations.numpy() == models[0].optimizer.iterations.numpy()


def test_what_keras_could_not_read_again_is_left_out_and_told(tmp_path):
    class Own(tfde.RetrievalTask):
        pass

    model = tiny.dual_encoder()
    for task in (Own(), tfde.GuidedTask(tiny.dual_encoder())):
        model.compile("adam", task=task)
        with pytest.warns(UserWarning, match="call `compile` after loading"):
            model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.fingerprint() == model.fingerprint()
        with pytest.raises(ConfigError, match="call `compile` before"):
            again.fit(PAIRS)


def test_what_does_not_train_does_not_train_after_loading(tmp_path):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4)
    model.towers.query_parts.token_embedder.trainable = False
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    names = [weight.path for weight in model.trainable_weights]
    assert [weight.path for weight in again.trainable_weights] == names
    assert 0 < len(names) < len(model.weights)


def test_the_tokenizer_is_an_asset_and_the_configuration_is_short(tmp_path):
    many = tfde.WordPieceTokenizer([*tiny.VOCABULARY, *(f"w{i}" for i in range(20_000))])
    size = tfde.BagOfWordsConfig(vocabulary_size=many.vocabulary_size, embedding_dim=2)
    model = tfde.DualEncoder.from_backbone(size, tokenizer=many)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert b"w19999" in file.read("assets/vocab.txt")
        # Keras prints all of it to who forgets `import tfde`.
        assert len(file.read("config.json")) < 3000
    model.save(tmp_path / "folder", zipped=False)
    again = keras.saving.load_model(tmp_path / "folder")
    assert again.fingerprint() == model.fingerprint()


def test_a_clone_has_the_architecture_and_the_tokenizer_and_weights_of_its_own():
    model = compiled()
    clone = keras.models.clone_model(model)
    assert repr(clone) == repr(model)
    assert clone.summary_of_sharing() == model.summary_of_sharing()
    assert clone.fingerprint() != model.fingerprint()
    assert clone.encode_queries(TEXTS).shape == (4, 4)
    clone.set_weights(model.get_weights())
    assert clone.fingerprint() == model.fingerprint()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert twin.fingerprint() == model.fingerprint()


def test_a_configuration_alone_says_where_the_tokenizer_is(tmp_path):
    config = json.loads(json.dumps(tiny.dual_encoder(tiny.BERT).get_config()))
    config["tokenizer"]["sha256"] = "0" * 64  # of no model of this process
    model = tfde.DualEncoder.from_config(config)
    tokens = {"token_ids": np.ones((1, 3), "int32"), "padding_mask": np.ones((1, 3), "int32")}
    assert model.query_tower(tokens).shape == (1, 8)
    for use in (lambda: model.encode_queries(TEXTS), lambda: model.save(tmp_path / "m.keras")):
        with pytest.raises(ConfigError, match=r"load_model` reads it from a \.keras file"):
            use()
    assert not list(tmp_path.iterdir())  # nothing half


def test_weights_alone(tmp_path):
    model = compiled()
    model.fit(PAIRS, batch_size=8, verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    other = keras.models.clone_model(model)
    other.load_weights(tmp_path / "w.weights.h5")
    assert other.fingerprint() == model.fingerprint()
    model.save_weights(tmp_path / "parts.weights.json", max_shard_size=0.000005)
    other = keras.models.clone_model(model)
    other.load_weights(tmp_path / "parts.weights.json")
    assert other.fingerprint() == model.fingerprint()


@pytest.mark.parametrize(
    ("saved", "built"), [("ade", "sde"), ("sde", "ade"), ("ade", "ade_ste"), ("sde", "wide")]
)
def test_weights_of_a_model_built_otherwise_change_nothing(tmp_path, saved, built):
    def model_of(kind, seed):
        options = {"embedding_dim": 5} if kind == "wide" else {"sharing": kind}
        return tiny.dual_encoder(**options, seed=seed)

    path = tmp_path / "w.weights.h5"
    model_of(saved, 1).save_weights(path)
    other = model_of(built, 2)
    before = other.fingerprint()
    with pytest.raises(ConfigError, match=r"w\.weights\.h5: must hold the weights of a model bui"):
        other.load_weights(path)
    assert other.fingerprint() == before
    other.load_weights(path, skip_mismatch=True)  # Keras' own way to read what fits
    alike = model_of(saved, 3)
    alike.load_weights(path)
    assert alike.fingerprint() == model_of(saved, 1).fingerprint()


FULL_DISK = """
import resource, sys, tfde, tiny
from tfde.training.checkpoint import Progress, save_checkpoint
model = tiny.dual_encoder(tiny.BERT)
model.compile("adam")
# Of all files those of weights alone are larger.
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
for number, save in enumerate((
    lambda path: model.save_to_preset(path),
    lambda path: tfde.export_sentence_transformers(model, path),
    lambda path: save_checkpoint(path, model, Progress("only")),
)):
    try:
        save(f"{sys.argv[1]}/out{number}")
    except OSError as error:
        print(error)
"""


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path):
    """HDF5 would end the process with a segmentation fault at its end."""
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": TESTS},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        assert "File too large" in line
        assert str(tmp_path) in line
    assert len(run.stdout.splitlines()) == 3
    assert "h5py" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_towers_alone_and_models_on_their_layers(tmp_path):
    model = tiny.dual_encoder(tiny.BERT, sharing="ade_spl", embedding_dim=4)
    ids, mask = model.preprocessor.documents(["", ""], TEXTS[:2])
    tokens = {"token_ids": ids, "padding_mask": mask}
    expected = model.document_tower(tokens).numpy()
    model.document_tower.save(tmp_path / "d.keras")
    again = keras.saving.load_model(tmp_path / "d.keras")
    np.testing.assert_array_equal(again(tokens), expected)
    config = model.document_tower.get_config()
    fresh = type(model.document_tower).from_config(config)
    fresh.set_weights(model.document_tower.get_weights())
    np.testing.assert_array_equal(fresh(tokens), expected)
    encoder = model.document_tower.get_layer("document_encoder")
    inside = keras.Model(model.document_tower.inputs, encoder.output)
    inside.save(tmp_path / "inside.keras")
    states = keras.saving.load_model(tmp_path / "inside.keras")(tokens)
    np.testing.assert_array_equal(states, inside(tokens))
    assert states.shape[-1] == 8


def test_trainers_write_the_model_that_they_train(tmp_path):
    from tfde.training.masked_language_model import MaskedLanguageModel

    model = tiny.dual_encoder(tiny.BERT)
    scorer = tfde.DualEncoderScorer(model)
    student = tfde.MatchTrainer(scorer, objective="ranking", group_size=2)
    with pytest.raises(ConfigError, match=r"no `predict`: write `trainer\.student\.predict"):
        student.predict([("a", "b")])
    for trainer in (MaskedLanguageModel(model), scorer, student):
        trainer.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.fingerprint() == model.fingerprint()
    with pytest.raises(ConfigError, match=r"copy `scorer\.model`"):
        keras.models.clone_model(scorer)
    model.set_engine("openvino")
    for trainer in (scorer, student):
        trainer.compile("adam")
        with pytest.raises(ConfigError, match="`engine` must be tensorflow in a model that trains"):
            trainer.fit([("red", "one", "two")] if trainer is student else [("red", "one", 1.0)])


def test_weights_bring_the_optimizer_of_a_scorer(tmp_path):
    rows = [(one, other, "yes") for one, other in zip(tiny.WORDS, tiny.WORDS[1:], strict=False)]
    rows += [(one, one, "no") for one in tiny.WORDS]
    models = [
        tfde.CrossEncoder.from_backbone(
            tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, labels=("no", "yes"), seed=1
        )
        for _ in range(2)
    ]
    for model in models:
        model.compile("adam")
    models[0].fit(rows, verbose=0)
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
    steps = [int(model.optimizer.iterations.numpy()) for model in models]
    assert steps[0] == steps[1] > 0


def test_load_takes_a_file_of_keras_too(tmp_path):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=4)
    model.save(tmp_path / "model.keras")
    again = tfde.DualEncoder.load(tmp_path / "model.keras")
    assert again.fingerprint() == model.fingerprint()
    half = tfde.DualEncoder.load(tmp_path / "model.keras", dtype="bfloat16")
    half.save_to_preset(tmp_path / "half")
    assert stored_dtype(tmp_path / "half" / "model.weights.h5") == "bfloat16"
    with pytest.raises(CorruptError, match=r"of class CrossEncoder is expected.*DualEncoder"):
        tfde.CrossEncoder.load(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"Invalid filepath extension"):
        model.save(tmp_path / "model")


def test_what_a_model_says_of_itself(tmp_path, capsys):
    model = tiny.dual_encoder(tiny.BERT, sharing="ade_ste", embedding_dim=4)
    model.summary()
    shown = capsys.readouterr().out
    for line in ("query_tower", "document_tower", "token_embedder", "shared", "separate"):
        assert line in shown
    assert [layer.name for layer in model.layers] == ["query_tower", "document_tower"]
    assert model.get_layer("query_tower") is model.query_tower
    assert f"{model.count_params():,}" in shown
    with pytest.raises(ImportError, match="You must install pydot"):
        keras.utils.plot_model(model.query_tower, to_file=tmp_path / "tower.png")


@pytest.mark.parametrize("dtype", ["mixed_float16", "float32"])
def test_an_optimizer_with_a_scaled_loss_is_loaded(tmp_path, dtype):
    model = tiny.dual_encoder(dtype=dtype)
    optimizer = keras.optimizers.Adam()
    if dtype == "float32":  # as asked for, where a policy does not by itself
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer)
    model.fit([("red apple", "a fruit"), ("blue sky", "the air")], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.LossScaleOptimizer
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
    assert float(loaded.optimizer.dynamic_scale) == float(model.optimizer.dynamic_scale)
    loaded.fit([("red apple", "a fruit"), ("blue sky", "the air")], verbose=0)


def test_metrics_that_an_earlier_version_took_are_left_out_and_told(tmp_path, monkeypatch):
    model = tiny.dual_encoder()
    with monkeypatch.context() as earlier:
        earlier.setattr("tfde.towers.pair_steps.check_rankings", lambda *_: None)
        model.compile("adam", metrics=["mse"], loss=tfde.RetrievalTask(temperature=0.5))
    model.fit([("red apple", "a fruit"), ("blue sky", "the air")], verbose=0)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="without the metrics that it was saved with: `metrics`"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.task.temperature == 0.5
    assert int(loaded.optimizer.iterations) == 1


@keras.saving.register_keras_serializable("test_saving")
class OwnEncoder(tfde.DualEncoder):
    """A class of somebody's own."""


def test_a_class_of_ones_own_is_read_as_it_and_as_ours(tmp_path):
    own = OwnEncoder.from_backbone(tiny.BAG_OF_WORDS, tokenizer=tiny.tokenizer())
    own.save_to_preset(tmp_path / "model")
    own.save(tmp_path / "model.keras")
    expected = own.encode_queries(["red apple"])
    for loaded in (
        OwnEncoder.from_preset(tmp_path / "model"),
        keras.saving.load_model(tmp_path / "model.keras"),
        tfde.DualEncoder.load(tmp_path / "model"),
    ):
        np.testing.assert_array_equal(loaded.encode_queries(["red apple"]), expected)
    assert type(OwnEncoder.from_preset(tmp_path / "model")) is OwnEncoder
    assert type(tfde.DualEncoder.load(tmp_path / "model")) is tfde.DualEncoder
    rule = r"Received: OwnEncoder, which keras\.saving\.load_model reads where it is registered"
    with pytest.raises(CorruptError, match=rule):
        tfde.DualEncoder.load(tmp_path / "model.keras")
