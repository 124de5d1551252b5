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


def test_names_have_types(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    command = [sys.executable, "-m", "mypy", *options, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert any('Revealed type is "tfde.towers.dual_encoder.DualEncoder"' in line for line in lines)
    (wrong,) = [line for line in lines if ": error:" in line]  # the one that is wrong
    assert "script.py:15: error: Incompatible types in assignment" in wrong
