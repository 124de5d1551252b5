"""A T5 that reads a document and writes a query, trained with keras-hub alone.

    python pipelines/train_query_generator.py --dataset D --output M

D is a dataset directory with a train split, M becomes a keras-hub preset for
`tfde generate-queries --model M`. The defaults are a small model from random weights; `--start`
goes on from a T5 of keras-hub, with its vocabulary and sizes.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import keras
import keras_hub
import tensorflow as tf

from tfde.cli.main import run_command
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import require
from tfde.negatives.generate_queries import text_of
from tfde.storage.atomic import refuse_existing
from tfde.text.sentence_piece.train import train_sentencepiece


def main() -> int:
    """Trains and saves; an expected error becomes one line and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dataset", required=True, help="dataset directory")
    add("--split", default="train", help="whose pairs (%(default)s)")
    add("--output", required=True, help="directory of the preset")
    add("--start", help="preset of a T5 to go on from; its sizes take the place of those below")
    add("--steps", type=int, default=2000, help="batches (%(default)s)")
    add("--batch_size", type=int, default=64, help="pairs a batch (%(default)s)")
    add("--learning_rate", type=float, default=1e-3, help="its peak (%(default)s)")
    add("--query_max_length_tokens", type=int, default=32, help="cuts queries (%(default)s)")
    add("--document_max_length_tokens", type=int, default=64, help="cuts documents (%(default)s)")
    add("--vocabulary_size", type=int, default=8000, help="pieces (%(default)s)")
    add("--num_layers", type=int, default=2, help="of encoder and decoder each (%(default)s)")
    add("--num_heads", type=int, default=4, help="of attention (%(default)s)")
    add("--hidden_dim", type=int, default=256, help="of a token (%(default)s)")
    add("--seed", type=int, default=0, help="of weights and order (%(default)s)")
    return run_command("train_query_generator.py", _train, parser.parse_args())


def _train(args: argparse.Namespace) -> None:
    for name in ("steps", "batch_size"):
        value = getattr(args, name)
        require(value >= 1, name, "at least 1", value)
    refuse_existing(args.output, overwrite=False)
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
    fit(model, batches, args.steps)
    model.save_to_preset(args.output)


def fit(model: keras.Model, batches: tf.data.Dataset, steps: int, *, shown: int = 500) -> None:
    """Trains so many steps, with a line of losses after each `shown` of them and at the end."""
    whole, rest = divmod(steps, shown)
    if whole:
        model.fit(batches, steps_per_epoch=shown, epochs=whole, verbose=2)
    if rest:
        model.fit(batches, steps_per_epoch=rest, verbose=2)


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
    sys.exit(main())
