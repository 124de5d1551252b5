"""A dual encoder that scores pairs, is taught, and stays the dual encoder that it was."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.config.model import PairTextConfig, TextConfig
from tfde.data.pairs.labelled import LabelledBatches, LabelledPairs
from tfde.errors import ConfigError
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.dual_encoder_as_pair_model import DualEncoderScorer
from tfde.matching.load import load_pair_scorer
from tfde.matching.match_trainer import MatchTrainer
from tfde.matching.teaching import Teaching
from tfde.types import Document

PAIRS = [
    ("red apple", Document("a", "green", "pear")),
    ("cat", Document("b", "", "dog bird")),
    ("one two", Document("c", "", "red apple cat")),
]


@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "sde"},
        {"sharing": "ade"},
        {"sharing": "sde", "encode_before_projection": True},
    ],
    ids=["sde", "ade", "encode_before_projection"],
)
def test_a_score_is_the_similarity(options, tmp_path):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5, **options)
    scorer = DualEncoderScorer(model)
    queries = model.encode_queries([query for query, _ in PAIRS])
    documents = model.encode_documents([document for _, document in PAIRS])
    np.testing.assert_allclose(scorer.score(PAIRS), (queries * documents).sum(1), atol=1e-6)
    inputs, tokens = scorer.prepare_tokens(
        tf.constant([query for query, _ in PAIRS]),
        tf.constant([document.title for _, document in PAIRS]),
        tf.constant([document.text for _, document in PAIRS]),
    )
    scores, states = scorer.call_with_states(inputs, tokens, training=False)
    np.testing.assert_allclose(scores, scorer(inputs), atol=1e-6)
    assert [len(side["queries"]) for side in states.sides()] == [2, 2]
    before_projection = model.config.encode_before_projection  # whose kernel has no part in it
    assert len(scorer.trainable_weights) == len(model.trainable_weights) - before_projection
    scorer.save_to_preset(tmp_path / "model")
    loaded = load_pair_scorer(tmp_path / "model")
    np.testing.assert_allclose(loaded.score(PAIRS), scorer.score(PAIRS), atol=1e-6)


def test_a_template_with_contexts_is_refused_when_the_model_is_loaded(tmp_path):
    text = TextConfig(8, 16, document_template="{text} [SEP] {context}")
    tiny.dual_encoder(text=text).save_to_preset(tmp_path / "model")
    message = r"/model`: `document_template` must be without \{context\}, .*'\{text\} \[SEP\] \{con"
    with pytest.raises(ConfigError, match=message):
        load_pair_scorer(tmp_path / "model")


@pytest.mark.parametrize("kind", ["margin_mse", "kl"])
def test_a_teacher_orders_its_documents(kind):
    """Taught by logits and attention, the student comes to agree with the teacher's margins."""
    rng = np.random.default_rng(0)
    first = [" ".join(rng.choice(tiny.WORDS, 2)) for _ in range(12) for _ in range(2)]
    first[1::2] = first[::2]
    texts = [" ".join(rng.choice(tiny.WORDS, 4)) for _ in first]
    labels = np.array([1.0, 0.0] * 12, "f4")
    pairs = LabelledPairs(first, [""] * 24, texts, labels, ("0", "1"), 2)
    model = tiny.dual_encoder(tiny.BERT, dropout=0.0)
    teacher = CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), seed=3, text=PairTextConfig(24)
    )
    taught = Teaching(
        (teacher,), virt_weight=0.1, logit_weight=1.0, logit_loss=kind, label_weight=0.0
    )
    trainer = MatchTrainer(
        DualEncoderScorer(model), objective="ranking", group_size=2, score_scale=5.0,
        teaching=taught,
    )  # fmt: skip
    trainer.compile(tfde.adamw(1e-2, decay_steps=None))
    batches = LabelledBatches(pairs, batch_size=24, seed=0)
    losses = [
        trainer.fit(batches, steps=steps, verbose=0).history["logit_loss"][0] for steps in (1, 40)
    ]
    last = trainer.fit(batches, steps=1, verbose=0).history["logit_loss"][0]
    assert last < 0.5 * losses[0]


def test_a_bag_of_words_has_no_attention_to_teach():
    teacher = CrossEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer())
    student = DualEncoderScorer(tiny.dual_encoder())
    with pytest.raises(ConfigError, match="`virt_weight` is for Transformers, whose layers"):
        MatchTrainer(
            student, objective="ranking", group_size=2,
            teaching=Teaching((teacher,), virt_weight=1.0),
        )  # fmt: skip


def test_each_text_is_encoded_once(monkeypatch):
    model = tiny.dual_encoder(tiny.BERT, embedding_dim=5)
    asked = {}
    for name in ("encode_queries", "encode_documents"):
        encode = getattr(model, name)
        monkeypatch.setattr(
            model,
            name,
            lambda texts, name=name, encode=encode, **options: (
                asked.update({name: len(texts)}) or encode(texts, **options)
            ),
        )
    pairs = [(query, document) for query, _ in PAIRS[:2] for _, document in PAIRS] * 2
    scores = DualEncoderScorer(model).score(pairs, batch_size=2)
    assert asked == {"encode_queries": 2, "encode_documents": 3}
    one_by_one = [float(DualEncoderScorer(model).score([pair])[0]) for pair in pairs]
    np.testing.assert_allclose(scores, one_by_one, atol=1e-6)
    assert DualEncoderScorer(model).score([]).shape == (0,)
