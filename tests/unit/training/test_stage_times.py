"""Where the time of a stage is said to have gone."""

import time

from tfde.training.stage_times import BATCHES, SAVING, STEPS, StageTimes


def test_each_second_counts_once_for_the_part_that_the_clock_was_set_to(monkeypatch):
    now = iter([0.0, 2.0, 5.0, 6.0, 10.0, 99.0, 100.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    times = StageTimes()
    times.enter(BATCHES)  # at 0
    times.enter(STEPS)  # at 2
    with times.within(SAVING):  # at 5, until 6
        pass
    times.enter(None)  # at 10
    times.enter(SAVING)  # at 99
    times.enter(None)
    assert {part: taken for part, taken in times.seconds.items() if taken} == {
        BATCHES: 2.0,
        STEPS: 7.0,
        SAVING: 2.0,
    }
    assert str(times) == "11 s (steps 7 s, waiting for batches 2 s, saving 2 s)"


def test_a_stage_that_took_no_time():
    assert str(StageTimes()) == "0 s"
