"""Topics that a stage finds by itself, for batches full of hard in-batch negatives."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from tfde.config.training import StageConfig
from tfde.errors import CorruptError
from tfde.negatives.topic_clusters import write_topics
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.stage_data import StageData

logger = logging.getLogger("tfde")


def find_topics(path: Path, stage: StageConfig, model: DualEncoder, data: StageData) -> None:
    """Writes the topics of a stage, unless they are there.

    Args:
        path: Their file.
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
    queries = data.table(source).queries
    sizes = write_topics(
        path,
        model,
        queries,
        clusters=max(1, len(queries) // stage.topic_size),
        min_size=min(stage.batch_size, len(queries)),
        seed=data.seed,
    )
    said = "%d queries in %d topics of %d to %d"
    logger.info(said, len(queries), len(sizes), sizes.min(), sizes.max())


def with_topics(path: Path, stage: StageConfig) -> StageConfig:
    """Returns the stage with the topics that it found as its `topic_clusters`.

    Args:
        path: Their file.
        stage: A stage with `topic_size`.

    Raises:
        CorruptError: their file is missing.
    """
    if not path.exists():
        raise CorruptError(f"{path}: is missing; without these topics the stage cannot go on.")
    return dataclasses.replace(stage, topic_clusters=str(path), topic_size=None)
