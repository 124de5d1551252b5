"""Writes a T5 encoder of small size with random weights as a sentence-transformers directory.

    .venv-peers/bin/python benchmarks/random_t5.py --output DIR

T5 1.0 small's encoder (6 layers of 512, 8 heads, ReLU without gate, 32,128 rows of embeddings), a
Unigram vocabulary trained on SQuAD's paragraphs, mean pooling, unit length. Needs transformers.
"""

import argparse
import io
import tempfile
from pathlib import Path

import inputs
import sentencepiece
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from tfde.text.sentence_piece.model import parse_model

ROWS = 32_128
MAX_LENGTH = 256


def write_tokenizer(directory: Path, texts: list[str], size: int) -> None:
    """Writes T5's tokenizer, trained on the texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        model_type="unigram",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    # transformers' own reader of the file wants another protobuf than TensorFlow.
    proto = parse_model(model.getvalue())
    transformers.T5Tokenizer(
        vocab=[(piece.piece, piece.score) for piece in proto.pieces],
        _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
    ).save_pretrained(directory)


def main() -> None:
    """Writes the directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--vocabulary-size", type=int, default=16_000)
    parser.add_argument("--texts", type=int, default=10_000, help="of which the vocabulary is made")
    args = parser.parse_args()
    torch.manual_seed(inputs.SEED)
    config = transformers.T5Config(
        vocab_size=ROWS,
        d_model=args.hidden_dim,
        d_kv=64,
        d_ff=4 * args.hidden_dim,
        num_layers=args.layers,
        num_heads=args.hidden_dim // 64,
        feed_forward_proj="relu",
    )
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory), inputs.read_texts(args.texts), args.vocabulary_size)
        transformers.T5EncoderModel(config).save_pretrained(directory)
        modules = [Transformer(directory, max_seq_length=MAX_LENGTH)]
    modules += [Pooling(args.hidden_dim, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(args.output))


if __name__ == "__main__":
    main()
