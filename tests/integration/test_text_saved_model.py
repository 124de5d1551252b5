"""A saved preprocessor works in a process that has only tensorflow and tensorflow_text."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

from tfde.config.model import TextConfig
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

TITLES = ["Ein Titel", "", "[MASK] ﬁ…", "x" * 101]
TEXTS = ["Größe, 中文!", "한국어 𞤢𞥊𞤤", "a</s> e\u0302\u0301", "\x00İ"]

READER = """
import json, sys
import tensorflow as tf
import tensorflow_text
queries, documents = map(tf.saved_model.load(sys.argv[1]).signatures.get, ("queries", "documents"))
titles, texts = map(tf.constant, json.loads(sys.stdin.read()))
batches = [queries(texts=texts), documents(titles=titles, texts=texts), queries(texts=texts[:0])]
assert not any(name.split(".")[0] in ("tfde", "keras_hub", "sentencepiece") for name in sys.modules)
print(json.dumps([[b[k].numpy().tolist() for k in ("token_ids", "padding_mask")] for b in batches]))
"""


@pytest.mark.parametrize("kind", ["word pieces", "sentence pieces", "Hugging Face pieces"])
def test_reload_in_a_fresh_process(tmp_path, kind):
    if kind == "word pieces":
        letters = sorted({c for text in [*TITLES, *TEXTS] for c in text.lower()} | set("grose"))
        letters = [c for c in letters if c.isprintable() and c != " "]
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = WordPieceTokenizer([*special, *letters, *(f"##{c}" for c in letters)])
    else:
        model = train_sentencepiece(TITLES + TEXTS, tmp_path / "m", vocabulary_size=40)
        tokenizer = SentencePieceTokenizer.from_file(model)
    if kind == "Hugging Face pieces":
        (tmp_path / "theirs").mkdir()
        for name, content in tokenizer.hugging_face_files(max_length_tokens=None).items():
            (tmp_path / "theirs" / name).write_bytes(content)
        tokenizer = SentencePieceTokenizer.from_hugging_face(tmp_path / "theirs")
    text = TextPreprocessor(tokenizer, TextConfig(document_template="{title} [SEP] {text}"))

    strings = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[strings])
    def queries(texts):
        return dict(zip(("token_ids", "padding_mask"), text.queries(texts), strict=True))

    @tf.function(input_signature=[strings, strings])
    def documents(titles, texts):
        return dict(zip(("token_ids", "padding_mask"), text.documents(titles, texts), strict=True))

    signatures = {"queries": queries, "documents": documents}
    tf.saved_model.save(text, str(tmp_path / "saved"), signatures=signatures)
    process = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "saved")],
        input=json.dumps([TITLES, TEXTS]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    expected = [text.queries(TEXTS), text.documents(TITLES, TEXTS), text.queries([])]
    assert json.loads(process.stdout) == [[x.numpy().tolist() for x in e] for e in expected]
