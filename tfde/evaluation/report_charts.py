"""The pictures of a report, as SVG."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfde.evaluation.significance import EvaluatedSystem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 30
_LONGEST = 99  # percentile of lengths at which the axis ends


def recall_chart(curves: Mapping[str, Mapping[int, float]]) -> str:
    """Draws the share of relevant documents among the first k.

    Args:
        curves: System -> k -> recall.
    """
    canvas, axes = _canvas(1)
    for name, curve in curves.items():
        axes[0].plot(
            list(curve), list(curve.values()), marker="o", markersize=3, label=plain_text(name)
        )
    axes[0].set_xscale("log")
    ticks = list(next(iter(curves.values())))
    axes[0].set_xticks(ticks, [str(k) for k in ticks])
    axes[0].minorticks_off()
    _finish(axes[0], x="documents a query", y="recall")
    return _svg(canvas)


def difference_chart(systems: Sequence[EvaluatedSystem], measure: str) -> str:
    """Draws the difference of every two systems on each query, sorted."""
    pairs = list(itertools.combinations(systems, 2))
    canvas, axes = _canvas(1)
    for one, other in pairs:
        differences = np.sort(np.subtract(one.column(measure), other.column(measure)))[::-1]
        axes[0].step(
            np.arange(len(differences)),
            differences,
            where="mid",
            label=plain_text(f"{one.name} less {other.name}"),
        )
    axes[0].axhline(0.0, color="gray", linewidth=0.8)
    _finish(axes[0], x="queries, by their difference", y=measure)
    return _svg(canvas)


def score_chart(scores: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Draws what scores relevant documents get, and the best of the others.

    Args:
        scores: System -> scores of relevant documents, and of each query's first other one.
    """
    canvas, axes = _canvas(len(scores))
    for panel, (name, parts) in zip(axes, scores.items(), strict=True):
        both = np.concatenate([np.asarray(part, np.float64) for part in parts])
        bins = _edges(both)
        for part, label in zip(parts, ("relevant", "best other one"), strict=True):
            panel.hist(part, bins=bins, alpha=0.6, label=label)
        panel.set_title(plain_text(name), fontsize="medium")
        _finish(panel, x="score", y="documents")
    return _svg(canvas)


def length_chart(lengths: Mapping[str, Sequence[int]]) -> str:
    """Draws how long documents are.

    Args:
        lengths: Which documents -> their lengths in words.
    """
    canvas, axes = _canvas(1)
    known = [np.asarray(part) for part in lengths.values() if len(part)]
    end = max((float(np.percentile(part, _LONGEST)) for part in known), default=1.0)
    bins = np.linspace(0.0, max(end, 1.0), _BINS + 1)
    for name, part in lengths.items():
        counts, _ = np.histogram(part, bins)
        axes[0].stairs(counts / max(len(part), 1), bins, label=plain_text(name))
    _finish(axes[0], x="words a document", y="share")
    return _svg(canvas)


def _edges(scores: np.ndarray) -> np.ndarray:
    """Returns the borders of the bins; one bin where all scores are as good as equal."""
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return np.array([low - 0.5, high + 0.5])
    return np.linspace(low, high, _BINS + 1)


def _canvas(panels: int) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    columns = min(panels, 2)
    rows = -(-panels // columns)
    width = 7.0 if panels == 1 else 4.6 * columns
    canvas = Figure(figsize=(width, 3.6 * rows), layout="constrained")
    axes = list(canvas.subplots(rows, columns, squeeze=False).ravel())
    for panel in axes[panels:]:
        panel.set_visible(False)
    return canvas, axes[:panels]


def _finish(axes: Any, *, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _svg(canvas: Figure) -> str:
    file = io.StringIO()
    canvas.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def plain_text(text: str) -> str:
    """Returns a label as matplotlib shows it: unasked, `$` begins a formula, `_` hides a label."""
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")
