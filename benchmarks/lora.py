"""How much of full fine-tuning do low-rank adapters learn, with how many numbers that train?

    python benchmarks/lora.py DATASET [--model DIR] [--steps 60] [--batch 32]
        [--learning-rate 5e-5] [--lora-learning-rate 1e-3] [--queries 1000] [--documents 3000]

The same model trains on the same batches of the `train` split, by all its weights and by adapters
of rank 8 (query and value; all matrices), each after the same start. In-batch softmax at
temperature 0.05, AdamW, rates that fall linearly to 0. Measured on queries of `dev`, whose
documents are searched among others. `trained_bytes` are those of the weights that train, their
gradients and AdamW's two moments. Prints one JSON object.
"""

import argparse
import json
import os
from importlib.metadata import version

import numpy as np

TEMPERATURE, SEED, RANK = 0.05, 3, 8
MEASURES = ("P@1", "RR")
WAYS = {"full": None, "lora_query_value": ("query", "value"), "lora_all": "all"}


def measured(args: argparse.Namespace, target: object, *, steps: int, rate: float) -> dict:
    """Returns the measures after so many steps, and what trained."""
    import keras

    import tfde

    keras.utils.set_random_seed(SEED)
    model = tfde.DualEncoder.from_backbone(args.model, text=tfde.TextConfig(32, 64))
    if target is not None:
        model.enable_lora(RANK, target=target)
    if steps:
        optimizer = tfde.adamw(rate, decay_steps=steps)
        model.compile(optimizer, task=tfde.RetrievalTask(TEMPERATURE))
        pairs = tfde.pairs(args.dataset, split="train", batch_size=args.batch, seed=SEED)
        model.fit(pairs, steps=steps, verbose=0)
    config = tfde.ValidationConfig(
        args.dataset,
        max_queries=args.queries,
        max_documents=args.documents,
        measures=MEASURES,
    )
    measures = tfde.RetrievalValidation(config, seed=SEED)(model)
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    values = {name: round(value, 4) for name, value in measures.items()}
    return {**values, "trained": trained, "trained_bytes": 4 * 4 * trained}


def main() -> None:
    """Measures the start and each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--model", default=os.environ.get("TFDE_MINILM"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--lora-learning-rate", type=float, default=1e-3)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=3000)
    args = parser.parse_args()
    results = {"start": measured(args, None, steps=0, rate=0)}
    for name, target in WAYS.items():
        rate = args.learning_rate if target is None else args.lora_learning_rate
        results[name] = measured(args, target, steps=args.steps, rate=rate)
    names = ("tensorflow", "keras", "tfde")
    about = {"seed": SEED, "versions": {name: version(name) for name in names}}
    print(json.dumps({**vars(args), **about, "results": results}, indent=2, default=str))


if __name__ == "__main__":
    main()
