"""A run taken apart into trainings of one stage each, so that runs share what they begin with.

A stage that follows another starts from the model that the other left. So it is with the stages
of one run too; only dropout and masked tokens are drawn anew from the seed here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tfde.config.training import ModelConfig, TrainRun
from tfde.training.early_checks import expand_run
from tfde.training.run_record import checkpoint_files, checksum, data_checksums


class ChainedStage(NamedTuple):
    """One stage of a run: its name, the directory it is trained into, and the run that does it."""

    name: str
    path: Path
    run: TrainRun


def stage_chain(
    run: TrainRun, trained: Path, *, checksum_of: Callable[[Path], Any] = checksum
) -> list[ChainedStage]:
    """Returns the stages of a run as trainings of their own.

    Directories are named after all that decides over the weights in them: model, seed, the stages
    so far, and the content of what they read: data, vocabulary, and the files of a checkpoint that
    lies on this machine. Runs with equal first stages have equal names there.

    Args:
        run: The run.
        trained: The directory of all trainings.
        checksum_of: `checksum`, or one that remembers what it read for the run before.

    Raises:
        ConfigError: an environment variable is not set.
    """
    chain: list[ChainedStage] = []
    for count, (name, stage) in enumerate(run.stages.items(), start=1):
        first = dataclasses.replace(run, stages=dict(list(run.stages.items())[:count]))
        model = ModelConfig(str(chain[-1].path / "model")) if chain else run.model
        alone = dataclasses.replace(run, model=model, stages={name: stage})
        chain.append(ChainedStage(name, trained / _key(first, checksum_of), alone))
    return chain


def digest(description: Any) -> str:
    """Returns 16 hex digits that change with a description: JSON's values and dataclasses.

    Fields that have their default do not count, so that one added later changes nothing.
    """
    content = json.dumps(description, default=_fields)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _key(run: TrainRun, checksum_of: Callable[[Path], Any]) -> str:
    """Names paths as they were written, without the machine's folders, beside what they hold."""
    expanded = expand_run(run)
    content = list(data_checksums(expanded, checksum_of=checksum_of).values())
    backbone, tokenizer = expanded.model.backbone, expanded.model.tokenizer
    if isinstance(backbone, str):
        # One checkpoint, or one for queries and one for documents.
        for name in [backbone] if Path(backbone).exists() else backbone.split(","):
            content += map(checksum_of, checkpoint_files(Path(name.strip())))
    if tokenizer is not None and (files := checkpoint_files(Path(tokenizer))):
        model = dataclasses.replace(run.model, tokenizer=" ".join(map(checksum_of, files)))
        run = dataclasses.replace(run, model=model)
    return digest([run, content])


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults."""
    found = {}
    for field in dataclasses.fields(value):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if getattr(value, field.name) != default:
            found[field.name] = getattr(value, field.name)
    return found
