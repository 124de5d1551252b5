"""Parameters of the five sharing variants, counted on the built models; prints JSON.

python benchmarks/parameter_counts.py [--size small|base]
"""

import argparse
import json
import math

import tfde
from tfde.config.backbones import T5Config
from tfde.config.model import SHARING
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

SIZES = {
    "small": T5Config(),
    "base": T5Config(num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=2048),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--embedding_dim", type=int, default=768)
    args = parser.parse_args()
    # The counts do not depend on the tokens; a vocabulary of five is enough to build on.
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    rows = {}
    for name in SHARING:
        model = tfde.DualEncoder.from_backbone(
            SIZES[args.size], tokenizer=tokenizer, sharing=name, embedding_dim=args.embedding_dim
        )
        rows[name] = {
            "parameters": sum(math.prod(weight.shape) for weight in model.weights),
            "trainable": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        }
        del model
    print(json.dumps({"size": args.size, "embedding_dim": args.embedding_dim, "rows": rows}))


if __name__ == "__main__":
    main()
