"""What the data that a run names must satisfy before any work starts."""

from __future__ import annotations

from tfde.config.training import TrainRun
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError, DataError
from tfde.training.early_checks import errors_of_stage
from tfde.training.negative_refresh import check_refresh
from tfde.training.optimizers import build_optimizer
from tfde.training.stage_data import StageData, stage_steps


def check_stages(run: TrainRun, data: StageData, *, with_pages: bool) -> None:
    """Reads all pairs and validation sets, and finds what is impossible with them.

    It takes seconds; a fault in the last stage that is found after the first takes hours. The last
    comes first, so that what `data` holds at the end is what the run begins with.

    Args:
        run: What is to be trained.
        data: Reads it.
        with_pages: Whether to look at the stages with pages, whose stores must be built by then,
            or at the others.

    Raises:
        ConfigError, DataError: pairs cannot be read or batched so, a schedule or a refresh is
            impossible, or a validation set breaks a rule or has no queries.
    """
    validated: set[tuple[str, str]] = set()
    for name, stage in reversed(run.stages.items()):
        if stage.validation is not None and not with_pages:
            for measured in stage.validation.measured().values():
                if (measured.dataset, measured.split) not in validated:
                    _check_validation(measured.dataset, measured.split)
                    validated.add((measured.dataset, measured.split))
        if any(source.pages is not None for source in stage.sources) == with_pages:
            with errors_of_stage(name):
                check_refresh(stage, data)
                batches = data.batches(stage)
                build_optimizer(stage.optimizer, steps=stage_steps(stage, batches))


def check_replicas(run: TrainRun, replicas: int) -> None:
    """Finds batches that replicas cannot share out evenly.

    Raises:
        ConfigError: a stage has such batches.
    """
    for name, stage in run.stages.items():
        if stage.batch_size % replicas:
            raise ConfigError(
                f"stages.{name}.batch_size must be a multiple of the {replicas} replicas, which"
                f" share its rows out evenly. Received: {stage.batch_size}"
            )


def _check_validation(dataset: str, split: str) -> None:
    directory = DatasetDirectory(dataset)
    directory.validate([split])
    if not directory.qrels(split):
        rule = "must judge at least one query, for the validation."
        raise DataError(directory.qrels_file(split), None, rule)
