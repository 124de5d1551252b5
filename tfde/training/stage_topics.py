"""Topics that a stage finds by itself, for batches full of hard in-batch negatives."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np

from tfde.config.training import StageConfig
from tfde.errors import CorruptError
from tfde.negatives.topic_clusters import write_topics
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.stage_data import StageData

logger = logging.getLogger("tfde")


def topics_file(folder: Path, stage_name: str) -> Path:
    """Returns where the topics of a stage stand."""
    return folder / f"{stage_name}.jsonl.gz"


def find_topics(path: Path, stage: StageConfig, model: DualEncoder, data: StageData) -> None:
    """Writes the topics of a stage, unless they are there.

    Where the stage's steps reach only some of the pairs, so many of the queries are drawn, and only
    these are embedded and take part.

    Args:
        path: As `topics_file`.
        stage: A stage with `topic_size`.
        model: As it is before the stage's first step.
        data: Reads the stage's pairs.

    Source:
        Hofstätter et al. 2021 (TAS-B, topic-aware sampling), with the start in place of a trained
        model.
    """
    if path.exists() or stage.topic_size is None:
        return
    (source,) = stage.sources
    table = data.table(source)
    queries = sorted(table.queries)
    reached = len(queries)
    if stage.steps is not None:
        share = min(stage.steps * stage.batch_size / len(table), 1.0)
        reached = min(max(round(share * reached), stage.batch_size), reached)
    order = np.random.default_rng(data.seed).permutation(len(queries))
    taken = [queries[row] for row in order[:reached]]
    sizes = write_topics(
        path,
        model,
        taken,
        clusters=max(1, reached // stage.topic_size),
        min_size=min(stage.batch_size, reached),
        seed=data.seed,
        left_out=[queries[row] for row in order[reached:]],
    )
    said = "%d of %d queries in %d topics of %d to %d"
    logger.info(said, reached, len(queries), len(sizes), sizes.min(), sizes.max())


def with_topics(path: Path, stage: StageConfig) -> StageConfig:
    """Returns the stage with the topics that it found as its `topic_clusters`.

    Raises:
        CorruptError: their file is missing.
    """
    if not path.exists():
        raise CorruptError(f"{path}: is missing; without these topics the stage cannot go on.")
    return dataclasses.replace(stage, topic_clusters=str(path), topic_size=None)
