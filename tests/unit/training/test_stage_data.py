"""How often the files of a run are opened, and that what is read once is what is read anew."""

import collections
import sys

import numpy as np
import tiny

from tfde.config.training import ModelConfig, SourceConfig, StageConfig, TrainRun
from tfde.data.pairs.read_pairs import read_pairs, write_pairs
from tfde.training.checks import check_stages
from tfde.training.stage_data import StageData

_OPENED: list[str] = []
_LISTEN = [False]


def _hook(event, arguments):
    if event == "open" and _LISTEN[0]:
        _OPENED.append(str(arguments[0]))


sys.addaudithook(_hook)  # there is no way to take it out again: it listens when it is asked to


def opened(folder, action):
    """How often `action` opens each file of a folder, by its name."""
    _OPENED.clear()
    _LISTEN[0] = True
    try:
        action()
    finally:
        _LISTEN[0] = False
    names = [path.rpartition("/")[2] for path in _OPENED if path.startswith(str(folder))]
    return collections.Counter(names)


def test_a_pair_file_is_read_once_for_all_that_looks_at_it(tmp_path):
    dataset = tiny.write_dataset(tmp_path / "data", documents=40)
    for name in ("first", "second"):
        write_pairs(tmp_path / f"{name}.jsonl", read_pairs(dataset))
    stages = {
        name: StageConfig(str(tmp_path / f"{name}.jsonl"), steps=2, batch_size=8)
        for name in ("first", "second")
    }
    run = TrainRun(ModelConfig("x"), stages, seed=7)
    data = StageData(seed=run.seed, stores=tmp_path)

    def like_train():
        check_stages(run, data, with_pages=False)
        check_stages(run, data, with_pages=True)
        data.batches(stages["first"])  # the vocabulary
        for stage in stages.values():
            data.batches(stage)

    once = opened(tmp_path, lambda: read_pairs(tmp_path / "first.jsonl"))["first.jsonl"]
    # Two stages of two files: only the second is read again, when its turn comes.
    assert opened(tmp_path, like_train) == {"first.jsonl": once, "second.jsonl": 2 * once}
    same = {"a": stages["second"], "b": stages["second"]}

    def of_one_file():
        check_stages(TrainRun(ModelConfig("x"), same), data, with_pages=False)
        for stage in same.values():
            data.batches(stage)

    assert not opened(tmp_path, of_one_file)


def test_what_is_remembered_is_what_would_be_read(tmp_path):
    dataset = tiny.write_dataset(tmp_path / "data", documents=40)
    write_pairs(tmp_path / "pairs.jsonl", read_pairs(dataset, split="dev"))
    path = str(tmp_path / "pairs.jsonl")
    plain = StageConfig(path, steps=1, batch_size=4)
    both = (SourceConfig(path, weight=2.0), SourceConfig(str(dataset), limit=9))
    mixed = StageConfig(mixture=both, steps=1, batch_size=6)
    limited = StageConfig(path, steps=1, batch_size=4, limit=5)
    data = StageData(seed=3, stores=tmp_path)
    # In a mixture queries know the positives of other sources: of that nothing may stay behind.
    for stage in (plain, mixed, plain, limited, mixed, plain):
        anew = StageData(seed=3, stores=tmp_path).batches(stage)
        for name, rows in data.batches(stage).batch(1).items():
            np.testing.assert_array_equal(rows, anew.batch(1)[name])
