"""The rows of docs/benchmarks.md: what each asks, what it must reach, and what else must hold."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

ST, ORT, OPENVINO = "sentence_transformers", "onnxruntime", "openvino"
ENGINES = {"": "", " in openvino": " in OpenVINO"}  # what ours runs in: in a key, in words
INDEXES = {"faiss_hnsw": "faiss HNSW", "hnswlib": "hnswlib", "faiss_ivf_pq": "faiss IVF-PQ"}
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
        read: Makes of the file's content what a row says, where that is not the entry itself.
        check: What else must hold: returns what was found, and whether that is enough.
    """

    file: str
    key: str
    text: str
    bar: float | None
    unit: str
    check: Callable[[dict], tuple[str, bool]] = lambda found: ("", True)
    read: Callable[[dict], dict] | None = None

    def found(self, results: dict[str, dict]) -> dict:
        """Returns what its benchmark found, empty if it has not run."""
        result = results.get(self.file, {})
        return self.read(result) if self.read and result else result.get(self.key, {})


def cosine(found: dict) -> tuple[str, bool]:
    """Whether every text's embedding is close to the library's in float32."""
    smallest = found["ours_smallest_cosine"]
    text = f"smallest cosine {smallest:.4f} / {found['theirs_smallest_cosine']:.4f}"
    return text, smallest >= SMALLEST_COSINE


def ndcg(found: dict) -> tuple[str, bool]:
    """Whether int8 retrieves as well as float32."""
    ours, whole = found["ours_scifact_ndcg10"], found["float32_scifact_ndcg10"]
    theirs = found["theirs_scifact_ndcg10"]
    text = f"nDCG@10 on {found['scifact_documents']:,} documents of SciFact"
    text += f" {ours:.2f} / {theirs:.2f}, float32 {whole:.2f}"
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


def delays(found: dict) -> tuple[str, bool]:
    """How long single questions take through a server, and whether both find the same."""
    text = "p50 {ours_p50:.3g} / {theirs_p50:.3g} ms, p99 {ours_p99:.3g} / {theirs_p99:.3g} ms"
    return f"{text.format(**found)}, {found['equal_ids']:.0%} equal ids", True


def recalls(found: dict) -> tuple[str, bool]:
    """What both find of the exact neighbours."""
    return f"recall {found['ours_recall']:.3f} / {found['theirs_recall']:.3f}", True


def questions() -> Iterator[Question]:
    """Yields the rows of encoding and training, with the ratios that the issues ask for."""
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


def server_questions() -> Iterator[Question]:
    """Yields the rows of a served search."""
    for file, by in (("served_search", ""), ("served_search_openvino", " in OpenVINO")):
        for peer, name in (("peer", "the peer"), ("peer_batched", "the peer with batching")):
            for clients, bar in ((1, 2.0), (8, 3.0), (64, 4.5)):
                many = "clients" if clients > 1 else "client"
                text = f"text in, ids out{by}, {clients} {many}, against {name}"
                read = functools.partial(_served, clients=clients, peer=peer)
                reach = bar if peer == "peer" else None
                yield Question(file, "", text, reach, "questions/s", delays, read)


def _served(result: dict, *, clients: int, peer: str) -> dict:
    figures = result.get(f"{clients} clients", {})
    if f"tfde against {peer}" not in figures:
        return {}
    found = {**figures[f"tfde against {peer}"], "equal_ids": result["equal_ids"][f"tfde, {peer}"]}
    for side, name in (("ours", "tfde"), ("theirs", peer)):
        found[f"{side}_per_s"] = round(figures[name]["queries_per_s"])
        found |= {f"{side}_{key}": figures[name][f"{key}_ms"] for key in ("p50", "p99")}
    return found


def index_questions() -> Iterator[Question]:
    """Yields the rows of the ScaNN index."""
    for target, batch, threads in itertools.product((0.95, 0.99), (1, 100), (1, 2)):
        ways = {1: "one by one", 100: "100 a call"}[batch]
        number = {1: "one thread", 2: "two threads"}[threads]
        for peer, name in INDEXES.items():
            key = f"recall_{target:g}_batch_{batch}_threads_{threads} against {peer}"
            text = f"recall@10 of {target:g}, {ways}, {number}, against {name}"
            bar = None if peer == "faiss_ivf_pq" else 1.5
            yield Question("index_peers", key, text, bar, "ms a query", recalls)


class Bound(NamedTuple):
    """A row of what is measured alone.

    Attributes:
        file: The JSON file, without its ending.
        key: The entry of that file; of an entry within another, both with a slash between.
        text: The question.
        figures: What median, lowest and highest are called there.
        most: What the median may be, if there is such a bound.
        unit: Of the figures.
    """

    file: str
    key: str
    text: str
    figures: tuple[str, str, str]
    most: float | None
    unit: str

    def found(self, results: dict[str, dict]) -> dict:
        """Returns what its benchmark found, empty if it has not run."""
        entry = results.get(self.file, {})
        for key in self.key.split("/"):
            entry = entry.get(key, {})
        return entry


SECONDS = ("median_s", "lowest_s", "highest_s")


def bounds() -> Iterator[Bound]:
    """Yields what loading a model and gradient caching take."""
    yield Bound("startup", "help", "`tfde --help`", SECONDS, 0.3, "s")
    # Half of what it was on the machine of its row.
    text = "all-MiniLM-L6-v2: load and first embedding, processor time"
    yield Bound("startup", "first_embedding", text, SECONDS, 2.3, "s")
    text = "`tfde train` with all-MiniLM-L6-v2, from the command to its first step"
    yield Bound("training_pipeline", "first_step", text, SECONDS, None, "s")
    times = ("times_plain", "times_plain_lowest", "times_plain_highest")
    for dtype in ("float32", "bfloat16"):
        text = f"gradient cache, mixed lengths, {dtype}, time of as many plain chunks"
        yield Bound("gradient_cache", f"squad_{dtype}", text, times, 1.5, "x")


def server_bounds() -> Iterator[Bound]:
    """Yields what a server adds to a call, and its start."""
    times = ("median_ms", "lowest_ms", "highest_ms")
    for way, name in (("grpc", "Predict over gRPC"), ("rest", "`:predict` over REST")):
        text = f"{name}, more than the bare call"
        yield Bound("model_server", f"{way}_adds", text, times, 0.5, "ms")
    for file, by in (("served_search", ""), ("served_search_openvino", " in OpenVINO")):
        for key, what, most in (
            ("tfde", "whole bundle", 6.0),
            ("tfde_alone", "one retriever", 4.0),
        ):
            text = f"start to first right answer{by}, {what}"
            yield Bound(file, f"first_answer_s/{key}", text, SECONDS, most, "s")
    text = "start to first right answer, the peer"
    yield Bound("served_search", "first_answer_s/peer", text, SECONDS, None, "s")


def index_sizes(results: dict[str, dict]) -> Iterator[str]:
    """Yields a table of what the indexes take to build and to keep."""
    indexes = results.get("index_peers", {}).get("indexes", {})
    if indexes:
        yield from ("| | build, s | bytes a vector, resident | stored |", "|---|---:|---:|---:|")
    for name, found in indexes.items():
        shown = {"scann": "ours", **INDEXES}.get(name, name)
        resident, stored = round(found["resident_bytes"]), round(found["stored_bytes"])
        yield f"| {shown} | {found['build_s']:.0f} | {resident} | {stored} |"


def training_shares(results: dict[str, dict]) -> Iterator[str]:
    """Yields where the time of `tfde train` goes."""
    found = results.get("training_pipeline")
    if found:
        shares = dict(found["shares"])
        whole = shares.pop("seconds")
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield f"`tfde train`, {found['steps']} steps with five validations, {whole:.0f} s: {parts}."


class Section(NamedTuple):
    """A heading of the page, with its table, and what else there is to say."""

    title: str
    about: str
    questions: Callable[[], Iterator[Question]]
    bounds: Callable[[], Iterator[Bound]] = lambda: iter(())
    more: Callable[[dict[str, dict]], Iterator[str]] = lambda results: iter(())


SECTIONS = (
    Section(
        "Encoding and training",
        "all-MiniLM-L6-v2 with SQuAD's texts, where nothing else is said.",
        questions,
        bounds,
        training_shares,
    ),
    Section(
        "Through a server",
        "`tfde serve` with the ScaNN retriever of 20,000 sentences of SQuAD, asked over gRPC. The"
        " peer is the same search written with FastAPI, uvicorn, sentence-transformers and faiss,"
        " with and without batching of its own. Clients wait for each answer, and share the"
        " machine's cores with the server.",
        server_questions,
        server_bounds,
    ),
    Section(
        "The ScaNN index",
        "Vectors of 128 dimensions, a mixture of 2,000 Gaussians; the 10 best by inner product;"
        " each side's cheapest setting that reaches the recall on other queries. Single queries"
        " come from as many threads as are named.",
        index_questions,
        more=index_sizes,
    ),
)
