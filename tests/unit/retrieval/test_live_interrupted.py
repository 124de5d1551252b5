"""Ctrl-C at the moment in which a change is made: index and file stay together."""

import contextlib

import numpy as np
import pytest
from live_indexes import DIM, add, assert_answers_like, exact, whole_numbers

from tfde.retrieval.live.live_index import LiveIndex


class _Interrupts:
    """A database whose next COMMIT is made, and interrupted as Ctrl-C does when it returns."""

    def __init__(self, database):
        self._database = database
        self._interrupts = True

    def __getattr__(self, name):
        return getattr(self._database, name)

    def execute(self, query, *args):
        found = self._database.execute(query, *args)
        if query == "COMMIT" and self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
        return found


@contextlib.contextmanager
def interrupted(index):
    log = index._log
    log._database = _Interrupts(log._database)
    with pytest.raises(KeyboardInterrupt):
        yield
    log._database = log._database._database


def test_a_change_that_is_interrupted_when_it_is_made_is_whole(tmp_path):
    expected = exact(tmp_path / "i", rows=20)
    queries = whole_numbers(np.random.default_rng(1), 4)
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        new = {"new": np.full(DIM, 9, np.float32), "d3": np.full(DIM, -9, np.float32)}
        with interrupted(index):
            add(index, new)
        for doc_id, vector in new.items():
            expected.pop(doc_id, None)
            expected[doc_id] = vector
        assert_answers_like(index, expected, queries)
        assert index.search_documents(queries, 3).version == index.version
        with interrupted(index):
            index.delete(["d5"])
        del expected["d5"]
        last = {"last": np.full(DIM, 2, np.float32)}
        add(index, last)
        expected |= last
        assert_answers_like(index, expected, queries)
        with interrupted(index):
            index.compact()
        assert_answers_like(index, expected, queries)
        index.delete(["last"])
        del expected["last"]
    with LiveIndex.open(tmp_path / "i") as index:
        assert_answers_like(index, expected, queries)
