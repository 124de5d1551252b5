"""A T5 that reads a document and writes a query, trained with keras-hub alone.

    python pipelines/train_query_generator.py --dataset D --output M

D is a dataset directory with a train split, M becomes a keras-hub preset for
`tfde generate-queries --model M`. The defaults are a small model from random weights; `--start`
goes on from a T5 of keras-hub, with its vocabulary and sizes.
"""

import argparse
import tempfile
from pathlib import Path

import keras
import keras_hub
import tensorflow as tf

from tfde.data.read_pairs import read_pairs
from tfde.negatives.query_generator import text_of
from tfde.text.train_sentencepiece import train_sentencepiece


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--split", default="train")
    parser.add_argument("--output", required=True)
    parser.add_argument("--start", help="preset of a T5 to go on from")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--query_max_length_tokens", type=int, default=32)
    parser.add_argument("--document_max_length_tokens", type=int, default=64)
    parser.add_argument("--vocabulary_size", type=int, default=8000)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--hidden_dim", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    pairs = read_pairs(args.dataset, split=args.split)
    documents = [text_of(pair.positive) for pair in pairs]
    queries = [pair.query.text for pair in pairs]
    if args.start:
        model = keras_hub.models.Seq2SeqLM.from_preset(args.start)
    else:
        model = random_t5([*dict.fromkeys(documents), *queries], args)
    # What a preset does not hold.
    model.preprocessor.encoder_sequence_length = args.document_max_length_tokens
    model.preprocessor.decoder_sequence_length = args.query_max_length_tokens
    batches = (
        tf.data.Dataset.from_tensor_slices({"encoder_text": documents, "decoder_text": queries})
        .shuffle(len(queries), seed=args.seed)
        .repeat()
        .batch(args.batch_size)
    )
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, args.steps - args.steps // 10),
        warmup_target=args.learning_rate,
        warmup_steps=args.steps // 10,
    )
    model.compile(keras.optimizers.AdamW(rate, clipnorm=1.0), jit_compile=False)
    shown = min(args.steps, 500)  # a line of losses after so many steps
    model.fit(batches, steps_per_epoch=shown, epochs=args.steps // shown, verbose=2)
    model.save_to_preset(args.output)


def random_t5(texts: list[str], args: argparse.Namespace) -> keras_hub.models.T5Seq2SeqLM:
    """Returns a T5 with random weights and a vocabulary of the texts."""
    with tempfile.TemporaryDirectory() as directory:
        vocabulary = Path(directory, "vocabulary.model")
        train_sentencepiece(texts, vocabulary, vocabulary_size=args.vocabulary_size)
        tokenizer = keras_hub.models.T5Tokenizer(vocabulary.read_bytes())
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=args.num_layers,
        num_heads=args.num_heads,
        hidden_dim=args.hidden_dim,
        intermediate_dim=2 * args.hidden_dim,
        activation="gelu",
        dropout=0.0,
    )
    preprocessor = keras_hub.models.T5Seq2SeqLMPreprocessor(tokenizer)
    return keras_hub.models.T5Seq2SeqLM(backbone, preprocessor)


if __name__ == "__main__":
    main()
