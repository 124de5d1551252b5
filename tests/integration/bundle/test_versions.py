"""Versions of a bundle come and go under a server; every answer is of one of them, whole."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bundle_server import DOCUMENTS, BundleServer, http

from tfde.cli.main import main
from tfde.errors import ConfigError, CorruptError
from tfde.export.bundle import export_bundle
from tfde.export.bundle_directory import bundle_versions, read_manifest
from tfde.export.install_bundle import install_bundle, remove_version, roll_back_bundle
from tfde.export.verify import verify_bundle
from tfde.serving.client import Client
from tfde.storage.atomic import directory_lock


@pytest.fixture(scope="module")
def exported(model, exact, tmp_path_factory):
    """Versions 1, 2 and 3: the same passages, whose titles name the version."""

    def export(version):
        documents = [d._replace(title=f"of version {version}") for d in DOCUMENTS]
        output = tmp_path_factory.mktemp("out") / f"bundle-{version}"
        return export_bundle(
            model, exact, output, documents=documents, golden_queries=["green red"],
            version=version, scann=False,
        )  # fmt: skip

    return {version: export(version) for version in (1, 2, 3)}


@pytest.fixture
def served(exported, tmp_path):
    """A bundle of version 1, which a server may serve."""
    return Path(shutil.copytree(exported[1], tmp_path / "served"))


def states(bundle):
    return {number: version.state for number, version in bundle_versions(bundle).items()}


def test_installed_taken_back_and_removed(exported, served, capsys):
    assert main(["bundle", "install", str(exported[2]), str(served)]) == 0
    assert capsys.readouterr().out == f"{served}: version 2 is live\n"
    assert states(served) == {1: "earlier", 2: "live"}
    assert json.loads((served / "manifest.json").read_text())["version"] == 2
    assert verify_bundle(served) == []
    install_bundle(exported[3], served)
    assert roll_back_bundle(served) == 2
    with pytest.raises(ConfigError, match=r"installed in .*, withdrawn; tfde bundle rollback .* 3"):
        install_bundle(exported[3], served)
    assert states(served) == {1: "earlier", 2: "live", 3: "withdrawn"}
    assert verify_bundle(served) == []
    assert roll_back_bundle(served, to=1) == 1
    assert json.loads((served / "manifest.json").read_text())["version"] == 1
    assert roll_back_bundle(served, to=3) == 3
    assert states(served) == {1: "earlier", 2: "withdrawn", 3: "live"}
    assert roll_back_bundle(served) == 1  # 2 was taken back, for whatever was wrong with it
    assert roll_back_bundle(served, to=3) == 3
    assert main(["bundle", "remove", str(served), "--version", "2"]) == 0
    capsys.readouterr()
    assert main(["bundle", "list", str(served)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["version", "state"], ["1", "earlier"], ["3", "live"]]
    assert not list(served.rglob("*withdrawn*"))
    assert verify_bundle(served) == []
    # Each version is still what was exported.
    for number in (1, 3):
        for file in (exported[number] / "models").rglob("*.pb"):
            copy = served / file.relative_to(exported[number])
            assert copy.read_bytes() == file.read_bytes()


def test_what_is_refused(exported, served, tmp_path, model, capsys):
    assert install_bundle(exported[1], served) == 1  # which is there already
    another = Path(shutil.copytree(exported[1], tmp_path / "another"))
    manifest = json.loads((another / "manifest.json").read_text())
    (another / "manifest.json").write_text(json.dumps(manifest | {"measures": {"P@1": 1}}))
    with pytest.raises(ConfigError, match=r"must be above 1, the latest of .* --version 2. Rec"):
        install_bundle(another, served)
    for target, message in (
        ("localhost:1", "cannot connect to localhost:1"),
        ("http://localhost:8500", "`--target` must be HOST:PORT of the gRPC port. Received: 'http"),
    ):
        command = ["bundle", "install", str(exported[2]), str(served), "--target", target]
        assert main(command) == 1
        assert message in capsys.readouterr().err
        assert states(served) == {1: "live"}
    encoders = export_bundle(model, None, tmp_path / "encoders", version=2)
    with pytest.raises(ConfigError, match=r"must have the models of .*, document_encoder, docum"):
        install_bundle(encoders, served)
    broken = Path(shutil.copytree(exported[2], tmp_path / "broken"))
    (broken / "models/retriever/2/saved_model.pb").write_bytes(b"")
    with pytest.raises(
        CorruptError, match=r"is not as exported: models/retriever/2/saved_model.pb"
    ):
        install_bundle(broken, served)
    with pytest.raises(ConfigError, match=r"there is no version before the live one, 1"):
        roll_back_bundle(served)
    with pytest.raises(ConfigError, match=r"the version must be one of 1. Received: 2"):
        roll_back_bundle(served, to=2)
    with pytest.raises(ConfigError, match=r"one that is not live: none is. Received: 1"):
        remove_version(served, 1)
    assert verify_bundle(served) == []


def test_one_process_at_a_time_changes_the_versions(exported, served):
    """Two installs of one number at once would mix two exports."""
    alone = r"served: another process \(pid \d+\) is changing its versions"
    with directory_lock(served, "changing its versions"):
        for change in (
            lambda: install_bundle(exported[2], served),
            lambda: roll_back_bundle(served),
            lambda: remove_version(served, 1),
        ):
            with pytest.raises(ConfigError, match=alone):
                change()
    assert install_bundle(exported[2], served) == 2
    assert verify_bundle(served) == []


def test_verify_names_what_is_wrong_in_a_version(exported, served):
    install_bundle(exported[2], served)
    (served / "models/retriever/1/fingerprint.pb").write_bytes(b"")
    (served / "batching.config").write_text("")
    shutil.copytree(exported[3] / "models/documents/3", served / "models/documents/3")
    assert verify_bundle(served) == [
        "models/retriever/1/fingerprint.pb: differs from what was exported",
        "batching.config: is not that of version 2, which is live",
        "version 3: was not exported; tfde bundle install brings its manifest along",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", {"../victim.txt": "0" * 64}),
        ("files", {"models/query_encoder/2/../../../../victim.txt": "0" * 64}),
        ("files", {"models/query_encoder": "0" * 64}),
        ("models", ["../victim.txt"]),
        ("version", "../../victim.txt"),
    ],
)
def test_a_bundle_names_nothing_outside_of_it(exported, served, field, value):
    victim = served.parent / "victim.txt"
    victim.write_text("old")
    new = Path(shutil.copytree(exported[2], served.parent / "new"))
    path = new / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(CorruptError, match="must be those of places in the bundle"):
        install_bundle(new, served)
    assert victim.read_text() == "old"
    assert states(served) == {1: "live"}


def kill_install(new, bundle, renames):
    """Kills an install before one of its renames."""
    code = f"""
import os, signal, sys
import tfde.export.install_bundle as module
left = {renames}
def dying(rename):
    def call(*args):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return rename(*args)
    return call
os.rename, os.replace = dying(os.rename), dying(os.replace)
module.verify_bundle = lambda path: []  # which takes longest, and is tested by itself
module.install_bundle(*sys.argv[1:])
"""
    command = [sys.executable, "-c", code, str(new), str(bundle)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL


def check_whole(bundle):
    assert verify_bundle(bundle) == []  # which names what it does not know


@pytest.mark.parametrize("renames", [0, 2, 6, 8, 12])
def test_an_install_that_was_killed_is_done_again(exported, served, renames):
    """Killed among the renames: of copies, of what is kept, of models, of shown files."""
    kill_install(exported[2], served, renames)
    assert states(served)[1] in ("live", "earlier")
    install_bundle(exported[2], served)
    assert states(served) == {1: "earlier", 2: "live"}
    check_whole(served)


def test_after_a_kill_another_export_of_its_number_is_installed_whole(
    exported, served, model, exact, tmp_path
):
    documents = [d._replace(title="of another version 2") for d in DOCUMENTS]
    other = export_bundle(
        model, exact, tmp_path / "other", documents=documents, golden_queries=["green red"],
        version=2, scann=False,
    )  # fmt: skip
    kill_install(exported[2], served, 6)
    assert states(served)[2] == "unfinished"
    install_bundle(other, served)
    assert states(served) == {1: "earlier", 2: "live"}
    check_whole(served)
    assert read_manifest(served) == read_manifest(other)


def test_an_install_given_up_is_listed_and_removed(exported, served, capsys):
    kill_install(exported[2], served, 4)
    assert states(served) == {1: "live", 2: "unfinished"}
    remove_version(served, 2)
    assert states(served) == {1: "live"}
    check_whole(served)
    kill_install(exported[2], served, 4)
    install_bundle(exported[3], served)
    assert states(served) == {1: "earlier", 2: "unfinished", 3: "live"}
    remove_version(served, 2)
    check_whole(served)


def test_what_somebody_copied_half_is_not_made_live(exported, served):
    model = next((exported[2] / "models").glob("*"))
    half = served / "models" / model.name / "2"
    half.mkdir()
    shutil.copy(model / "2" / "saved_model.pb", half)
    with pytest.raises(CorruptError, match=r"is missing\. Remove .*/2, and install again"):
        install_bundle(exported[2], served)
    assert states(served) == {1: "live", 2: "unfinished"}
    shutil.rmtree(half)
    install_bundle(exported[2], served)
    check_whole(served)


def test_a_damaged_manifest_of_one_version(exported, served):
    install_bundle(exported[2], served)
    kept = served / "versions" / "2" / "manifest.json"
    text = kept.read_text()
    kept.write_text("{")
    assert states(served) == {1: "earlier", 2: "live"}  # the bundle's own is the same
    assert any("versions/2/manifest.json" in line for line in verify_bundle(served))
    assert roll_back_bundle(served) == 1
    with pytest.raises(CorruptError, match=r"Restore it, or remove .*versions/2 and"):
        bundle_versions(served)
    kept.write_text(text)
    assert roll_back_bundle(served, to=2) == 2
    check_whole(served)


def test_what_a_kill_left_is_no_obstacle_to_a_rollback(exported, served):
    kill_install(exported[2], served, 6)
    assert roll_back_bundle(served, to=1) == 1
    install_bundle(exported[2], served)
    assert roll_back_bundle(served) == 1
    assert states(served) == {1: "live", 2: "withdrawn"}
    check_whole(served)
    assert roll_back_bundle(served, to=2) == 2
    check_whole(served)


def test_every_answer_is_of_one_version(exported, served):
    server = BundleServer(served)
    stop, seen, other = threading.Event(), [], []

    def search():
        while not stop.is_set():
            status, body = http(f"{server.search_url}/v1/search", {"query": "green red", "k": 3})
            answer = json.loads(body)
            titles = {hit["title"] for result in answer["results"] for hit in result["hits"]}
            (seen if titles == {f"of version {answer['version']}"} else other).append(
                answer["version"] if status == 200 else body
            )

    def ask():
        with Client(server.target) as client:
            while not stop.is_set():
                titles = {hit.title for hit in client.search(["green red"], 3)[0]}
                (seen if len(titles) == 1 and "" not in titles else other).append(titles)

    clients = [threading.Thread(target=each) for each in (search, search, ask)]
    command = [sys.executable, "-m", "tfde.cli.main", "bundle"]
    end = [str(served), "--target", server.target]
    try:
        for client in clients:
            client.start()
        for action in (["install", str(exported[2])], ["rollback"], ["rollback", "--to", "2"]):
            done = subprocess.run([*command, *action, *end], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert f"{server.target}: answers with version" in done.stdout
        # By hand, in the worst order: what is found first.
        for name in ("retriever", "query_encoder", "document_encoder", "documents"):
            folder = served / "models" / name
            shutil.copytree(exported[3] / "models" / name / "3", folder / "3.incoming")
            (folder / "3.incoming").rename(folder / "3")
            time.sleep(1.2)
        deadline = time.monotonic() + 60
        while 3 not in seen[-3:]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        stop.set()
        for client in clients:
            client.join()
        server.process.terminate()
        server.process.wait(30)
    assert other == []
    assert {number for number in seen if isinstance(number, int)} == {1, 2, 3}
