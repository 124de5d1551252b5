"""What do the commands cost when a corpus grows, and is any of them worse than n log n?

    python benchmarks/cost_growth.py [--documents 1000 10000 100000 1000000] [--figure F.png]

The commands themselves, each a process of its own: a corpus of a dozen words a document, 1,000
queries, a bag of words with random weights and 32 dimensions, so that what is measured is what
stands around a tower. `seconds` are the processor's, so that other work counts little; they and
`peak_mib` are of the whole process. `slope` is of the last two corpora, with the seconds of the
first one, which are the start of a process, taken off: 1 is linear, n log n is 1.05 to 1.1 there.
Prints one JSON object.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import side_by_side

SEED = 0
WORDS, QUERIES, CHANGES, DIM = 20_000, 1_000, 1_000, 32


def make_model(directory: Path) -> None:
    """Saves the model; in a process of its own, whose memory would count for its children."""
    import tfde

    words = words_of_corpus()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = tfde.DualEncoder.from_backbone(
        tfde.BagOfWordsConfig(WORDS + len(special), embedding_dim=DIM, hidden_dim=DIM),
        tokenizer=tfde.WordPieceTokenizer([*special, *words]),
        text=tfde.TextConfig(query_max_length_tokens=16, document_max_length_tokens=16),
        seed=SEED,
    )
    model.save_to_preset(directory)


def words_of_corpus() -> list[str]:
    """Returns the words, the frequent ones first."""
    return [f"w{number}" for number in range(WORDS)]


def write_texts(path: Path, words: list[str], count: int, *, prefix: str, length: int) -> None:
    """Writes rows of frequent and rare words, as texts have them."""
    rng = np.random.default_rng(SEED)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, count, 100_000):
            rows = min(100_000, count - start)
            ranks = np.floor(len(words) ** rng.random((rows, length))).astype(int)
            for number, row in enumerate(ranks, start):
                record = {"_id": f"{prefix}{number}", "text": " ".join(words[i - 1] for i in row)}
                file.write(json.dumps(record) + "\n")


def write_dataset(directory: Path, words: list[str], documents: int) -> None:
    """Writes a dataset directory, and documents to add to an index later."""
    (directory / "qrels").mkdir(parents=True)
    write_texts(directory / "corpus.jsonl", words, documents, prefix="d", length=12)
    write_texts(directory / "queries.jsonl", words, QUERIES, prefix="q", length=6)
    write_texts(directory / "new.jsonl", words, CHANGES, prefix="n", length=12)
    step = documents // QUERIES
    rows = "".join(f"q{number}\td{number * step}\t1\n" for number in range(QUERIES))
    for split in ("train", "test"):
        (directory / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")


def measured(command: list[str]) -> dict[str, float]:
    """Runs `tfde`; returns its seconds and the most memory it had."""
    line = [sys.executable, "-m", "tfde.cli.main", *map(str, command)]
    process = os.posix_spawn(
        sys.executable,
        line,
        {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],  # on stdout stands our result alone
    )
    _, status, usage = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(line)}: ended with {code}")
    return {
        "seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def commands_of(folder: Path) -> dict[str, list]:
    """Returns what is measured, in its order."""
    data, model = folder / "data", folder.parent / "model"
    vectors, index = folder / "embeddings", folder / "index"
    about = ["--dataset", data, "--model", model]
    return {
        "encode": ["encode", *about, "--output", vectors],
        "build-index": ["build-index", "--embeddings", vectors, "--output", index],
        "retrieve": ["retrieve", "--model", model, "--index", index, "--queries",
                     data / "queries.jsonl", "--output", folder / "run.trec"],
        "evaluate": ["evaluate", *about],
        "evaluate --bm25": ["evaluate", "--dataset", data, "--bm25"],
        "mine-negatives": ["mine-negatives", *about, "--index", index,
                           "--output", folder / "negatives.jsonl"],
        "index add": ["index", "add", index, "--model", model, "--input", data / "new.jsonl"],
        "index compact": ["index", "compact", index],
    }  # fmt: skip


def slopes(points: list[dict]) -> dict[str, float]:
    """Returns each command's slope on logarithmic axes between the last two corpora."""
    first, before, last = points[0], points[-2], points[-1]
    ratio = math.log(last["documents"] / before["documents"])
    found = {}
    for name in commands_of(Path()):
        start = first[name]["seconds"]
        grown = [max(point[name]["seconds"] - start, 0.1) for point in (before, last)]
        found[name] = round(math.log(grown[1] / grown[0]) / ratio, 2)
    return found


def draw(points: list[dict], figure: Path) -> None:
    """Draws seconds and memory by the size of the corpus."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 4), layout="constrained")
    for axes, key in zip(canvas.subplots(1, 2), ("seconds", "peak_mib"), strict=True):
        for name in commands_of(Path()):
            x = [point["documents"] for point in points]
            axes.plot(x, [point[name][key] for point in points], marker="o", label=name)
        title = {"seconds": "processor seconds", "peak_mib": "MiB at most"}[key]
        axes.set(xscale="log", yscale="log", xlabel="documents", title=title)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [1_000, 10_000, 100_000, 1_000_000]
    parser.add_argument("--documents", type=int, nargs="+", default=sizes)
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model:
        make_model(args.model)
        return
    if min(args.documents) < QUERIES or len(set(args.documents)) < max(3, len(args.documents)):
        parser.error(f"--documents must be three different sizes or more, {QUERIES} at least")
    points = []
    with tempfile.TemporaryDirectory() as directory:
        model = ["--model", str(Path(directory) / "model")]
        subprocess.run([sys.executable, __file__, *model], check=True, stdout=sys.stderr)
        words = words_of_corpus()
        for documents in sorted(args.documents):
            folder = Path(directory) / str(documents)
            write_dataset(folder / "data", words, documents)
            point: dict = {"documents": documents}
            for name, command in commands_of(folder).items():
                point[name] = measured(command)
                print(documents, name, point[name], file=sys.stderr)
            points.append(point)
            shutil.rmtree(folder)
    if args.figure:
        draw(points, args.figure)
    found = {"points": points, "slope": slopes(points), "dim": DIM, "queries": QUERIES}
    side_by_side.finish(found, ("tfde", "tensorflow", "scann"), args.output)


if __name__ == "__main__":
    main()
