"""Every command of docs/run_in_production.md, in order, on a small model and its data."""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import tiny

PAGE = Path(__file__).parents[2] / "docs" / "run_in_production.md"


def commands():
    text = PAGE.read_text("utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if line.strip())


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


class Shell:
    """Runs lines as a reader would; what serves goes on beside the others."""

    def __init__(self, folder):
        (folder / "bin").mkdir()
        command = folder / "bin" / "tfde"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tfde.cli.main "$@"\n')
        command.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self.folder, self.server = folder, None
        self.ports = dict(zip(("8500", "8501", "8502"), free_ports(3), strict=True))

    def run(self, line):
        if line.startswith(("tfde serve", "mv index")):
            self.stop()
        for port, free in self.ports.items():
            line = line.replace(f"localhost:{port}", f"localhost:{free}")
        options = {"cwd": self.folder, "env": self.environment, "text": True}
        if line.startswith("tfde serve"):
            grpc, rest, http = self.ports.values()
            line = f"exec {line} --port {grpc} --rest_api_port {rest} --http_port {http}"
            self.server = subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, **options)
            return self.server.stdout.readline()
        done = subprocess.run(["bash", "-ec", line], capture_output=True, **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def stop(self):
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(60) == 0
            self.server = None


def test_the_page_from_the_first_bundle_to_a_restored_index(tmp_path):
    tiny.write_dataset(tmp_path / "data")
    for seed, name in enumerate(("first", "second")):
        tiny.dual_encoder(seed=seed).save_to_preset(tmp_path / name)
    shell = Shell(tmp_path)
    told = {}
    try:
        for line in commands():
            told[line] = shell.run(line)
    finally:
        shell.stop()
    answers = list(told.items())
    assert len(answers) > 20

    def of(beginning):
        return [out for line, out in answers if line.startswith(beginning)]

    assert all(out.startswith("ready: ") for out in of("tfde serve"))
    assert "answers with version 2" in of("tfde bundle install")[0]
    assert "answers with version 1" in of("tfde bundle rollback")[0]
    assert "answers with version 2" in of("tfde bundle rollback")[1]
    assert re.search(r"1 +earlier .*\n +2 +live ", of("tfde bundle list")[0])
    assert set(of("tfde verify")) == {"bundle: as exported\n"}
    assert re.search(r"^ +1 .*\bnew$", of("tfde query --target http")[0], re.MULTILINE)
    metrics = of("curl --fail --silent localhost:8501")[0]
    named = re.findall(r":tensorflow:serving:[\w:]+", PAGE.read_text("utf-8"))
    assert len(named) > 4
    assert [name for name in named if name not in metrics] == []
    assert "documents 201" in of("tfde index status")[0]
