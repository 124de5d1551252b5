"""How fast is a training step, against PyTorch with sentence-transformers' loss?

    python benchmarks/training.py [--batch 32 128] [--dtype float32 bfloat16] [--data fixed squad]
        [--model DIR | random-t5-small] [--pairs 5] [--apart]

In-batch softmax at temperature 0.05, AdamW, gradients clipped at norm 1, the checkpoint's dropout,
all cores. Ours is `DualEncoder.fit`; theirs is the step of sentence-transformers' trainer
(MultipleNegativesRankingLoss, autocast for bfloat16, fused AdamW, its collation). Both start from
strings. `fixed`: real text cut at 32 and 128 tokens, no row shorter. `squad`: questions and
paragraphs as they are; ours in buckets, theirs padded to the longest of the batch. A measurement
is an epoch over the same batches; the first does not count. Prints one JSON object; the losses are
those of the first batch without dropout, which both sides must agree on.
"""

import argparse
import itertools
import math
import sys
import threading
import time
from pathlib import Path

import inputs
import side_by_side

TEMPERATURE, LEARNING_RATE, CLIP_NORM, WEIGHT_DECAY = 0.05, 2e-5, 1.0, 0.01
PAIRS_A_MEASUREMENT = 64
LENGTHS = {"fixed": (32, 128), "squad": (256, 256)}
TOO_LARGE_TOGETHER = [("squad", "float32", 128)]  # 14 GiB a side
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def steps_of(args: argparse.Namespace, batch: int) -> int:
    """Returns how many batches a measurement has."""
    return args.steps or max(1, PAIRS_A_MEASUREMENT // batch)


def read_batches(args: argparse.Namespace) -> list[list[tuple[str, str]]]:
    """Returns the batches of an epoch: (query, document) texts."""
    count = args.batch * steps_of(args, args.batch)
    pairs = (
        inputs.long_pairs(count, *LENGTHS["fixed"])
        if args.data == "fixed"
        else inputs.read_pairs(count)
    )
    return [pairs[start : start + args.batch] for start in range(0, count, args.batch)]


def padding(masks) -> dict:
    """Returns the mean lengths and the share of padding of (query mask, document mask) pairs."""
    rows = sum(len(query) for query, _ in masks)
    sums = [sum(float(pair[side].sum()) for pair in masks) for side in (0, 1)]
    size = sum(mask.shape[0] * mask.shape[1] for pair in masks for mask in pair)
    return {
        "mean_query_tokens": round(sums[0] / rows, 1),
        "mean_document_tokens": round(sums[1] / rows, 1),
        "share_of_padding": round(1 - sum(sums) / size, 3),
    }


def tfde_worker(args: argparse.Namespace) -> None:
    """Ours: `fit`, an epoch whenever the other process asks for one."""
    import keras
    import numpy as np

    import tfde
    from tfde.data.pairs.dataset import PairDataset
    from tfde.towers.dual_encoder import DualEncoder

    class GatedPairs(PairDataset):
        """Hands out no batch of an epoch before its turn: nothing is prepared while we wait."""

        ready = 0
        gate = threading.Condition()

        def open(self, steps: float) -> None:
            with self.gate:
                self.ready = steps
                self.gate.notify_all()

        def batch(self, step: int) -> dict[str, np.ndarray]:
            with self.gate:
                self.gate.wait_for(lambda: step < self.ready)
            return super().batch(step)

    class Turns(keras.callbacks.Callback):
        """Waits for the other process before each epoch, and answers it after."""

        def on_epoch_begin(self, epoch: int, logs=None) -> None:
            self.model.stop_training = not side_by_side.asked()
            # At the end the input pipeline must not wait, or it could not be torn down.
            turns = math.inf if self.model.stop_training else epoch + 1
            data.open(turns * data.steps_per_epoch)
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs=None) -> None:
            if not self.model.stop_training:
                side_by_side.answer({"seconds": time.perf_counter() - self.start})

    keras.utils.set_random_seed(inputs.SEED)
    model = DualEncoder.from_backbone(
        args.model,
        text=tfde.TextConfig(*LENGTHS[args.data]),
        dtype=POLICIES[args.dtype],
    )
    optimizer = tfde.adamw(
        LEARNING_RATE, decay_steps=10**6, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM
    )
    model.compile(optimizer, task=tfde.RetrievalTask(TEMPERATURE))
    rows = itertools.chain.from_iterable(read_batches(args))
    data = GatedPairs(
        [
            tfde.Pair(tfde.Query(f"q{i}", query), tfde.Document(f"d{i}", "", document))
            for i, (query, document) in enumerate(rows)
        ],
        batch_size=args.batch,
        shuffle=False,
    )
    prepared = [
        model.prepare_batch(PairDataset.batch(data, step)) for step in range(data.steps_per_epoch)
    ]
    masks = [
        (b["query_padding_mask"].numpy(), b["document_padding_mask"].numpy()) for b in prepared
    ]
    first = prepared[0]
    drawn = [model(first, training=True)["query_embeddings"].numpy() for _ in range(2)]
    about = {
        "loss": model.test_on_batch(PairDataset.batch(data, 0), return_dict=True)["loss"],
        "dropout": not np.allclose(*drawn, atol=1e-3),
        **padding(masks),
    }
    side_by_side.ready(about)
    model.fit(data, epochs=10**6, callbacks=[Turns()], verbose=0)


def sentence_transformers_worker(args: argparse.Namespace) -> None:
    """Theirs: the step of sentence-transformers' trainer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(inputs.SEED)
    model = SentenceTransformer(args.model, device="cpu")
    criterion = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    batches = read_batches(args)

    def collate(batch: list[tuple[str, str]]) -> list[dict]:
        return [
            model.preprocess(list(texts), max_length=limit)
            for texts, limit in zip(zip(*batch, strict=True), LENGTHS[args.data], strict=True)
        ]

    def loss_of(features: list[dict]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return criterion(features, None)

    def measure() -> dict:
        model.train()
        start = time.perf_counter()
        for batch in batches:
            loss_of(collate(batch)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
        return {"seconds": time.perf_counter() - start}

    first = collate(batches[0])
    with torch.no_grad():
        model.eval()
        loss = loss_of(collate(batches[0])).item()
        model.train()
        drawn = [model(dict(first[0]))["sentence_embedding"] for _ in range(2)]
    features = [collate(batch) for batch in batches]
    masks = [tuple(side["attention_mask"] for side in sides) for sides in features]
    about = {"loss": loss, "dropout": not torch.allclose(*drawn, atol=1e-3), **padding(masks)}
    side_by_side.serve(measure, about)


def compare(args: argparse.Namespace, data: str, dtype: str, batch: int) -> dict:
    """Compares both sides on one kind of data, dtype and batch size."""
    workers = []
    for worker in ("tfde", "sentence_transformers"):
        python = sys.executable if worker == "tfde" else side_by_side.peers_python()
        options = ["--worker", worker, "--model", args.model, "--steps", str(args.steps)]
        options += ["--data", data, "--dtype", dtype, "--batch", str(batch)]
        workers.append(side_by_side.Worker(python, __file__, options))
    apart = args.apart or (data, dtype, batch) in TOO_LARGE_TOGETHER
    found = {"dtype": dtype, **side_by_side.compare(*workers, pairs=args.pairs, apart=apart)}
    for side, worker in zip(("ours", "theirs"), workers, strict=True):
        worker.close()
        rows = batch * steps_of(args, batch)
        found[f"{side}_per_s"] = round(rows / found[f"{side}_s"], 2)
        found |= {f"{side}_{name}": value for name, value in worker.about.items()}
    return found


def main() -> None:
    """Runs a worker, or the comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=inputs.MINILM, help="sentence-transformers directory")
    parser.add_argument("--data", choices=LENGTHS, nargs="+", default=list(LENGTHS))
    parser.add_argument("--dtype", choices=POLICIES, nargs="+", default=list(POLICIES))
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--steps", type=int, default=0, help="batches a measurement")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side")
    parser.add_argument(
        "--apart",
        action="store_true",
        help="one side after the other, where both do not fit into memory together; squad at"
        " batch 128 in float32 is always measured so",
    )
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        args.data, args.dtype, args.batch = args.data[0], args.dtype[0], args.batch[0]
        globals()[f"{args.worker}_worker"](args)
        return
    args.model = inputs.model_directory(name := args.model)
    result = {"model": Path(name).name, "temperature": TEMPERATURE, "seed": inputs.SEED}
    packages = ("tensorflow", "keras", "torch", "transformers", "sentence-transformers")
    for data, dtype, batch in itertools.product(args.data, args.dtype, args.batch):
        result[f"{data}_{dtype}_{batch}"] = compare(args, data, dtype, batch)
        side_by_side.finish(result, packages, args.output)  # the next one may not fit in memory


if __name__ == "__main__":
    main()
