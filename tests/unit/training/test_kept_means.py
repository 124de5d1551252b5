"""Which of several means with the start is kept, by values that are given."""

import contextlib
import json

import tiny

from tfde.training.callbacks import Average, StageCallback
from tfde.training.checkpoint import Progress


class Measures:
    """A validation whose values are given."""

    every_steps, leading_measure, extent, measures_start = 10, "RR", "nothing", True

    def __init__(self, values):
        self.values = iter(values)

    def __call__(self, model):
        return {"RR": next(self.values)}

    def harm(self, measures, start):
        return "" if measures["RR"] != 0.79 else "too much"


def test_a_mean_that_is_kept_stays_beside_means_of_later_stages_that_are_farther(tmp_path):
    model = tiny.dual_encoder()
    progress = Progress("a", start={"RR": 0.5}, best=0.8)
    (tmp_path / "history.jsonl").touch()

    def kept(shares, values):
        callback = StageCallback(
            tmp_path,
            progress,
            log_every_steps=1,
            checkpoint_every_steps=1,
            last_step=1,
            validation=Measures(values),
            show=False,
            min_gain_kept=0.9,
        )
        means = [Average(str(share), contextlib.nullcontext(), share) for share in shares]
        callback.validate_averages(model, means)
        lines = (tmp_path / "history.jsonl").read_text().splitlines()[-len(shares) :]
        return [json.loads(line)["kept"] for line in lines]

    assert kept([0.25, 0.5, 0.75], [0.775, 0.78, 0.79]) == [True, True, False]  # the last one harms
    assert kept([0.1], [0.772]) == [False]
    assert kept([0.6], [0.772]) == [True]
    assert kept([0.1], [0.81]) == [True]  # the best of all
    assert (progress.best, progress.kept_share) == (0.81, 0.1)
