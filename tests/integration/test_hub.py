"""`hf://owner/name` from a small hub on this machine, through huggingface_hub."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from bert_directory import H, write_dense, write_sentence_transformers, write_shards

from tfde.towers.dual_encoder import DualEncoder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_a_test"
ENCODE = """
import sys
import tfde
print(tfde.DualEncoder.load(sys.argv[1]).encode_queries(["a b", "c"]).tolist())
"""
# Without TensorFlow, whose import takes longer than all that the hub is asked.
FETCH = """
import sys
from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.errors import TfdeError
try:
    files = CheckpointFiles(sys.argv[1])
    print(files.path("0_Transformer/config.json"), files.path("0_Transformer/model-1.safetensors"))
except TfdeError as error:
    sys.exit(f"refused: {error}")
"""


SIZES = """
import sys
from tfde.checkpoints.checkpoint_files import CheckpointFiles
for handle in sys.argv[1].split():
    print(CheckpointFiles(handle).json("config.json"))
"""


class Hub(ThreadingHTTPServer):
    """Serves one repository as a hub does.

    Attributes:
        requested: Method and path of each request.
        cut: Files whose first download breaks off in the middle.
        private: Whether only `TOKEN` may see the repository.
        silent: Whether requests are taken and never answered.
    """

    daemon_threads = False  # an answer must not outlive its test and print into another's output

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.requested = []
        self.cut = set()
        self.private = self.silent = False
        self.closing = threading.Event()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """The three routes that huggingface_hub asks for a model repository."""

    server: Hub

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.requested.append((self.command, self.path))
        if self.server.silent:
            self.server.closing.wait()
            return
        path = self.path.partition("?")[0]
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.server.private and not allowed:
            self.refuse(401, "RepoNotFound")
        elif path.removeprefix("/api/models/owner/name") in (
            "", "/revision/main", "/revision/v1", f"/revision/{COMMIT}"
        ):  # fmt: skip
            self.answer(json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": []}).encode())
        elif path == f"/api/models/owner/name/tree/{COMMIT}":
            self.answer(json.dumps(self.tree()).encode())
        elif path.startswith(f"/owner/name/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/owner/name/resolve/{COMMIT}/")
            file = self.server.directory / name
            if file.is_file():
                self.answer(file.read_bytes(), name)
            else:
                self.refuse(404, "EntryNotFound")
        else:
            missing = "Revision" if path.startswith("/api/models/owner/name/revision/") else "Repo"
            self.refuse(404, f"{missing}NotFound")

    def tree(self):
        files = (file for file in self.server.directory.rglob("*") if file.is_file())
        return [
            {
                "type": "file",
                "path": file.relative_to(self.server.directory).as_posix(),
                "size": file.stat().st_size,
                "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
            }
            for file in files
        ]

    def answer(self, body, name=""):
        start = 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.server.cut:
            self.server.cut.discard(name)
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(body[start:])

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        """Keeps quiet."""


@contextlib.contextmanager
def serving(directory):
    hub = Hub(directory)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.closing.set()
        hub.server_close()


def run(script, endpoint, home, *, handle="hf://owner/name", **environment):
    """What a fresh process says, and how long it took."""
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **environment,
    }
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, handle],
        env=settings, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done, time.monotonic() - start


def refusal(done):
    """The one line of an error that we raised."""
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def checkpoint(tmp_path):
    """Sharded weights, modules in folders, and a pickle that nobody should fetch."""
    directory = tmp_path / "checkpoint"
    write_sentence_transformers(
        directory, ("Transformer", "Pooling", "Dense", "Normalize"), folder="0_Transformer"
    )
    write_shards(directory / "0_Transformer")
    write_dense(directory / "2_Dense", 5, H)
    (directory / "0_Transformer" / "pytorch_model.bin").write_bytes(b"pickle")
    (directory / "README.md").write_text("text")
    return directory


def test_a_sharded_directory_is_fetched_once(checkpoint, tmp_path):
    """A cut download goes on; the cache serves without a hub, and with HF_HUB_OFFLINE."""
    expected = DualEncoder.load(checkpoint).encode_queries(["a b", "c"])
    home = tmp_path / "home"
    with serving(checkpoint) as hub:
        hub.cut.add("0_Transformer/model-1.safetensors")
        done, _ = run(ENCODE, hub.endpoint, home)
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-6)
        assert not hub.cut
        fetched = [path.rpartition(COMMIT)[2] for method, path in hub.requested if method == "GET"]
        assert not any(".bin" in path or "README" in path for path in fetched)
    done, _ = run(FETCH, hub.endpoint, home)  # the hub is gone
    assert done.returncode == 0, done.stderr
    assert "hf://owner/name is taken from the cache" in done.stderr
    done, _ = run(FETCH, hub.endpoint, home, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_fetched_is_told_in_one_line(checkpoint, tmp_path):
    home = tmp_path / "home"
    with serving(checkpoint) as hub:
        done, _ = run(FETCH, hub.endpoint, home, handle="hf://owner/nobody")
        assert f"refused: hf://owner/nobody: {hub.endpoint} has no such repository" in refusal(done)
        done, _ = run(FETCH, hub.endpoint, home, HF_HUB_OFFLINE="1")
        expected = "refused: hf://owner/name: is not in the cache, and HF_HUB_OFFLINE is set."
        assert refusal(done) == expected
        hub.private = True
        done, _ = run(FETCH, hub.endpoint, home)
        assert "or HF_TOKEN must hold a token that may read it" in refusal(done)
        done, _ = run(FETCH, hub.endpoint, home, HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr


def test_a_hub_that_is_down_is_told_within_seconds(checkpoint, tmp_path):
    with serving(checkpoint) as hub:
        endpoint = hub.endpoint
    done, seconds = run(FETCH, endpoint, tmp_path / "home")
    assert f"hf://owner/name: could not be fetched from {endpoint}: " in refusal(done)
    assert seconds < 20
    with serving(checkpoint) as hub:
        hub.silent = True
        done, seconds = run(FETCH, hub.endpoint, tmp_path / "home")
        assert "timed out" in refusal(done)
        assert seconds < 30


def test_a_revision_is_a_tag_or_a_commit_and_a_commit_needs_no_hub_any_more(checkpoint, tmp_path):
    home = tmp_path / "home"
    with serving(checkpoint) as hub:
        done, _ = run(FETCH, hub.endpoint, home, handle="hf://owner/name@v1")
        assert done.returncode == 0, done.stderr
        assert f"snapshots/{COMMIT}/0_Transformer/config.json" in done.stdout
        assert all("/main" not in path for _, path in hub.requested)
        for handle, expected in (
            ("owner/name@v2", f"hf://owner/name@v2: {hub.endpoint} has no such revision."),
            ("owner/name@", "A hub's handle must be hf://owner/name or hf://owner/name@revision."),
            ("owner/name@a@b", "A hub's handle must be hf://owner/name or hf://owner/name@rev"),
        ):
            done, _ = run(FETCH, hub.endpoint, home, handle=f"hf://{handle}")
            assert f"refused: {expected}" in refusal(done)


def test_revisions_of_a_cache_as_the_library_lays_it_out(tmp_path):
    """Two commits, one of them named by `main` and the other by a tag; nothing is asked."""
    repository = tmp_path / "home/hub/models--owner--name"
    commits = {"main": COMMIT, "v1": "f" * 40}
    for number, (name, commit) in enumerate(commits.items()):
        for folder in ("refs", "blobs", f"snapshots/{commit}"):
            (repository / folder).mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        (repository / "blobs" / str(number)).write_text(json.dumps(name))
        (repository / f"snapshots/{commit}/config.json").symlink_to(f"../../blobs/{number}")
    with serving(tmp_path) as hub:
        pass
    handles = ("owner/name", "owner/name@main", "owner/name@v1", f"owner/name@{'f' * 40}")
    handle = " ".join(f"hf://{name}" for name in handles)
    done, _ = run(SIZES, hub.endpoint, tmp_path / "home", handle=handle, HF_HUB_OFFLINE="1")
    assert done.stdout.split() == ["main", "main", "v1", "v1"], done.stderr
    done, _ = run(SIZES, hub.endpoint, tmp_path / "home", handle=f"hf://owner/name@{'f' * 40}")
    assert done.stdout.split() == ["v1"], done.stderr
    assert "taken from the cache" not in done.stderr  # for a commit nobody is asked
    done, _ = run(SIZES, hub.endpoint, tmp_path / "home", handle="hf://owner/name@v2")
    assert f"hf://owner/name@v2: could not be fetched from {hub.endpoint}" in refusal(done)
