"""What a new part touches: a toy of each kind, added in a few lines, used, and taken away again.

docs/architecture.md points here; tests/unit/retrieval, tasks and backbones add an index engine, a
loss and a backbone.
"""

import sys
import types

import keras
import numpy as np
import tensorflow as tf
import tiny

import tfde
from tfde.cli import main as cli
from tfde.cli.parser import command_parser
from tfde.config import matching
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.formats import registry
from tfde.data.formats.records import Judgement
from tfde.matching import meetings
from tfde.matching.matcher import Matcher
from tfde.storage.compressed import read_lines
from tfde.tasks.task import Task
from tfde.types import Document, Query


def test_a_format(tmp_path, monkeypatch):
    """Its reader in a file of data/formats, one entry in the registry."""

    def read(sources, intake):
        for source in sources:
            for number, line in read_lines(source.path, intake):
                question, answer = line.split("=")
                yield Query(f"q{number}", question)
                yield Document(f"d{number}", "", answer)
                yield Judgement(source.split, f"q{number}", f"d{number}", 1)

    roles = (registry.Role("questions", "question=answer, one a line"),)
    monkeypatch.setitem(registry.FORMATS, "quiz", registry.Format("a quiz", roles, read))
    (tmp_path / "quiz.txt").write_text("who wrote hamlet=shakespeare\nwho wrote faust=goethe\n")
    arguments = ["--format", "quiz", "--input", f"{tmp_path / 'quiz.txt'}", "--split", "test"]
    assert cli.main(["convert", *arguments, "--output", str(tmp_path / "data")]) == 0
    dataset = DatasetDirectory(tmp_path / "data")
    assert [query.text for query in dataset.queries()] == ["who wrote hamlet", "who wrote faust"]
    assert dataset.qrels("test") == {"q1": {"d1": 1}, "q2": {"d2": 1}}


def test_a_command(monkeypatch, capsys):
    """A module of cli/ with `build_parser` and `run`, one line in `COMMANDS`."""

    def build_parser():
        parser = command_parser("greet", "say hello")
        parser.add_argument("--name", required=True)
        return parser

    module = types.ModuleType("tfde.cli.greet")
    module.build_parser, module.run = (
        build_parser,
        lambda args: sys.stdout.write(f"hello {args.name}\n") and 0,
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "greet", "say hello")
    assert cli.main(["greet", "--name", "moon"]) == 0
    assert capsys.readouterr().out == "hello moon\n"
    assert "  greet " in cli.usage()


def test_a_matching_model(tmp_path, monkeypatch):
    """A class in matching/meetings.py with an entry, its fields in config/matching.py."""

    class FirstTokens(meetings.Classified):
        """The first token of each text."""

        def feature_layers(self, config, seed):
            return {"fusion": meetings.Fusion(name="fusion")}

        def keep(self, own, config, side, text):
            return super().keep(own, config, side, text.first(1))

        def features(self, own, x, y, upper):
            return own["fusion"](x.vectors[:, 0], y.vectors[:, 0])

    monkeypatch.setitem(meetings.MEETINGS, "first_tokens_only", FirstTokens())
    monkeypatch.setitem(matching.FIELDS, "first_tokens_only", ())
    model = Matcher.from_backbone(tiny.BERT, kind="first_tokens_only", tokenizer=tiny.tokenizer())
    pairs = [("the moon", "a cat"), ("a cat", "the moon rises")]
    scores = model.score(pairs)
    assert np.isfinite(scores).all()
    model.save_to_preset(tmp_path / "model")
    keras.utils.set_random_seed(3)
    np.testing.assert_array_equal(Matcher.from_preset(tmp_path / "model").score(pairs), scores)


def test_a_loss():
    """A class on `Task`, which `compile` takes; for recipes also its fields and one line."""

    class HingeTask(Task):
        """Each positive scores higher than every other candidate, by a margin."""

        def __call__(self, queries, candidates, *, other_queries=None):
            scores = tf.matmul(queries["embeddings"], candidates["embeddings"], transpose_b=True)
            gaps = 0.2 + scores - tf.linalg.diag_part(scores)[:, None]
            others = 1 - tf.eye(tf.shape(scores)[0], tf.shape(scores)[1])
            return tf.reduce_mean(tf.reduce_sum(tf.nn.relu(gaps) * others, axis=1))

    words = tiny.VOCABULARY[-12:]
    pairs = tfde.pairs([(word, f"{word} {word}") for word in words], batch_size=6)
    model = tiny.dual_encoder()
    model.compile(optimizer=keras.optimizers.Adam(0.01), task=HingeTask())
    losses = model.fit(pairs, steps=60, verbose=0).history["loss"]
    model.compile(optimizer=keras.optimizers.Adam(0.01), task=HingeTask())
    assert model.fit(pairs, steps=60, verbose=0).history["loss"][-1] < losses[0]
