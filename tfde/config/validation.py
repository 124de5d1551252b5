"""What is measured while a model trains (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfde.errors import require


@dataclass(frozen=True)
class GuardConfig:
    """A data set away from home, on which training is to do no harm.

    Args:
        dataset: Dataset directory that the run does not train on.
        split: Its split of judged queries.
        measure: What is measured.
        max_loss: How far the measure may fall below the start's for a model to be the best.
        max_queries: As of the validation.
        max_documents: As of the validation.
        query_prompt: As of the validation.
    """

    dataset: str
    split: str = "test"
    measure: str = "nDCG@10"
    max_loss: float = 0.005
    max_queries: int | None = 300
    max_documents: int | None = 5000
    query_prompt: str = ""

    @property
    def measures(self) -> tuple[str, ...]:
        """The one measure."""
        return (self.measure,)

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("max_queries", "max_documents"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{where}.{name}", "at least 1", value)
        require(0 <= self.max_loss <= 1, f"{where}.max_loss", "in [0, 1]", self.max_loss)


@dataclass(frozen=True)
class ValidationConfig:
    """Retrieval on a dev split while training.

    Args:
        dataset: Dataset directory.
        split: Its split of judged queries; never a test split that is reported.
        every_steps: Steps between validations.
        max_queries: A seeded sample of the queries; `null` takes all.
        max_documents: Their judged documents, filled up to this number with others of the
            corpus; `null` searches the whole corpus.
        measures: The first one decides which model is the best.
        measure_start: Whether the start is measured before the first step. It is the best model
            then, until another is better.
        guards: Name -> data set away from home. The start is measured; a model that falls too far
            below it on one of them is not the best, however good it is at home.
        query_prompt: Put before every query, as by the source that is like it.
    """

    dataset: str
    split: str = "dev"
    every_steps: int = 1000
    max_queries: int | None = 1000
    max_documents: int | None = 20_000
    measures: tuple[str, ...] = ("P@1", "RR")
    measure_start: bool = False
    guards: dict[str, GuardConfig] = field(default_factory=dict)
    query_prompt: str = ""

    def check(self, where: str) -> None:
        """Raises a `ConfigError` for an impossible value; `where` is the place in the run."""
        for name in ("every_steps", "max_queries", "max_documents"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{where}.{name}", "at least 1", value)
        listed = not isinstance(self.measures, str)
        require(listed, f"{where}.measures", "a list of names", self.measures)
        require(len(self.measures) > 0, f"{where}.measures", "not empty", self.measures)
        for name, guard in self.guards.items():
            guard.check(f"{where}.guards.{name}")

    def measured(self) -> dict[str, ValidationConfig | GuardConfig]:
        """Returns what names a data set here, by its place."""
        return {"": self, **{f".guards.{name}": guard for name, guard in self.guards.items()}}
