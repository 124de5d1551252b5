"""Writes docs/benchmarks.md from the JSON files of the benchmarks.

    python benchmarks/report.py --results build/benchmarks --output docs/benchmarks.md

Takes what is there: a benchmark that has not run has no row. `make bench` runs all of them first.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

ST, ORT, OPENVINO = "sentence_transformers", "onnxruntime", "openvino"
ENGINES = {"": "", " in openvino": " in OpenVINO"}  # what ours runs in: in a key, in words
SMALLEST_COSINE, LARGEST_NDCG_LOSS = 0.999, 0.5
# PyTorch's autocast gives similarity times 20 in bfloat16, whose steps there are 0.125.
LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.0625}


@dataclasses.dataclass(frozen=True)
class Question:
    """A row of the table.

    Attributes:
        file: The JSON file, without its ending.
        key: The entry of that file.
        text: The question.
        bar: The ratio that must be reached, if there is one.
        unit: What both sides' speeds count.
        check: What else must hold: returns what was found, and whether that is enough.
    """

    file: str
    key: str
    text: str
    bar: float | None
    unit: str
    check: Callable[[dict], tuple[str, bool]] = lambda found: ("", True)


def cosine(found: dict) -> tuple[str, bool]:
    """Whether every text's embedding is close to the library's in float32."""
    smallest = found["ours_smallest_cosine"]
    text = f"smallest cosine {smallest:.4f} / {found['theirs_smallest_cosine']:.4f}"
    return text, smallest >= SMALLEST_COSINE


def ndcg(found: dict) -> tuple[str, bool]:
    """Whether int8 retrieves as well as float32."""
    ours, whole = found["ours_scifact_ndcg10"], found["float32_scifact_ndcg10"]
    theirs = found["theirs_scifact_ndcg10"]
    text = f"nDCG@10 on SciFact {ours:.2f} / {theirs:.2f}, float32 {whole:.2f}"
    return text, whole - ours <= LARGEST_NDCG_LOSS


def loss(found: dict) -> tuple[str, bool]:
    """Whether both sides compute the same loss, and both with dropout."""
    ours, theirs = found["ours_loss"], found["theirs_loss"]
    text = f"first loss {ours:.4f} / {theirs:.4f}"
    if found["ours_share_of_padding"] or found["theirs_share_of_padding"]:
        shares = (found["ours_share_of_padding"], found["theirs_share_of_padding"])
        text += ", padding {:.0%} / {:.0%}".format(*shares)
    same = abs(ours - theirs) <= LOSS_TOLERANCES[found["dtype"]]
    return text, same and found["ours_dropout"] and found["theirs_dropout"]


def ids(found: dict) -> tuple[str, bool]:
    """Whether every text gets the same ids."""
    return f"{found['share_of_equal_ids']:.2%} equal ids", found["share_of_equal_ids"] == 1


def questions() -> Iterator[Question]:
    """Yields the rows, with the ratios that the issues ask for."""
    for dtype, peer, name, bar in (
        ("float32", ST, "sentence-transformers", 2.5),
        ("float32", ORT, "ONNX Runtime", 1.8),
        ("float32", OPENVINO, "OpenVINO", 1.1),
        ("bfloat16", ST, "sentence-transformers' autocast", 1.8),
        ("bfloat16", OPENVINO, "OpenVINO in bfloat16", None),
    ):
        for engine, by in ENGINES.items():
            text = f"encode documents{by}, {dtype}, against {name}"
            key = f"documents_{dtype}{engine} against {peer}"
            yield Question("encoding", key, text, bar, "texts/s", cosine)
    yield Question(
        "encoding", f"documents_int8 against {ORT}",
        "encode documents, int8, against ONNX Runtime's dynamic int8", 0.9, "texts/s", ndcg,
    )  # fmt: skip
    for dtype, peer, name, bar in (
        ("float32", ST, "sentence-transformers", 3.0),
        ("bfloat16", ST, "sentence-transformers' autocast", None),
        ("float32", ORT, "ONNX Runtime", 1.2),
        ("float32", OPENVINO, "OpenVINO", None),
    ):
        for engine, by in ENGINES.items():
            text = f"one query{by}, tokenization included, {dtype}, against {name}"
            key = f"one_query_{dtype}{engine} against {peer}"
            yield Question("encoding", key, text, bar, "ms")
    for data, name, bar in (("fixed", "32 + 128 tokens", 1.0), ("squad", "mixed lengths", 1.3)):
        for dtype in ("float32", "bfloat16"):
            for batch in (32, 128):
                text = f"training step, {name}, batch {batch}, {dtype}"
                key = f"{data}_{dtype}_{batch}"
                yield Question("training", key, text, bar, "pairs/s", loss)
    for dtype in ("float32", "bfloat16"):
        text = f"T5 of small size: training step, 32 + 128 tokens, batch 32, {dtype}"
        yield Question("training_t5", f"fixed_{dtype}_32", text, 1.0, "pairs/s", loss)
        text = f"T5 of small size: encode documents, {dtype}"
        key = f"documents_{dtype} against {ST}"
        yield Question("encoding_t5", key, text, 1.0, "texts/s", cosine)
    for kind, name in (("wordpiece", "WordPiece"), ("unigram", "SentencePiece (Unigram)")):
        for batch in (32, 256):
            text = f"tokenization, {name}, batch {batch}, against tokenizers"
            yield Question("tokenization", f"{kind}_{batch}", text, 1.0, "texts/s", ids)


def bounds() -> Iterator[tuple[str, str, str, tuple[str, str, str], float, str]]:
    """Yields what is measured alone: file, entry, question, names of the figures, bound, unit."""
    seconds = ("median_s", "lowest_s", "highest_s")
    yield "startup", "help", "`tfde --help`", seconds, 0.3, "s"
    # Half of what it was on the machine of its row.
    text = "all-MiniLM-L6-v2: load and first embedding, processor time"
    yield "startup", "first_embedding", text, seconds, 2.3, "s"
    times = ("times_plain", "times_plain_lowest", "times_plain_highest")
    for dtype in ("float32", "bfloat16"):
        text = f"gradient cache, mixed lengths, {dtype}, time of as many plain chunks"
        yield "gradient_cache", f"squad_{dtype}", text, times, 1.5, "x"


def row(question: Question, found: dict, command: int) -> str:
    """Returns one line of the table; the command is one of the numbered list below it."""
    check, holds = question.check(found)
    if question.unit == "ms":
        speeds = [f"{1000 * found[f'{side}_s']:.2f} ms" for side in ("ours", "theirs")]
    else:
        speeds = [f"{found[f'{side}_per_s']:g} {question.unit}" for side in ("ours", "theirs")]
    ratio = f"{found['ratio']:.2f} ({found['ratio_lowest']:.2f}-{found['ratio_highest']:.2f})"
    if found.get("apart"):
        ratio += ", one after the other"
    bar, met = "-", "-"
    if question.bar is not None:
        bar = f"{question.bar:g}"
        met = "yes" if found["ratio"] >= question.bar and holds else "**no**"
    cells = [question.text, ratio, *speeds, check, bar, met, str(command)]
    return f"| {' | '.join(cells)} |"


def document(results: dict[str, dict]) -> str:
    """Returns docs/benchmarks.md.

    Args:
        results: The content of the JSON files by name.
    """
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. tfde and the peer work in turns on the same weights, texts and"
        " cores; a ratio above 1 says that tfde is faster: the median of the pairs of measurements,"
        ' with the lowest and the highest. "Bar" is the ratio to reach.'
        " Rows of one command may come from several runs of it.",
        "",
        "| question | ratio (lowest-highest) | tfde | peer | check, tfde / peer | bar | reached |"
        " command |",
        "|---|---|---:|---:|---|---:|---|---:|",
    ]
    left_out = []
    numbers = {name: number for number, name in enumerate(results, start=1)}
    for question in questions():
        found = results.get(question.file, {}).get(question.key, {})
        if "ratio" in found:
            lines.append(row(question, found, numbers[question.file]))
        elif "left_out" in found:
            left_out.append(f"- {question.text}: {found['left_out']}.")
    for file, key, text, names, bound, unit in bounds():
        if found := results.get(file, {}).get(key):
            median, lowest, highest = (found[name] for name in names)
            cells = [text, f"{median:.2f} {unit} ({lowest:.2f}-{highest:.2f})", "-", "-", ""]
            met = "yes" if median <= bound else "**no**"
            cells += [f"at most {bound:g} {unit}", met, str(numbers[file])]
            lines.append(f"| {' | '.join(cells)} |")
    if left_out:
        lines += ["", "Not measured:", "", *left_out]
    lines += ["", "## Commands", ""]
    lines += [f"{numbers[name]}. `{result['command']}`" for name, result in results.items()]
    lines += ["", "## Machine and versions", ""]
    machines: dict[str, dict[str, str]] = {}
    for result in results.values():
        machine = f"{result['cpu']}, {result['cores']} cores, Python {result['python']}"
        machines.setdefault(machine, {}).update(result["versions"])
    for machine, versions in machines.items():
        names = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
        lines.append(f"- {machine}: {names}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the results and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of JSON files")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    files = dict.fromkeys([question.file for question in questions()] + [b[0] for b in bounds()])
    paths = {name: args.results / f"{name}.json" for name in files}
    found = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }
    args.output.write_text(document(found), encoding="utf-8")


if __name__ == "__main__":
    main()
