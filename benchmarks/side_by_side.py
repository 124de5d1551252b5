"""Programs that answer the same question in turns, and how much faster ours is.

Each side is a process of its own, in its own environment, that loads everything and then waits;
only one works at a time. A worker prints `ready` and what there is to say about it, and for each
line it reads it does the work once and prints one JSON line. What is compared is the median of the
pairs' ratios, with their spread, because a shared machine is never twice equally fast.
"""

import ctypes
import functools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
READY = "ready"
Name = TypeVar("Name")


def serve(work: Callable[[], dict], about: dict | None = None) -> None:
    """The worker's side: answers each line on stdin by one measurement."""
    ready(about)
    while asked():
        answer(work())


def ready(about: dict | None = None) -> None:
    """Says that this worker has loaded everything, and what there is to say about it."""
    _give_memory_back()
    print(READY, json.dumps(about or {}), flush=True)


def asked() -> bool:
    """Waits for the next turn; returns whether there is one."""
    return bool(sys.stdin.readline())


def answer(measured: dict) -> None:
    """Gives back what was measured in this turn."""
    _give_memory_back()
    print(json.dumps(measured), flush=True)


def _give_memory_back() -> None:
    # Else malloc keeps it, and a large batch of one side and one of the other must fit together.
    ctypes.CDLL("libc.so.6").malloc_trim(0)


class Worker:
    """One side; its process starts when it is first asked for something.

    Args:
        python: The interpreter of its environment.
        script: The benchmark, which is called with `arguments`.
        arguments: What makes it this worker.
    """

    def __init__(self, python: Path | str, script: str, arguments: Sequence[str]) -> None:
        self._command = [str(python), script, *arguments]

    @functools.cached_property
    def _process(self) -> subprocess.Popen:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @functools.cached_property
    def about(self) -> dict:
        """What the worker says about itself; waits until it has loaded everything."""
        return json.loads(self._read(READY).removeprefix(READY))

    def measure(self) -> dict:
        """Returns what the worker measured in one turn."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return json.loads(self._read("{"))

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()

    def _read(self, start: str) -> str:
        for line in self._process.stdout:
            if line.startswith(start):  # libraries print, too
                return line
        raise RuntimeError(f"a worker ended with {self._process.wait()}; its errors stand above")


def peers_python() -> Path:
    """Returns the interpreter of the peers' environment, which `make` builds if it is not there."""
    if not PEERS_PYTHON.exists():
        subprocess.run(["make", ".venv-peers/.installed"], cwd=ROOT, check=True, stdout=sys.stderr)
    return PEERS_PYTHON


def compare(
    ours: Worker, theirs: Worker, *, pairs: int, seconds: str = "seconds", apart: bool = False
) -> dict:
    """Lets both work in turns and returns how many times faster ours is.

    Args:
        ours: Our side.
        theirs: The peer.
        pairs: How often both are measured, after one turn each that does not count.
        seconds: Key of the time in what the workers answer.
        apart: Whether one side ends before the other begins, for work of which both do not fit
            into memory; the n-th measurements of both make a pair all the same.
    """
    if apart:
        alone = [_alone(side, pairs, seconds) for side in (ours, theirs)]
        times = list(zip(*alone, strict=True))
    else:
        found = in_turns({"ours": ours, "theirs": theirs}, rounds=pairs, seconds=seconds)
        times = list(zip(found["ours"], found["theirs"], strict=True))
    return {**({"apart": True} if apart else {}), **ratio(times)}


def ratio(times: Sequence[tuple[float, float]]) -> dict:
    """Returns how many times faster ours is, of pairs of (ours, theirs) in seconds."""
    ratios = sorted(theirs / ours for ours, theirs in times)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(ratios[0], 3),
        "ratio_highest": round(ratios[-1], 3),
        "pairs": len(ratios),
        "ours_s": round(statistics.median(ours for ours, _ in times), 6),
        "theirs_s": round(statistics.median(theirs for _, theirs in times), 6),
    }


def in_turns(
    workers: Mapping[Name, Worker], *, rounds: int, seconds: str = "seconds"
) -> dict[Name, list[float]]:
    """Measures each side once a round; nothing is measured before all have loaded.

    Args:
        workers: The sides by name.
        rounds: How often, after a round that does not count.
        seconds: Key of the time in what the workers answer.

    Returns:
        The times of each side, one a round.
    """
    for worker in workers.values():
        _ = worker.about
    names = list(workers)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        # Who goes first changes, so that a machine that slows down favours nobody.
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found = workers[name].measure()[seconds]
            if number:
                times[name].append(found)
    return times


def _alone(side: Worker, count: int, seconds: str) -> list[float]:
    _ = side.about
    side.measure()
    times = [side.measure()[seconds] for _ in range(count)]
    side.close()
    return times


def machine(*packages: str) -> dict:
    """Returns the machine and the versions of both sides' packages."""
    code = (
        "import json, sys; from importlib.metadata import version, PackageNotFoundError as E\n"
        "def v(n):\n try: return version(n)\n except E: return None\n"
        "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    )
    versions = {name: _version(name) for name in packages}
    missing = [name for name in packages if not versions[name]]
    if missing:  # what is not here is the peers'
        command = [str(peers_python()), "-c", code, *missing]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        versions |= json.loads(done.stdout)
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": _commit(),
        "versions": versions,
    }


def finish(result: dict, packages: Sequence[str], output: Path | None) -> None:
    """Prints the result with its command, the machine and the versions, and writes it to a file.

    Args:
        result: What was found.
        packages: Whose versions matter.
        output: The file, or `None`.
    """
    arguments = [word for word in sys.argv[1:] if word != "--output" and word != str(output)]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])
    text = json.dumps({**result, "command": command, **machine(*packages)}, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return done.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
