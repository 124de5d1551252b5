"""What a study is: axes of overrides over one training run, and how each cell is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfde.config.training import TrainRun
from tfde.errors import require

BM25 = "bm25"  # as `model`: a cell in which nothing is trained
_CELL_FIELDS = [f.name for f in dataclasses.fields(TrainRun) if f.name != "seed"] + ["evaluate"]


@dataclass(frozen=True)
class EvaluationConfig:
    """How a cell is measured: exact search for the queries of a split over the whole corpus.

    Args:
        dataset: Dataset directory.
        split: Its split of judged queries.
        measures: As `tfde evaluate` takes them, `Answer@k` among them.
        max_queries: A sample of the queries, the same for all cells; `null` takes all.
        sample_seed: Chooses the sample.
        more_candidates: A file of pages whose sentences are candidates too.
        batch_size: Texts a batch of the encoder.
    """

    dataset: str
    split: str = "test"
    measures: tuple[str, ...] = ("R@1", "R@5", "R@10", "R@50", "R@100")
    max_queries: int | None = None
    sample_seed: int = 0
    more_candidates: str | None = None
    batch_size: int = 256

    def __post_init__(self) -> None:
        require(len(self.measures) > 0, "evaluate.measures", "not empty", self.measures)
        for name, least in (("max_queries", 1), ("sample_seed", 0), ("batch_size", 1)):
            value = getattr(self, name)
            require(value is None or value >= least, f"evaluate.{name}", f"at least {least}", value)


@dataclass(frozen=True)
class VocabularyConfig:
    """The SentencePiece vocabulary that all cells with random weights have.

    Args:
        texts: A dataset directory (titles and texts of its documents) or a file of pages.
        size: Number of pieces.
    """

    texts: str
    size: int = 8000

    def __post_init__(self) -> None:
        require(self.size >= 4, "vocabulary.size", "at least 4", self.size)


@dataclass(frozen=True)
class StudyConfig:
    """A grid of training runs, each of them measured.

    A cell is a value of each axis and a seed. Its run is `base` with what the values say laid
    over it, axis by axis: mappings are merged, everything else is replaced, and a stage that
    becomes `null` is left out. `${NAME}` in a path stands for an environment variable.

    Args:
        base: Fields of a recipe (`model`, `stages`, ...) and `evaluate`. `model: bm25` in place of
            a mapping makes a cell that is measured by BM25 and trains nothing. Where a value of
            an axis says so, no other axis changes that.
        axes: Axis -> value -> what it lays over `base`, in the order of the tables.
        cells: Which cells there are, in the order of the work: blocks of `{axis: value or values,
            seeds: [...]}`; an axis that a block does not name takes all its values. A cell that
            stands in several blocks is done with the first.
        exclude: `{axis: value or values}` of cells that there are not.
        seeds: Those of a block that names none.
        vocabulary: What the vocabulary of random weights is trained on.
        keep_models: Whether models stay when no cell needs them any more.
    """

    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    cells: tuple[dict[str, Any], ...] = ({},)
    exclude: tuple[dict[str, Any], ...] = ()
    seeds: tuple[int, ...] = (0,)
    vocabulary: VocabularyConfig | None = None
    keep_models: bool = False

    def __post_init__(self) -> None:
        require(len(self.axes) > 0, "axes", "not empty", self.axes)
        # In Python a value may be named by a number.
        named = {
            axis: {str(value): override for value, override in values.items()}
            for axis, values in self.axes.items()
        }
        object.__setattr__(self, "axes", named)
        _check_fields(self.base, "base")
        for axis, values in self.axes.items():
            require(axis not in ("seed", "seeds"), "axes", "named otherwise", axis)
            require(len(values) > 0, f"axes.{axis}", "not empty", values)
            for value, override in values.items():
                _check_fields(override, f"axes.{axis}.{value}")
        _check_seeds(self.seeds, "seeds")
        for place, block in enumerate(self.cells):
            where = f"cells[{place}]"
            _check_seeds(block.get("seeds", self.seeds), f"{where}.seeds")
            self._check_selection({a: v for a, v in block.items() if a != "seeds"}, where)
        for place, combination in enumerate(self.exclude):
            require(len(combination) > 0, f"exclude[{place}]", "not empty", combination)
            self._check_selection(combination, f"exclude[{place}]")

    def _check_selection(self, selection: Mapping[str, Any], where: str) -> None:
        for axis, wanted in selection.items():
            _check_known([axis], self.axes, where)
            _check_known(values_of(wanted), self.axes[axis], f"{where}.{axis}")


def values_of(wanted: Any) -> list[str]:
    """Returns the values of an axis that a selection names: one or a list of them.

    A name that looks like a number comes from YAML as one.
    """
    values = wanted if isinstance(wanted, list | tuple) else [wanted]
    return [str(value) for value in values]


def _check_fields(value: Any, where: str) -> None:
    require(isinstance(value, Mapping), where, "a mapping", value)
    _check_known(value, _CELL_FIELDS, where)


def _check_known(names: Iterable[Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for name in names:
        require(name in known, where, f"one of {', '.join(known)}", name)


def _check_seeds(seeds: Any, where: str) -> None:
    right = isinstance(seeds, list | tuple) and len(seeds) > 0
    right = right and all(type(seed) is int and seed >= 0 for seed in seeds)
    require(right, where, "a list of whole numbers from 0", seeds)
