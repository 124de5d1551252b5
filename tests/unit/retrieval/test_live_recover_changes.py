"""A file of changes that is damaged: told with file, place and way out; then what is whole is kept.

The files are those of a writer at work, as a kill leaves them: SQLite's own log is still there.
"""

import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmark_script import BENCHMARKS

from tfde.cli.main import main
from tfde.errors import ConfigError, CorruptError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex
from tfde.retrieval.live.recover_changes import recover
from tfde.retrieval.live.write_ahead_log import read_frames
from tfde.types import Document

sys.path.insert(0, str(BENCHMARKS))
import live_index_faults as faults

LOG, WAL, ACKNOWLEDGED = faults.LOGS
CHANGES = 30


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of a writer that was killed after 30 changes, and what they hold."""
    path = tmp_path_factory.mktemp("killed")
    expected = {f"d{i}": np.full(faults.DIM, i, np.float32) for i in range(100)}
    ExactIndex.build(np.stack(list(expected.values())), list(expected), fingerprint="f").save(
        path / "at_work"
    )
    with LiveIndex.open(path / "at_work", write=True) as index:
        for number in range(CHANGES):
            ids, vectors = faults.change(number)
            if vectors is None:
                index.delete(ids)
            else:
                index.add(
                    [Document(i, "", f"text {number}") for i in ids], vectors, fingerprint="f"
                )
            faults.replay(expected, number)
        shutil.copytree(path / "at_work", path / "killed")
    return path / "killed", expected


@pytest.fixture
def copy(killed, tmp_path):
    shutil.copytree(killed[0], tmp_path / "i")
    return tmp_path / "i"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x55
    path.write_bytes(content)


def test_frames_are_those_that_sqlite_reads(copy):
    frames = list(read_frames(copy / WAL))
    assert all(frame.is_whole for frame in frames)
    database = sqlite3.connect(copy / LOG)
    _, in_log, _ = database.execute("PRAGMA wal_checkpoint").fetchone()
    database.close()
    assert in_log == len(frames) > 41


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("at", [0, 3, 40])
@pytest.mark.parametrize("inside", [1, 9, 17, 1000])  # page number, salt, checksum, page
def test_damage_in_the_middle_is_told_before_sqlite_drops_what_follows(copy, at, inside, write):
    offset = 32 + at * (24 + 4096)
    commits = sum(frame.ends_commit for frame in read_frames(copy / WAL))
    flip(copy / WAL, offset + inside)
    for _ in range(2):  # and telling it changes nothing
        with pytest.raises(CorruptError, match=rf"{WAL}: is damaged at byte {offset}, and") as told:
            LiveIndex.open(copy, write=write)
        assert f"`tfde index recover {copy}` keeps what can be kept" in str(told.value)
        behind = int(str(told.value).partition(", and ")[2].partition(" commits")[0])
        assert commits - at - 3 <= behind <= commits


def test_what_was_damaged_and_written_again_is_recovered_whole(copy, killed, capsys):
    frames = list(read_frames(copy / WAL))
    again = {frame.page for frame in frames[20:]}
    place = next(frame.offset for frame in frames[3:20] if frame.page in again)
    flip(copy / WAL, place + 24 + 100)
    assert main(["index", "recover", str(copy)]) == 0
    said = capsys.readouterr().out
    assert f"last change kept {done_changes(killed):,}, last change acknowledged" in said
    assert "rows that cannot be read 0, pages lost 0\nnothing is lost\n" in said
    assert faults.holds(LiveIndex.open(copy), killed[1])
    with LiveIndex.open(copy, write=True) as index:  # and goes on
        index.delete(["d1"])
        texts = index.documents(killed[1])
    with LiveIndex.open(killed[0]) as whole:
        assert texts == {k: v for k, v in whole.documents(killed[1]).items() if k != "d1"}


def done_changes(killed):
    return LiveIndex.open(killed[0]).status().sequence


def test_the_last_frames_are_told_by_what_was_acknowledged(copy, killed):
    content = (copy / WAL).read_bytes()
    (copy / WAL).write_bytes(content[: -(24 + 4096)])
    last = done_changes(killed)
    with pytest.raises(
        CorruptError, match=rf"{LOG}: is damaged; its last change is \d+, and {last}"
    ):
        LiveIndex.open(copy)
    done = recover(copy)
    assert (done.acknowledged, done.is_whole) == (last, False)
    assert done.last < last
    with LiveIndex.open(copy, write=True) as index:  # numbers are not given twice
        assert index.delete(["d1", "d2", "d3", "d4", "d5"]).sequence > last


@pytest.mark.parametrize("tail", [b"\0" * 4120, b"\1" * 4120, b"half a frame"])
def test_a_torn_tail_is_no_damage(copy, killed, tail):
    (copy / WAL).write_bytes((copy / WAL).read_bytes() + tail)
    assert faults.holds(LiveIndex.open(copy), killed[1])
    with LiveIndex.open(copy, write=True) as index:
        assert faults.holds(index, killed[1])


@pytest.mark.parametrize("ended_by", ["rollback", "kill"])
def test_a_large_change_that_never_ended_is_no_damage(copy, killed, ended_by):
    """What is larger than SQLite's memory stands in its log before it ends."""
    large = f"""
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA wal_autocheckpoint = 0")
database.execute("PRAGMA cache_size = 5")
database.execute("BEGIN IMMEDIATE")
for number in range(3000):
    database.execute("UPDATE documents SET text = randomblob(2000)")
    if os.path.getsize(sys.argv[1] + "-wal") > int(sys.argv[2]):
        break
if {ended_by == "rollback"}:
    database.execute("ROLLBACK")
os.kill(os.getpid(), signal.SIGKILL)
"""
    before = (copy / WAL).stat().st_size
    enough = before + 100_000
    subprocess.run([sys.executable, "-c", large, str(copy / LOG), str(enough)], check=False)
    assert (copy / WAL).stat().st_size > enough
    with LiveIndex.open(copy, write=True) as index:
        assert faults.holds(index, killed[1])
        index.delete(["d7"])  # overwrites the first of it
        reader = LiveIndex.open(copy)
        assert faults.holds(reader, {i: v for i, v in killed[1].items() if i != "d7"})


def test_a_lost_file_is_told(copy):
    for suffix in ("", "-wal", "-shm"):
        copy.joinpath(LOG + suffix).unlink(missing_ok=True)
    rule = rf"{LOG}: is gone, and 133 changes with it: restore a backup; `tfde index recover"
    with pytest.raises(CorruptError, match=rule):
        LiveIndex.open(copy)
    found = recover(copy)
    assert (found.last, found.acknowledged, found.is_whole) == (0, 133, False)
    with LiveIndex.open(copy, write=True) as index:
        assert len(index) == 100
        assert index.delete(["d1"]).sequence == 134


def test_after_a_recovery_a_lost_file_is_told_again(copy):
    flip(copy / WAL, 32 + 1)
    recover(copy)
    assert (copy / ACKNOWLEDGED).is_file()
    (copy / LOG).unlink()
    with pytest.raises(CorruptError, match=rf"{LOG}: is gone, and 133 changes with it"):
        LiveIndex.open(copy)


def compacted(copy):
    with LiveIndex.open(copy, write=True) as index:
        index.compact()
        index.delete([index.doc_ids[0]])
        return len(index)


def test_a_lost_file_after_a_compaction_leaves_its_index(copy, tmp_path):
    left = compacted(copy)
    (copy / LOG).unlink()
    rule = rf"{LOG}: is gone, and the changes since the last compaction with it"
    with pytest.raises(CorruptError, match=rule):
        LiveIndex.open(copy)
    assert recover(copy).is_whole is False
    assert len(LiveIndex.open(copy)) == left + 1
    ExactIndex.build(np.eye(2, dtype=np.float32), ["a", "b"]).save(tmp_path / "fresh")
    with pytest.raises(ConfigError, match="nothing was ever changed there"):
        recover(tmp_path / "fresh")


def test_a_base_that_is_damaged_is_told_before_anything_is_changed(copy, capsys):
    compacted(copy)
    vectors = copy / "generations/0002/vectors.npy"
    flip(vectors, 200)
    assert main(["index", "recover", str(copy)]) == 1
    said = capsys.readouterr()
    assert "vectors.npy" in said.err
    assert said.out == ""
    assert not (copy / "damaged").exists()
    shutil.rmtree(vectors.parent)
    with pytest.raises(CorruptError, match=r"generations/0002: is gone, the index that"):
        LiveIndex.open(copy)


@pytest.mark.parametrize("place", [0, 16, 100])
def test_a_damaged_header_is_no_end(copy, killed, place):
    with LiveIndex.open(copy, write=True):
        pass  # closed, the log is one file
    flip(copy / LOG, place)
    with pytest.raises(CorruptError):
        LiveIndex.open(copy)
    found = recover(copy)
    assert found.is_whole == (place == 0)
    recovered = LiveIndex.open(copy)
    assert faults.holds(recovered, killed[1]) == (place == 0)


def test_an_index_of_before_there_was_such_a_file_opens(copy, killed):
    (copy / ACKNOWLEDGED).unlink()
    assert faults.holds(LiveIndex.open(copy), killed[1])
    (copy / ACKNOWLEDGED).write_bytes(b"\0" * 32)  # a power cut: made, and never filled
    assert faults.holds(LiveIndex.open(copy), killed[1])
    (copy / ACKNOWLEDGED).write_bytes(b"7")
    with pytest.raises(CorruptError, match=rf"{ACKNOWLEDGED}: is damaged; `tfde index recover"):
        LiveIndex.open(copy)
    found = recover(copy)
    assert (found.acknowledged, found.is_whole) == (None, None)
    assert faults.holds(LiveIndex.open(copy), killed[1])


def test_a_lost_state_is_that_of_the_newest_base(copy, killed):
    with LiveIndex.open(copy, write=True) as index:
        index.compact()
        expected = dict(zip(index.doc_ids.tolist(), index.vectors(), strict=True))
    database = sqlite3.connect(copy / LOG)
    database.execute("UPDATE state SET checksum = 0")
    database.commit()
    database.close()
    with pytest.raises(CorruptError, match="its state is not what was written"):
        LiveIndex.open(copy)
    assert recover(copy).unreadable == 1
    assert faults.holds(LiveIndex.open(copy), expected)
    with pytest.raises(ConfigError, match=r"damaged: must be moved away; it holds what an earlier"):
        recover(copy)


def test_nothing_to_recover(tmp_path):
    ExactIndex.build(np.eye(2), ["a", "b"]).save(tmp_path / "i")
    with pytest.raises(ConfigError, match=r"i: must hold changes.sqlite; nothing was ever changed"):
        recover(tmp_path / "i")


def test_no_damage_goes_without_a_word(killed, tmp_path):
    moments = random.Random(4)
    outcomes = {
        faults.try_damage(killed[0], tmp_path / "copy", [killed[1]], moments)[1] for _ in range(80)
    }
    assert outcomes == {"right", "told, recovered whole", "told, recovered in part"}


KILLED = """
import os, sys
from pathlib import Path
from tfde.retrieval.live import recover_changes

place = sys.argv[2]
module = recover_changes.ChangeLog if place == "create" else recover_changes
setattr(module, place, lambda *args, **options: os._exit(9))
recover_changes.recover(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("place", ["_read_whole", "create"])
def test_a_recovery_that_was_killed_is_taken_up(copy, killed, place):
    """What lies in SQLite's own log alone is not lost by it, whatever was removed before."""
    expected = recover(Path(shutil.copytree(copy, copy.with_name("whole"))))
    done = subprocess.run([sys.executable, "-c", KILLED, str(copy), place], check=False)
    assert done.returncode == 9
    assert (copy / "damaged").is_dir()
    again = recover(copy)
    assert (again.changes, again.last, again.is_whole) == (
        expected.changes, expected.last, expected.is_whole,
    )  # fmt: skip
    assert faults.holds(LiveIndex.open(copy), killed[1])
    with pytest.raises(ConfigError, match=r"damaged: must be moved away; it holds what an earlier"):
        recover(copy)
