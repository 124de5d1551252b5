"""Training with labels, VIRT and teachers' logits; what of it the student keeps, and refuses."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.config.model import PairTextConfig, TextConfig
from tfde.data.pairs.labelled import LabelledBatches, LabelledPairs
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.match_loss import logit_loss, task_loss
from tfde.matching.match_trainer import MatchTrainer
from tfde.matching.matcher import Matcher
from tfde.matching.teaching import Teaching
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.types import Document

TEXT = TextConfig(query_max_length_tokens=8, document_max_length_tokens=10)


def labelled(number: int = 48) -> LabelledPairs:
    """Pairs of three and four words; the label is whether they share one."""
    rng = np.random.default_rng(0)
    first = [" ".join(rng.choice(tiny.WORDS, 3)) for _ in range(number)]
    second = [" ".join(rng.choice(tiny.WORDS, 4)) for _ in range(number)]
    second[::2] = [f"{a.split()[0]} {b}" for a, b in zip(first[::2], second[::2], strict=True)]
    shares = [bool(set(a.split()) & set(b.split())) for a, b in zip(first, second, strict=True)]
    return LabelledPairs(first, [""] * number, second, np.array(shares, np.float32), ("0", "1"))


def matcher(kind="virt_encoder", backbone=tiny.BERT, **options) -> Matcher:
    options = {"num_labels": 2, "seed": 1, "dropout": 0.0, "text": TEXT, **options}
    return Matcher.from_backbone(backbone, kind=kind, tokenizer=tiny.tokenizer(), **options)


def teacher(backbone=tiny.BERT, **options) -> CrossEncoder:
    options = {"num_labels": 2, "seed": 2, "text": PairTextConfig(20), **options}
    options.setdefault("tokenizer", tiny.tokenizer())
    return CrossEncoder.from_backbone(backbone, **options)


def train(trainer: MatchTrainer, pairs: LabelledPairs, *, steps=30, batch_size=12, rate=1e-2):
    trainer.compile(tfde.adamw(rate, decay_steps=steps))
    batches = LabelledBatches(pairs, batch_size=batch_size, seed=3)
    return trainer.fit(batches, steps=steps, verbose=0).history


@pytest.mark.parametrize("backbone", [tiny.BERT, tiny.T5], ids=["bert", "t5"])
def test_the_maps_come_nearer(backbone):
    """With VIRT alone the distance to the teacher's maps falls."""
    model, other = matcher(backbone=backbone), teacher(backbone)
    for layer in other.encoder.transformer_layers:  # random ones attend nearly evenly
        layer.qkv_kernel.assign(layer.qkv_kernel * (20.0 if backbone is tiny.BERT else 1.0))
    taught = Teaching((other,), virt_weight=1.0, label_weight=0.0)
    trainer = MatchTrainer(model, teaching=taught)
    before = train(trainer, labelled(), steps=1, rate=1e-9)["virt_loss"][-1]
    train(trainer, labelled(), steps=40)
    after = train(trainer, labelled(), steps=1, rate=1e-9)["virt_loss"][-1]
    assert after < 0.85 * before


@pytest.mark.parametrize("kind", ["dipair", "cross_encoder"])
def test_the_hidden_states_come_nearer(kind):
    """Of the layer that reads the first tokens of both texts; of all, where all read both."""
    student = teacher(seed=5) if kind == "cross_encoder" else matcher(kind)
    large = teacher(tiny.BERT.replace(num_layers=4))
    trainer = MatchTrainer(
        student, teaching=Teaching((large,), hidden_weight=1.0, label_weight=0.0)
    )
    before = train(trainer, labelled(), steps=1)["hidden_loss"][-1]
    mean_of_all_steps = train(trainer, labelled(), steps=40)["hidden_loss"][-1]
    assert mean_of_all_steps < 0.8 * before


def test_a_teacher_stays_as_it_is_and_is_nowhere_saved():
    model, other = matcher(), teacher()
    weights = [weight.numpy() for weight in other.scorer.weights]
    trainer = MatchTrainer(model, teaching=Teaching((other,), virt_weight=1.0, logit_weight=1.0))
    history = train(trainer, labelled(), steps=4)
    assert {"label_loss", "virt_loss", "logit_loss", "loss"} <= history.keys()
    for weight, old in zip(other.scorer.weights, weights, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert len(trainer.trainable_weights) == len(model.trainable_weights)
    ours = {id(variable) for variable in trainer.variables}
    assert not ours & {id(variable) for variable in other.variables}


def test_the_losses_add_up():
    model = matcher("deformer")
    weights = {"virt": 0.3, "hidden": 0.2, "logit": 0.7, "label": 0.5}
    taught = Teaching((teacher(),), **{f"{name}_weight": w for name, w in weights.items()})
    logs = train(MatchTrainer(model, teaching=taught), labelled(), steps=1)
    parts = sum(weight * logs[f"{name}_loss"][0] for name, weight in weights.items())
    assert logs["loss"][0] == pytest.approx(parts, rel=1e-5)


@pytest.mark.parametrize("kind", ["deformer", "virt_encoder"])
def test_the_inference_graph_is_the_same_with_and_without(kind):
    """The student's graph has the same ops, byte for byte, whether VIRT taught it or not."""
    graphs = []
    for virt in (0.0, 1.0):
        keras.backend.clear_session()
        model = matcher(kind)
        taught = Teaching((teacher(),), virt_weight=virt) if virt else None
        train(MatchTrainer(model, teaching=taught), labelled(), steps=2)
        spec = {name: tf.TensorSpec([None, None], tf.int32, name) for name in model.scorer.input}
        graph = tf.function(model.scorer).get_concrete_function(spec).graph.as_graph_def()
        graphs.append([(node.op, len(node.input)) for node in graph.node])
        functions = [[node.op for node in f.node_def] for f in graph.library.function]
        graphs[-1].append(sorted(map(str, functions)))
    assert graphs[0] == graphs[1]


def test_several_teachers_are_averaged():
    model, teachers = matcher("siamese"), (teacher(seed=2), teacher(seed=5))
    trainer = MatchTrainer(
        model, teaching=Teaching(teachers, logit_weight=1.0, logit_loss="mse", label_weight=0.0)
    )
    pairs = labelled(12)
    texts = list(zip(pairs.first, pairs.texts, strict=True))
    mean = np.mean([other.score(texts) for other in teachers], axis=0)
    expected = np.square(model.score(texts) - mean).mean()
    logs = train(trainer, pairs, steps=1)
    assert logs["logit_loss"][0] == pytest.approx(expected, rel=1e-4)


def test_labels_are_learned():
    pairs = labelled(96)
    model = teacher()
    trainer = MatchTrainer(model)
    first = train(trainer, pairs, steps=1, rate=3e-3)["loss"][-1]
    train(trainer, pairs, steps=250, batch_size=24, rate=3e-3)
    found = model.score(list(zip(pairs.first, pairs.texts, strict=True))).argmax(axis=1)
    assert first > 0.5
    assert (found == pairs.labels).mean() > 0.9


def test_dropout_and_order_follow_from_the_seed():
    losses = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = matcher("siamese", dropout=0.2)
        losses.append(train(MatchTrainer(model), labelled(), steps=3)["loss"])
    assert losses[0] == losses[1]


def test_a_batch_depends_on_seed_and_step_alone():
    pairs = labelled(10)
    batches = LabelledBatches(pairs, batch_size=4, seed=3)
    assert batches.steps_per_epoch == 2
    late = next(iter(batches.dataset(start_step=5)))
    assert [text.decode() for text in late["first"].numpy()] == batches.batch(5).first
    epoch = [text for step in (0, 1) for text in batches.batch(step).first]
    assert len(set(epoch)) == 8
    assert batches.batch(0).first != LabelledBatches(pairs, batch_size=4, seed=4).batch(0).first


@pytest.mark.parametrize("kind", ["kl", "mse", "margin_mse"])
def test_ranking_losses_follow_their_equations(kind):
    rng = np.random.default_rng(0)
    own, other = rng.normal(size=(2, 6, 1)).astype("f4")
    groups, wanted = own.reshape(2, 3).astype("f8"), other.reshape(2, 3).astype("f8")
    found = logit_loss(
        kind, "ranking", tf.constant(own), tf.constant(other), temperature=2.0, group_size=3
    )
    if kind == "mse":
        expected = np.square(groups - wanted).mean(axis=1)
    elif kind == "margin_mse":
        margins = (groups[:, :1] - groups[:, 1:]) - (wanted[:, :1] - wanted[:, 1:])
        expected = np.square(margins).mean(axis=1)
    else:
        p, q = (np.exp(x / 2) / np.exp(x / 2).sum(1, keepdims=True) for x in (wanted, groups))
        expected = 4 * (p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    loss = task_loss("ranking", tf.constant(own), tf.constant([1.0, 0, 0] * 2), group_size=3)
    expected = -np.log(np.exp(groups[:, 0]) / np.exp(groups).sum(axis=1))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_one_logit_is_a_sigmoid():
    own, other = tf.constant([[0.3], [-1.2]]), tf.constant([[1.0], [2.0]])
    p, q = (1 / (1 + np.exp(-x.numpy()[:, 0].astype("f8"))) for x in (other, own))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(logit_loss("kl", "binary", own, other), expected, rtol=1e-4)
    loss = task_loss("binary", own, tf.constant([1.0, 0.0]))
    np.testing.assert_allclose(loss, [-np.log(q[0]), -np.log(1 - q[1])], rtol=1e-5)


def test_ranking_wants_groups():
    pairs = labelled(12)
    groups = LabelledPairs(
        pairs.first, pairs.titles, pairs.texts, np.array([1.0, 0, 0] * 4, "f4"), ("0", "1"), 3
    )
    model = matcher("late_interaction", num_labels=1)
    trainer = MatchTrainer(model, objective="ranking", group_size=3, score_scale=20.0)
    assert train(trainer, groups, steps=2, batch_size=6)["loss"][0] > 0
    with pytest.raises(ConfigError, match=r"`batch_size` must be a multiple of 3.* Received: 4"):
        LabelledBatches(groups, batch_size=4, seed=0)
    with pytest.raises(ConfigError, match=r"`group_size` must be 3, as the trainer's"):
        train(trainer, labelled(12), steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatchTrainer(matcher(num_labels=1)), "`num_labels` must be at least 2 with class"),
        (lambda: MatchTrainer(matcher(), objective="binary"), "`num_labels` must be 1 with binary"),
        (
            lambda: MatchTrainer(matcher(), objective="guessing"),
            "`objective` must be one of classification, binary, regression, ranking",
        ),
        (
            lambda: Teaching((teacher(),)),
            "needs `virt_weight`, `hidden_weight` or `logit_weight` above 0",
        ),
        (lambda: Teaching(()), "`teachers` must be not empty"),
        (
            lambda: MatchTrainer(teacher(), teaching=Teaching((teacher(),), virt_weight=1.0)),
            "a cross-encoder has the attention",
        ),
        (
            lambda: MatchTrainer(
                matcher(),
                teaching=Teaching((teacher(num_layers=1),), virt_weight=1.0),
            ),
            "at least the student's 2 layers",
        ),
        (
            lambda: MatchTrainer(
                matcher(),
                teaching=Teaching(
                    (teacher(),), virt_weight=1.0, virt_layers={"transformer_layer_7": "x"}
                ),
            ),
            "must name layers that the student has, transformer_layer_0",
        ),
        (
            lambda: MatchTrainer(
                matcher(),
                teaching=Teaching(
                    (teacher(tokenizer=WordPieceTokenizer(tiny.VOCABULARY[:-1])),), virt_weight=1.0
                ),
            ),
            "must have the student's vocabulary",
        ),
        (
            lambda: MatchTrainer(
                matcher(), teaching=Teaching((teacher(num_labels=3),), logit_weight=1.0)
            ),
            "must have the student's 2 labels",
        ),
        (
            lambda: MatchTrainer(
                matcher(labels=("no", "yes")),
                teaching=Teaching((teacher(labels=("yes", "no")),), logit_weight=1.0),
            ),
            "`labels of a teacher` must be no, yes, in this order",
        ),
        (
            lambda: MatchTrainer(
                matcher(num_labels=1),
                objective="ranking",
                group_size=2,
                teaching=Teaching(
                    (teacher(num_labels=1, labels=("1", "0")),),
                    logit_weight=1.0,
                    logit_loss="margin_mse",
                ),
            ),
            "`a teacher` must be one whose logit says 1, .* Received: 'logit of 0'",
        ),
        (
            lambda: MatchTrainer(
                matcher(text=TextConfig(8, 10, query_prompt="red ")),
                teaching=Teaching((teacher(),), virt_weight=1.0),
            ),
            "no prompts",
        ),
    ],
)
def test_what_does_not_fit(make, message):
    with pytest.raises(ConfigError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("write", [copy.deepcopy, keras.models.clone_model, keras.Model.to_json])
def test_what_is_copied_is_the_student(write):
    with pytest.raises(ConfigError, match=r"copied or saved itself: copy or save `trainer.student"):
        write(MatchTrainer(matcher()))


@pytest.mark.parametrize("make", [matcher, teacher])
def test_titles_are_read_in_training_as_in_scoring(make):
    model = make()
    batch = {"first": ["red"], "title": ["apple pear"], "text": ["cat dog"], "label": [1.0]}
    prepared = MatchTrainer(model).prepare_batch({k: tf.constant(v) for k, v in batch.items()})
    scored = model.score([("red", Document("", "apple pear", "cat dog"))])
    np.testing.assert_allclose(model(prepared["student"]), scored, atol=1e-6)
    assert not np.allclose(scored, model.score([("red", "cat dog")]), atol=1e-4)


def test_teacher_and_student_compare_the_same_tokens_where_there_are_titles():
    trainer = MatchTrainer(matcher(), teaching=Teaching((teacher(),), virt_weight=1.0))
    batch = {"first": ["red"], "title": ["apple pear"], "text": ["cat dog"], "label": [1.0]}
    prepared = trainer.prepare_batch({k: tf.constant(v) for k, v in batch.items()})
    own = prepared["student"]["second_token_ids"].numpy()[0]
    whole = prepared["teachers"][0]["token_ids"].numpy()[0]
    places = (prepared["student_tokens"][1], prepared["teacher_tokens"][0][1])
    texts = [
        list(ids[int(place.start[0]) :][: int(place.count[0])])
        for ids, place in zip((own, whole), places, strict=True)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 4
    other = TextConfig(8, 10, document_template="{text}")
    rule = r"`document_template` must be '\{title\} \{text\}', the teacher's"
    with pytest.raises(ConfigError, match=rule):
        MatchTrainer(matcher(text=other), teaching=Teaching((teacher(),), virt_weight=1.0))


def test_scores_are_scaled_where_they_are_ranked_alone():
    rule = r"`score_scale` must be 1 with objective regression\. Received: 20"
    with pytest.raises(ConfigError, match=rule):
        MatchTrainer(matcher(num_labels=1), objective="regression", score_scale=20.0)


def test_float16_scales_its_loss_whatever_the_global_policy():
    trainer = MatchTrainer(matcher(dtype="mixed_float16"))
    trainer.compile(tfde.adamw(1e-3, decay_steps=4))
    assert isinstance(trainer.optimizer, keras.optimizers.LossScaleOptimizer)
