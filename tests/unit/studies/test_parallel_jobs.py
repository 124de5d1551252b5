"""What is at work at the same time, on which cores, and what a failure leaves to be done."""

import os
import threading

import pytest

from tfde.errors import ConfigError
from tfde.studies.parallel_jobs import core_shares, side_by_side


@pytest.mark.parametrize(
    ("jobs", "shares"),
    [(1, [[2, 3, 5, 8, 9]]), (2, [[2, 3], [5, 8, 9]]), (5, [[2], [3], [5], [8], [9]])],
)
def test_cores_are_divided_without_rest(monkeypatch, jobs, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 8, 5, 3, 2})
    assert core_shares(jobs) == shares


@pytest.mark.parametrize("jobs", [0, 6])
def test_a_share_is_a_core_at_least(monkeypatch, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 8, 5, 3, 2})
    with pytest.raises(ConfigError, match=rf"`jobs` must be in \[1, 5\] .*Received: {jobs}"):
        core_shares(jobs)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def never(task, other):
    return False


def test_two_are_at_work_at_the_same_time(two_cores):
    both = threading.Barrier(2, timeout=30)  # is passed by two at once, or not at all

    def work(task, cores):
        both.wait()
        return cores

    found = dict(side_by_side("abcd", work, jobs=2, must_wait=never))
    assert sorted(found) == ["a", "b", "c", "d"]
    assert {tuple(cores) for cores in found.values()} == {(0,), (1,)}


def test_one_at_a_time_keeps_the_order(two_cores):
    assert list(
        side_by_side([3, 1, 2], lambda task, cores: (task, cores), jobs=1, must_wait=never)
    ) == [(n, (n, [0, 1])) for n in (3, 1, 2)]


def test_what_must_wait_begins_after_the_result_of_the_other_was_taken(two_cores):
    taken, begun = [], threading.Event()

    def work(task, cores):
        if task == "b1":
            begun.set()
        if task == "a1":  # is at work until the one that begins in place of a2 has begun
            assert begun.wait(30)
        return list(taken)

    def must_wait(task, other):
        return task[0] == other[0]

    seen = {}
    for task, found in side_by_side(["a1", "a2", "b1"], work, jobs=2, must_wait=must_wait):
        seen[task] = found
        taken.append(task)
    assert "a1" in seen["a2"]
    assert seen["b1"] == []


def test_after_a_failure_nothing_begins_and_what_is_at_work_ends(two_cores):
    failed = threading.Event()
    begun = []

    def work(task, cores):
        begun.append(task)
        if task == "bad":
            try:
                raise OSError("broken")
            finally:
                failed.set()
        assert failed.wait(30)
        return task

    found = []
    with pytest.raises(OSError, match=r"^broken$"):
        found.extend(side_by_side(["bad", "good", "later"], work, jobs=2, must_wait=never))
    assert found == [("good", "good")]
    assert sorted(begun) == ["bad", "good"]
