"""What the server counts and times, in Prometheus' text format under TensorFlow Serving's names.

Source: names, labels and buckets of TensorFlow Serving's util.cc and prometheus_exporter.cc.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from grpc import StatusCode

from tfde.serving.server.status import StatusError

# Microseconds.
_BOUNDS = [10 * 1.8**power for power in range(33)]


class Metrics:
    """Counters and histograms of one server; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        self._histograms: dict[str, dict[tuple[tuple[str, str], ...], _Histogram]] = {}

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            counter = self._counters.setdefault(name, {})
            key = tuple(labels.items())
            counter[key] = counter.get(key, 0) + amount

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Adds a duration to a histogram (of microseconds)."""
        with self._lock:
            histograms = self._histograms.setdefault(name, {})
            histograms.setdefault(tuple(labels.items()), _Histogram()).add(seconds * 1e6)

    @contextmanager
    def request(self, model: str, api: str, entrypoint: str) -> Iterator[None]:
        """Counts the request in its block by its outcome, and times it."""
        started = time.perf_counter()
        status = StatusCode.OK.name
        try:
            yield
        except StatusError as error:
            status = error.code.name
            raise
        except BaseException:
            status = StatusCode.INTERNAL.name
            raise
        finally:
            self.count(":tensorflow:serving:request_count", model_name=model, status=status)
            self.observe(
                ":tensorflow:serving:request_latency",
                time.perf_counter() - started,
                model_name=model,
                API=api,
                entrypoint=entrypoint,
            )

    @contextmanager
    def runtime(self, model: str, api: str) -> Iterator[None]:
        """Times the model's own part of a request."""
        started = time.perf_counter()
        try:
            yield
        finally:
            name, seconds = ":tensorflow:serving:runtime_latency", time.perf_counter() - started
            self.observe(name, seconds, model_name=model, API=api, runtime="TF1")

    def text(self) -> str:
        """Returns everything in Prometheus' text format."""
        lines = []
        with self._lock:
            for name, values in sorted(self._counters.items()):
                lines.append(f"# TYPE {name} counter")
                lines += [f"{name}{_labels(key)} {value}" for key, value in values.items()]
            for name, histograms in sorted(self._histograms.items()):
                lines.append(f"# TYPE {name} histogram")
                for key, histogram in histograms.items():
                    counts = itertools.accumulate(histogram.counts)
                    bounds = [f"{bound:g}" for bound in _BOUNDS] + ["+Inf"]
                    lines += [
                        f"{name}_bucket{_labels((*key, ('le', bound)))} {count}"
                        for bound, count in zip(bounds, counts, strict=True)
                    ]
                    lines.append(f"{name}_sum{_labels(key)} {histogram.sum}")
                    lines.append(f"{name}_count{_labels(key)} {sum(histogram.counts)}")
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(_BOUNDS, value)] += 1
        self.sum += value


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
