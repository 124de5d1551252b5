"""A live index through `kill -9`, damaged files and a full disk."""

import multiprocessing
import random
import sqlite3
import time

import live_index_child as child
import numpy as np
import pytest

from tfde.errors import CorruptError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex

KILLS = 8


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tfde.retrieval.live.live_index"])  # TensorFlow, once
    return context


@pytest.fixture
def expected(tmp_path):
    vectors = {f"d{i}": np.full(child.DIM, i, np.float32) for i in range(30)}
    ExactIndex.build(np.stack(list(vectors.values())), list(vectors), fingerprint="f").save(
        tmp_path / "i"
    )
    return vectors


def is_in(index, expected):
    return index.doc_ids.tolist() == list(expected) and np.array_equal(
        index.vectors(), np.stack(list(expected.values()))
    )


def test_kill_at_any_moment_keeps_what_was_acknowledged(tmp_path, expected, processes):
    moments, number, generations = random.Random(0), 0, set()
    for _ in range(KILLS):
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(
            target=child.change_and_compact, args=(tmp_path / "i", number, sender)
        )
        process.start()
        sender.close()
        acknowledged = [receiver.recv()]
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        try:
            while True:
                acknowledged.append(receiver.recv())
        except EOFError:
            pass
        assert acknowledged == list(range(number, number + len(acknowledged)))
        for done in acknowledged:
            child.replay(expected, done)
        number = acknowledged[-1] + 1
        index = LiveIndex.open(tmp_path / "i")  # a reader, before anybody cleaned up
        if not is_in(index, expected):
            # The change under way was committed but not yet acknowledged: all of it is there.
            child.replay(expected, number)
            number += 1
        assert is_in(index, expected)
        generations.add(index.status().generation)
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        assert is_in(index, expected)
        assert len(list((tmp_path / "i/generations").iterdir())) == 1
    assert len(generations) > 2


def test_a_full_disk_refuses_in_one_line_and_changes_nothing(tmp_path, expected, processes):
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=child.fill_the_disk, args=(tmp_path / "i", sender))
    process.start()
    sender.close()
    made, refused, found, compactions, state = receiver.recv()
    process.join()
    assert process.exitcode == 0
    assert made > 3
    assert refused[0] == str(tmp_path / "i/changes.sqlite")
    assert refused[1].startswith("cannot be read or written (")
    assert "\n" not in refused[1]
    assert refused[2] == made
    assert found == [["d29"]]
    assert compactions == ["File too large", "cannot be read or written (disk I/O error)"]
    assert state == (1, made)
    expected |= {f"n{i}": np.full(child.DIM, i, np.float32) for i in range(made)}
    expected["last"] = np.full(child.DIM, made, np.float32)
    assert is_in(LiveIndex.open(tmp_path / "i"), expected)


def test_damage_is_told_or_does_not_matter(tmp_path, expected):
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        for number in range(12):
            child.make(index, number)
            child.replay(expected, number)
        texts = index.documents(expected)
    file = tmp_path / "i/changes.sqlite"
    content = file.read_bytes()
    assert not list((tmp_path / "i").glob("changes.sqlite-*"))
    generator = np.random.default_rng(0)
    used = np.flatnonzero(np.frombuffer(content, np.uint8))  # most of the file is empty
    damaged = [content[:length] for length in generator.integers(0, len(content), 20)]
    for place in generator.choice(used, 400):
        damaged.append(bytearray(content))
        damaged[-1][place] ^= int(generator.integers(1, 256))
    told = []
    for damage in damaged:
        file.write_bytes(damage)
        try:
            index = LiveIndex.open(tmp_path / "i")
            assert is_in(index, expected)
            assert index.documents(expected) == texts
        except CorruptError as error:
            told.append(str(error))
    assert len(told) > 300
    assert all(line.startswith(f"{file}: ") and "\n" not in line for line in told)
    file.write_bytes(content)
    assert is_in(LiveIndex.open(tmp_path / "i"), expected)


def test_parts_that_do_not_belong_together_are_refused(tmp_path, expected):
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        index.delete(["d1"])
    (tmp_path / "i/changes.sqlite").rename(tmp_path / "changes")
    ExactIndex.build(np.eye(2), ["a", "b"]).save(tmp_path / "i", overwrite=True)
    (tmp_path / "changes").rename(tmp_path / "i/changes.sqlite")
    with pytest.raises(CorruptError, match=r"i: is not the index that .*changes\.sqlite changes"):
        LiveIndex.open(tmp_path / "i")
    database = sqlite3.connect(tmp_path / "i/changes.sqlite")
    database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(CorruptError, match=r"changes\.sqlite: has format 7; expected 1"):
        LiveIndex.open(tmp_path / "i", write=True)
