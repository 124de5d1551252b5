"""Small models that write texts: presets of keras-hub with random weights, and a SavedModel."""

from pathlib import Path

import keras
import keras_hub
import tensorflow as tf
import tiny

from tfde.text.sentence_piece.train import train_sentencepiece


def t5(directory: Path) -> Path:
    """A T5 of one layer with a vocabulary of the tiny words."""
    vocabulary = directory.with_suffix(".model")
    train_sentencepiece(tiny.document_texts(), vocabulary, vocabulary_size=60)
    tokenizer = keras_hub.models.T5Tokenizer(vocabulary.read_bytes())
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=60, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12
    )
    preprocessor = keras_hub.models.T5Seq2SeqLMPreprocessor(tokenizer)
    keras_hub.models.T5Seq2SeqLM(backbone, preprocessor).save_to_preset(directory)
    return directory


def bart(directory: Path) -> Path:
    """A BART of one layer that writes letters, with 48 positions."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "Ġ", "ab", *"abcdefghijklmnopqrstuvwxyz", "<mask>"]
    tokenizer = keras_hub.models.BartTokenizer(
        vocabulary={token: number for number, token in enumerate(tokens)}, merges=["a b"]
    )
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=len(tokens), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12,
        max_sequence_length=48,
    )  # fmt: skip
    preprocessor = keras_hub.models.BartSeq2SeqLMPreprocessor(tokenizer)
    keras_hub.models.BartSeq2SeqLM(backbone, preprocessor).save_to_preset(directory)
    return directory


def saved_model(directory: Path, *, seed: bool = True, name: str = "serving_default") -> Path:
    """A SavedModel with three queries a text: its first word, its seed, nothing."""
    module = tf.Module()

    def queries(text, number):
        first = tf.strings.regex_replace(text, " .*", "")
        drawn = tf.strings.join(["seed", tf.strings.as_string(number)], " ")
        return {"queries": tf.stack([first, drawn, tf.zeros_like(text)], axis=1)}

    text = tf.TensorSpec([None], tf.string, "text")
    if seed:
        number = tf.TensorSpec([None], tf.int64, "seed")
        serve = tf.function(lambda text, seed: queries(text, seed), input_signature=[text, number])
    else:
        serve = tf.function(
            lambda text: queries(text, tf.zeros_like(text, tf.int64)), input_signature=[text]
        )
    module.serve = serve
    tf.saved_model.save(module, str(directory), signatures={name: serve})
    return directory
