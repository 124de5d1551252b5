"""A tokenizer outlives TensorFlow's cached kernels, which a new random seed drops."""

import keras
import tensorflow as tf
import tiny

from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece


def test_tokenizer_survives_a_new_seed(tmp_path):
    path = train_sentencepiece(
        tiny.document_texts()[:150], tmp_path / "spiece.model", vocabulary_size=50
    )
    tokenizer = SentencePieceTokenizer.from_file(path)
    tokenize = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    before = tokenize(tf.constant(["red green"])).to_list()
    keras.utils.set_random_seed(1)
    assert tokenize(tf.constant(["red green"])).to_list() == before
    assert tokenizer.tokenize(tf.constant(["red green"])).to_list() == before
