"""What an editor completes and a type checker finds in a user's script."""

import subprocess
import sys

SCRIPT = """
import numpy as np
import tfde

sizes = tfde.BagOfWordsConfig(vocabulary_size=3)
tokenizer = tfde.WordPieceTokenizer(["[PAD]", "[UNK]", "a"])
model = tfde.DualEncoder.from_backbone(sizes, tokenizer=tokenizer, embedding_dim=8)
model.compile(
    optimizer=tfde.adamw(1e-3, decay_steps=10), task=tfde.RetrievalTask(temperature=0.05)
)
model.fit(tfde.pairs([("a", "b")], batch_size=1))
query: np.ndarray = model.encode_queries("a")
index = tfde.ExactIndex.build(model.encode_documents(["a", "b"]), ["1", "2"])
scores, ids = index.search(query[None], k=1)
hits: list[list[tfde.Document]] = index.search(query[None], k=1)
reveal_type(model)
"""


# What a program may do with everything, and no error in it.
WHOLE = """
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
import tfde

model = tfde.DualEncoder.load(Path("model"))
loss = keras.losses.CategoricalCrossentropy(from_logits=True)
model.compile(
    "adam", loss=[lambda q, d, b: 0.0, loss], loss_weights=[1.0, 0.5], metrics=["mse"], chunk_size=3
)
model.compile(tfde.adamw(1e-3, decay_steps=10), task=tfde.ScoreTask(loss, temperature=0.05))
stop = keras.callbacks.EarlyStopping("val_loss")
pairs = [("a", "b")]
history = model.fit(pairs, epochs=2, validation_data=pairs, callbacks=[stop], verbose=0)
losses: list[float] = history.history["loss"]
frame = pd.DataFrame({"query": ["a"], "document": ["b"]})
model.fit(frame, batch_size=3)
model.fit(["a"], ["b"])
query: np.ndarray = model.encode_query("a")
for texts in (frame["query"], tf.constant(["a"]), np.array(["a"]), ("a", "b"), (x for x in "ab")):
    queries: np.ndarray = model.encode_queries(texts)
queries = model.encode_queries([tfde.Query("1", "a")])
documents = model.encode_documents([tfde.Document("1", "t", "x"), "a", {"text": "x"}])
similarity: np.ndarray = model.similarity(queries, documents)
both: dict[str, np.ndarray] = model.predict(["a"])
model.enable_lora(rank=4, target="all")
model.merge_lora()
model.save_to_preset("model")
index = tfde.ExactIndex.build(documents, ["1", "2", "3"], fingerprint=model.fingerprint())
size: int = len(index)
scorer = tfde.CrossEncoder.load("scorer")
logits: np.ndarray = scorer.predict(list(zip(["a"], ["b"])))
best: list[dict[str, object]] = scorer.rank("a", ["b", "c"], top_k=1)
bundle: Path = tfde.export_bundle(model, index, "bundle", documents=[tfde.Document("1", "", "x")])
hits: str = tfde.Client("localhost:8500").search(["a"], k=3)[0][0].doc_id
run = tfde.retrieve(model, index, [tfde.Query("1", "a")], 10)
mean: float = tfde.evaluate(run, {"1": {"2": 1}}, ["RR"])["RR"]
validation = tfde.RetrievalValidation(tfde.ValidationConfig(dataset="data", measures=("RR",)))
tfrs, keras_2 = tfde.import_recommenders()
"""


def test_names_have_types(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "whole.py").write_text(WHOLE)
    options = ["--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    command = [
        sys.executable,
        "-m",
        "mypy",
        *options,
        tmp_path / "script.py",
        tmp_path / "whole.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert any('Revealed type is "tfde.towers.dual_encoder.DualEncoder"' in line for line in lines)
    (wrong,) = [line for line in lines if ": error:" in line]  # the one that is wrong
    assert "script.py:15: error: Incompatible types in assignment" in wrong
