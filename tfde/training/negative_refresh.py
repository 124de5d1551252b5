"""Hard negatives that the model in training mines anew every so many steps (ANCE).

The pairs, their order and the step that comes next stay as they were: a refresh changes nothing
but which negatives stand beside a pair. What it found is a pair file; the last one is enough to go
on from any checkpoint, because the step of a refresh is always one.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from tfde.config.negatives import RefreshConfig
from tfde.config.training import StageConfig
from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.pairs.batches import PairBatches
from tfde.data.pairs.table import PairTable
from tfde.errors import ConfigError
from tfde.negatives.candidate_sources import ModelCandidates
from tfde.negatives.judged_queries import JudgedQueries
from tfde.negatives.mine import mine_negatives
from tfde.storage.json_lines import read_json_lines
from tfde.storage.resumable_file import check_finished, record_of
from tfde.towers.dual_encoder import DualEncoder
from tfde.training.stage_data import StageData

logger = logging.getLogger("tfde")

# Below, exact search costs less than encoding the corpus.
_SCANN_FROM = 200_000


class NegativeRefresh:
    """The negatives of a stage by step: its own at first, then those of the last refresh.

    Args:
        stage: What is trained.
        config: How its negatives are mined.
        folder: Where the pair files stand; once one is whole, older ones are removed.
        data: Reads the stage's pairs; each refresh draws with a seed of its own, from that of this.

    Source:
        Xiong et al. 2021 (ANCE), in turns: training waits while the negatives are mined.
    """

    def __init__(
        self,
        stage: StageConfig,
        config: RefreshConfig,
        folder: Path,
        *,
        data: StageData,
    ) -> None:
        self._stage = stage
        self._config = config
        self._folder = folder
        self._data = data

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` at which negatives are mined."""
        return (step // self._config.every_steps + 1) * self._config.every_steps

    def is_due(self, step: int) -> bool:
        """Returns whether negatives must be mined before the batch after `step` steps."""
        path = self._path(step)
        if path is None or step % self._config.every_steps:
            return False
        return not (path.exists() and record_of(path).exists())

    def batches(self, step: int) -> PairBatches:
        """Returns the stage's batches with the negatives that serve after `step` steps.

        Raises:
            CorruptError: their file is missing, or differs from what was written.
        """
        path = self._path(step)
        if path is not None:
            check_finished(path)
        return self._data.batches(self._stage, mined=path)

    def mine(self, model: DualEncoder, step: int) -> dict[str, float]:
        """Mines what serves from `step` on; mining that was killed goes on.

        Args:
            model: As it is after `step` steps.
            step: One at which a refresh is due.

        Returns:
            What the history tells of it: `refresh_seconds`; `negatives_per_pair`; and, if there
            are any, `changed_negatives`, the share of them that the pair did not have before, and
            `score_gap`, how much lower than its positive a negative scores on average.
        """
        path = self._path(step)
        if path is None:
            raise RuntimeError("no refresh is due at this step.")
        began = time.perf_counter()
        (source,) = self._stage.sources
        before = self._data.table(source, mined=self._path(step - 1))
        mine_negatives(
            _corpus_of(self._stage),
            ModelCandidates(model, batch_size=self._config.batch_size, scann_from=_SCANN_FROM),
            path,
            self._config.rules(seed=self._data.seed + step),
            judged=JudgedQueries.of_pairs(before),
            show_progress=True,
        )
        for file in self._folder.iterdir():
            if file not in (path, record_of(path)):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        found = {"refresh_seconds": time.perf_counter() - began, **_compare(path, before)}
        told = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
        logger.info("\nstep %d: negatives of %d pairs mined anew: %s", step, len(before), told)
        return found

    def _path(self, step: int) -> Path | None:
        """The file whose negatives serve after `step` steps; `None` for the stage's own."""
        mined = step // self._config.every_steps * self._config.every_steps
        if mined < 0 or (mined == 0 and not self._config.at_start):
            return None
        return self._folder / f"step-{mined}.jsonl.gz"


def check_refresh(stage: StageConfig, data: StageData) -> None:
    """Finds a refresh that would fail when its time comes.

    Raises:
        ConfigError: no corpus to search, or a positive that is not in it.
    """
    if stage.refresh is not None:
        _check_positives(stage, data)


def _corpus_of(stage: StageConfig) -> DatasetDirectory:
    """Returns the dataset directory whose documents a stage's refreshes search.

    Raises:
        ConfigError: there is none.
    """
    if stage.dataset is not None:
        return DatasetDirectory(stage.dataset)
    if stage.data is None or not Path(stage.data).is_dir():
        raise ConfigError(
            "`refresh` searches a corpus: `data` must be a dataset directory, or `dataset` name"
            f" one. Received: data={stage.data!r}, dataset=None"
        )
    return DatasetDirectory(stage.data)


def _check_positives(stage: StageConfig, data: StageData) -> None:
    corpus = _corpus_of(stage)
    if stage.dataset is None:
        return  # judgements name documents of their own corpus
    (source,) = stage.sources
    unknown = {pair.positive.doc_id for pair in data.table(source)}
    unknown.difference_update(document.doc_id for document in corpus.documents())
    if unknown:
        raise ConfigError(
            f"`refresh` needs positives that are documents of {corpus.path}, named by their ids."
            f" Received: {min(unknown)!r} in {stage.data}"
        )


def _compare(path: Path, before: PairTable) -> dict[str, float]:
    """Returns what is told of a refresh beside its time."""
    known = {
        (pair.query.query_id, pair.positive.doc_id): {d.doc_id for d in pair.negatives}
        for pair in before
    }
    pairs = negatives = changed = 0
    gap = 0.0
    for _, line in read_json_lines(path):
        pairs += 1
        negatives += len(line["negatives"])
        changed += len(set(line["negatives"]) - known[line["query_id"], line["positive"]])
        scores = line["scores"]
        gap += sum(scores["positive"] - score for score in scores["negatives"])
    found = {"negatives_per_pair": negatives / pairs}
    if negatives:
        found |= {"changed_negatives": changed / negatives, "score_gap": gap / negatives}
    return found
