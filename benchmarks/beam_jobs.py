"""What does a Beam job cost on one machine, beside the command that writes the same files?

    python benchmarks/beam_jobs.py [--pages PAGES] [--pairs 60000] [--corpus D] [--model M]
        [--documents 20000] [--jobs make_pairs ...] [--output FILE]

Each of four works is done by the command, by the job in one process and by the job on two workers,
one after the other: drawing pre-training pairs from a store at hand; encoding the first documents
of a dataset with the model (`TFDE_MINILM` by default), eight shards; exact search over the
whole dataset (`squad_sent` under TFDE_DATA by default) with a bag of words of random weights and
256 dimensions for the questions of its dev split, 100 documents each; four hard negatives for each
of them from that run. Prints one JSON object: wall seconds, start and imports included, and whether
the files are the same byte by byte (for embeddings they need not be, and are not compared). The
command for the search is `tfde build-index --kind exact`, then `tfde retrieve`.
"""

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import side_by_side

SEED, SHARDS, DIM = 0, 8, 256
SCRIPTS = Path(__file__).parents[1] / "pipelines" / "beam"
JOBS = ["make_pairs", "encode_corpus", "retrieve", "mine_negatives"]
TFDE = [sys.executable, "-m", "tfde.cli.main"]
TWO_WORKERS = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]


def prepare(args: argparse.Namespace, work: Path) -> None:
    """Makes the store, models, datasets and embeddings that the works read."""
    import tfde
    from tfde.data.dataset_directory import DatasetDirectory
    from tfde.data.dataset_writer import write_dataset_directory
    from tfde.export.bundle import export_bundle
    from tfde.pretraining.build_store import build_store
    from tfde.retrieval.encode_corpus import encode_corpus
    from tfde.storage.json_lines import write_json_lines
    from tfde.towers.dual_encoder import DualEncoder

    build_store(args.pages, work / "store", workers=2)
    model = DualEncoder.load(args.model)
    model.save_to_preset(work / "model")
    export_bundle(model, None, work / "bundle")
    tokenizer = model.preprocessor.tokenizer
    bag = DualEncoder.from_backbone(
        tfde.BagOfWordsConfig(
            vocabulary_size=tokenizer.vocabulary_size, embedding_dim=DIM, hidden_dim=DIM
        ),
        tokenizer=tokenizer,
        text=tfde.TextConfig(query_max_length_tokens=32, document_max_length_tokens=64),
        seed=SEED,
    )
    bag.save_to_preset(work / "bag")
    export_bundle(bag, None, work / "bag_bundle")
    corpus = DatasetDirectory(args.corpus)
    encode_corpus(bag, corpus.documents(), work / "corpus", shard_size=args.shard_size)
    first = itertools.islice(corpus.documents(), args.documents)
    write_dataset_directory(work / "first", first, [], {})
    queries = ({"_id": query.query_id, "text": query.text} for query in corpus.queries("dev"))
    write_json_lines(work / "dev.jsonl", queries)


def measure(job: str, arguments: str, commands: Sequence[str], output: str) -> dict:
    """Lets the command and both kinds of the job work.

    Args:
        job: Name of the script.
        arguments: What it is called with.
        commands: What `tfde` is called with, one after the other.
        output: Name of the output, with `{}` for who made it.
    """
    jobs = [sys.executable, str(SCRIPTS / f"{job}.py"), *shlex.split(arguments)]
    sides = {
        "command": [[*TFDE, *shlex.split(command)] for command in commands],
        "one process": [jobs],
        "two workers": [[*jobs, *TWO_WORKERS]],
    }
    seconds, outputs = {}, {}
    for side, lines in sides.items():
        outputs[side] = Path(output.format(side.replace(" ", "_")))
        lines[-1] = [*lines[-1], "--output", str(outputs[side])]
        start = time.perf_counter()
        for line in lines:
            subprocess.run(line, check=True, stdout=sys.stderr)
        seconds[side] = round(time.perf_counter() - start, 1)
    result = {"job": job, "seconds": seconds}
    if all(path.is_file() for path in outputs.values()):
        command, one, two = (path.read_bytes() for path in outputs.values())
        result |= {"same_as_command": command == two, "same_with_one_process": one == two}
    return result


def main() -> None:
    """Prepares, then measures the four works."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("TFDE_DATA", "")
    parser.add_argument("--pages", default=f"{data}/wikispeedia/pages.jsonl.gz")
    parser.add_argument("--pairs", type=int, default=60_000)
    parser.add_argument("--corpus", default=f"{data}/squad_sent", help="with a split dev")
    parser.add_argument("--shard-size", type=int, default=10_000, help="of the searched corpus")
    parser.add_argument("--model", default=os.environ.get("TFDE_MINILM"))
    parser.add_argument("--documents", type=int, default=20_000, help="that the model encodes")
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS, default=JOBS, help="the last needs the run of `retrieve`"
    )
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(args, work)
        pairs = f"--pages {args.pages} --store {work}/store --limit {args.pairs}"
        encode = f"--dataset {work}/first --shard_size {-(-args.documents // SHARDS)}"
        search = f"--queries {work}/dev.jsonl -k 100"
        mine = f"--dataset {args.corpus} --split dev --run_file {work}/two_workers.trec.gz"
        works = {
            "make_pairs": (pairs, [f"make-pairs {pairs}"], f"{work}/{{}}.pairs.jsonl.gz"),
            "encode_corpus": (
                f"--bundle {work}/bundle {encode}",
                [f"encode --model {work}/model {encode}"],
                f"{work}/{{}}",
            ),
            "retrieve": (
                f"--bundle {work}/bag_bundle --embeddings {work}/corpus {search}",
                [
                    f"build-index --embeddings {work}/corpus --kind exact --output {work}/index",
                    f"retrieve --model {work}/bag --index {work}/index {search}",
                ],
                f"{work}/{{}}.trec.gz",
            ),
            "mine_negatives": (mine, [f"mine-negatives {mine}"], f"{work}/{{}}.jsonl.gz"),
        }
        rows = [measure(job, *works[job]) for job in args.jobs]
    side_by_side.finish({"seed": SEED, "jobs": rows}, ["apache-beam", "tensorflow"], args.output)


if __name__ == "__main__":
    main()
