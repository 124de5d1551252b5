"""The loss of a stage, from its description."""

from __future__ import annotations

from tfde.config.training import StageConfig
from tfde.errors import require
from tfde.tasks.guided import GuidedTask
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.tasks.task import Task
from tfde.towers.dual_encoder import DualEncoder


def build_task(stage: StageConfig, model: DualEncoder, *, start: str) -> Task:
    """Returns the task that a stage describes.

    Args:
        stage: The stage.
        model: What is trained.
        start: The checkpoint that the run starts from, which is a guide where none is named.
    """
    options = {
        "bidirectional": stage.bidirectional,
        "sampling_correction": stage.sampling_correction,
    }
    task: Task
    if stage.guide is None:
        task = RetrievalTask(stage.temperature, **options)
    else:
        guide = stage.guide
        task = GuidedTask(
            DualEncoder.load(guide.model or start),
            stage.temperature,
            score_margin=guide.score_margin,
            relative_margin=guide.relative_margin,
            **options,
        )
    if stage.matryoshka is not None:
        dims, weights = stage.matryoshka.dims, stage.matryoshka.weights
        task = MatryoshkaTask(task, dims, weights, normalize=model.config.normalize)
    return task


def check_task(stage: StageConfig, *, embedding_dim: int) -> None:
    """Finds dims that would not train a whole embedding, or more than one has.

    Raises:
        ConfigError: the last of them is not the length of the embedding.
    """
    if stage.matryoshka is not None:
        last = stage.matryoshka.dims[-1]
        rule = f"{embedding_dim}, the length of an embedding, at the end"
        require(last == embedding_dim, "matryoshka.dims", rule, last)
