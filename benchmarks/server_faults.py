"""Does one client's attack ever cost the others an answer, or the server its memory or its life?

    python benchmarks/server_faults.py [--attacks NAME ...] [--markdown] [--output FILE]

Makes a small bundle and a live index, and for each attack starts `tfde serve` afresh, with its
defaults. While a process of its own attacks, honest clients go on asking: /v1/search, REST and gRPC
by turns, each on a new connection but gRPC's, and /healthz every 50 ms. The attacks come from curl,
grpc's client and plain sockets, to 127.0.0.1 only, each for some seconds.

Prints what was sent and what came back, the peak of resident memory above that before the attack,
the longest /healthz, how many honest requests were answered and how many failed, and bytes of log.
The exit code is 1 if an honest request failed or a server was gone after an attack.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import server_attacks
from server_attacks import ATTACKS, KEY, PREDICT, WORDS, Ports


class Server:
    """`tfde serve` with its defaults, in a process of its own."""

    def __init__(self, world: Path) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `run_attack`
        command = [
            sys.executable, "-m", "tfde.cli.main", "serve", str(world / "bundle"),
            "--index", str(world / "index"), "--admin_key_file", str(world / "key"),
            "--port", "0", "--rest_api_port", "0", "--http_port", "0",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=None
        )
        ready = self.process.stdout.readline()  # type: ignore[union-attr]
        if not ready:
            self.log.seek(0)
            raise RuntimeError(f"the server did not start: {self.log.read()[-500:]}")
        ports = re.findall(r":(\d+)[,;]", ready)
        self.ports = Ports(*map(int, ports[:3]), self.process.pid, str(world))
        self.quiet_log = self.log_bytes()

    def log_bytes(self) -> int:
        return Path(f"/proc/self/fd/{self.log.fileno()}").stat().st_size

    def memory(self, name: str) -> float:
        """Returns a size of /proc/PID/status, MiB."""
        text = Path(f"/proc/{self.ports.pid}/status").read_text()
        return int(text.split(f"{name}:")[1].split()[0]) / 1024

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(100)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Watch:
    """Honest clients and a poller of /healthz, in threads of this process, while an attack runs."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._stop = threading.Event()
        self.longest_healthz_s = 0.0
        self.answered = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        query = Path(ports.folder, "one_string").read_bytes()
        channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}")
        predict = channel.unary_unary(PREDICT)
        rest = json.dumps({"instances": ["red cat"]}).encode()
        asks = [
            lambda: self._http(ports.http, "/v1/search", b'{"query": "red cat", "k": 3}'),
            lambda: self._http(ports.rest, "/v1/models/query_encoder:predict", rest),
            lambda: predict(query, timeout=30),
        ]
        self._threads = [threading.Thread(target=self._ask, args=(ask,)) for ask in asks]
        self._threads.append(threading.Thread(target=self._poll))

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _http(self, port: int, path: str, body: bytes | None) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body)
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()

    def _ask(self, ask: Callable[[], Any]) -> None:
        while not self._stop.wait(0.15):
            try:
                ask()
                with self._lock:
                    self.answered += 1
            except (OSError, grpc.RpcError, http.client.HTTPException) as error:
                code = error.code().name if isinstance(error, grpc.RpcError) else repr(error)
                self.failures.append(code)

    def _poll(self) -> None:
        while not self._stop.wait(0.05):
            started = time.monotonic()
            try:
                self._http(self._ports.http, "/healthz", None)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"/healthz: {error!r}")
            self.longest_healthz_s = max(self.longest_healthz_s, time.monotonic() - started)


def run_attack(name: str, world: Path) -> dict[str, Any]:
    """Starts a server, attacks it, and returns a row of the table."""
    started = time.monotonic()
    live = world / "index"
    shutil.rmtree(live, ignore_errors=True)
    shutil.copytree(world / "index.whole", live)
    server = Server(world)
    try:
        ends = name == "end_under_load"
        resident = server.memory("VmRSS")
        Path(f"/proc/{server.ports.pid}/clear_refs").write_text("5")  # the peak begins anew
        watch: Any = contextlib.nullcontext() if ends else Watch(server.ports)
        with watch:
            if not ends:
                time.sleep(1)
            command = [sys.executable, server_attacks.__file__, name, json.dumps(server.ports)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
            peak = 0.0 if ends else server.memory("VmHWM")
            if not ends:
                time.sleep(1)
        outcome = json.loads(done.stdout) if done.returncode == 0 else {done.stderr[-300:]: 1}
        died = not ends and server.process.poll() is not None
        code = server.end()
        row = {
            "attack": name,
            "sent": (ATTACKS[name].__doc__ or "").strip(),
            "came back": outcome,
            "peak_mib_above": None if ends else round(peak - resident),
            "longest_healthz_s": None if ends else round(watch.longest_healthz_s, 2),
            "honest_answered": None if ends else watch.answered,
            "honest_failed": 0 if ends else len(watch.failures),
            "failures": [] if ends else dict(collections.Counter(watch.failures).most_common(5)),
            "log_bytes": server.log_bytes() - server.quiet_log,
            "exit_code": code,
            "seconds": round(time.monotonic() - started),
            "died": died,
        }
    finally:
        server.end()
        server.log.close()
    return row


def make_world(folder: Path) -> None:
    """Writes a bundle, an index directory, a key, and requests for gRPC."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    import tfde
    from tfde.export.bundle import export_bundle
    from tfde.retrieval.exact_index import ExactIndex
    from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
    from tfde.text.sentence_piece.train import train_sentencepiece
    from tfde.types import Document

    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:4]]
    documents = [Document(f"d{i}", "", text) for i, text in enumerate(texts)]
    train_sentencepiece(texts, folder / "spiece.model", vocabulary_size=30)
    model = tfde.DualEncoder.from_backbone(
        tfde.T5Config(
            vocabulary_size=128, num_layers=2, num_heads=4, hidden_dim=64, intermediate_dim=128,
            key_value_dim=16,
        ),
        tokenizer=SentencePieceTokenizer.from_file(folder / "spiece.model"),
        text=tfde.TextConfig(query_max_length_tokens=64, document_max_length_tokens=256),
        embedding_dim=32,
        seed=1,
    )  # fmt: skip
    vectors = model.encode_documents(documents)
    ids = [document.doc_id for document in documents]
    index = ExactIndex.build(vectors, ids, fingerprint=model.fingerprint())
    index.save(folder / "index.whole")
    export_bundle(model, index, folder / "bundle", documents=documents)
    (folder / "key").write_text(KEY)

    def request(name: str, tensor: Any) -> None:
        message = predict_pb2.PredictRequest()
        message.model_spec.name = "query_encoder"
        message.inputs["text"].CopyFrom(tensor)
        (folder / name).write_bytes(message.SerializeToString())

    def one_for(*shape: int) -> Any:
        proto = tf.make_tensor_proto(["red"])
        del proto.tensor_shape.dim[:]
        for size in shape:
            proto.tensor_shape.dim.add(size=size)
        return proto

    request("one_string", tf.make_tensor_proto(["red cat"]))
    request("repeated", one_for(16_000_000))
    request("huge", one_for(2**62))
    request("square", one_for(65_536, 65_536))
    request("strings", tf.make_tensor_proto([f"red {i}" for i in range(100_000)]))
    request("most_strings", tf.make_tensor_proto([f"red {i}" for i in range(16_384)]))


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| sent | came back | peak memory above, MiB | longest `/healthz`, s |"
        " honest: answered, failed | log, bytes |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        came = ", ".join(
            f"{number:,} x {what}" if number > 1 else what
            for what, number in row["came back"].items()
        )
        numbers = [row["peak_mib_above"], row["longest_healthz_s"], row["honest_answered"]]
        peak, healthz, answered = ("" if n is None else f"{n:,}" for n in numbers)
        honest = f"{answered}, {row['honest_failed']}" if answered else ""
        lines.append(
            f"| {row['sent']} | {came} | {peak} | {healthz} | {honest} | {row['log_bytes']:,} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs the campaign, or one attack against a server that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--markdown", action="store_true", help="print a table")
    parser.add_argument("--output", type=Path, help="JSON file, besides standard output")
    parser.add_argument("--world", type=Path, help="folder of an earlier run, to begin sooner")
    args = parser.parse_args()
    import side_by_side

    with contextlib.ExitStack() as stack:
        world = args.world or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (world / "key").exists():
            world.mkdir(parents=True, exist_ok=True)
            make_world(world)
        rows = []
        for name in args.attacks:
            rows.append(run_attack(name, world))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if args.output or not args.markdown:
        packages = ("tensorflow", "grpcio", "uvicorn", "h11", "fastapi")
        side_by_side.finish({"attacks": rows}, packages, args.output)
    if args.markdown:
        print(markdown(rows))
    well = all(not row["honest_failed"] and not row["died"] for row in rows)
    return 0 if well and all(row["exit_code"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
