import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfde.errors import ConfigError
from tfde.storage.atomic import (
    atomic_directory,
    atomic_file,
    make_directories,
    refuse_existing,
    refuse_source,
    refuse_unwritable,
)


def half_done(path):
    path.write_text("half")
    raise RuntimeError("halfway")


def test_file_appears_at_the_end_with_ordinary_rights(tmp_path):
    path = tmp_path / "new" / "x.npy"
    with atomic_file(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".npy"
        temporary.write_text("content")
        assert not path.exists()
    assert path.read_text() == "content"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert os.listdir(path.parent) == ["x.npy"]


def test_failed_file_leaves_the_older_one(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"), atomic_file(path) as temporary:
        half_done(temporary)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_directory_appears_at_the_end(tmp_path):
    with atomic_directory(tmp_path / "d") as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "x").write_text("1")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "sub" / "x").read_text() == "1"
    assert os.listdir(tmp_path) == ["d"]


def test_directory_is_replaced_only_when_asked(tmp_path):
    (tmp_path / "d").mkdir()
    with atomic_directory(tmp_path / "d") as temporary:  # an empty one may be filled
        (temporary / "x").write_text("old")
    with (
        pytest.raises(ConfigError, match=r"d: the output exists and is not empty; choose another"),
        atomic_directory(tmp_path / "d"),
    ):
        pass
    with (
        pytest.raises(RuntimeError, match="halfway"),
        atomic_directory(tmp_path / "d", overwrite=True) as temporary,
    ):
        half_done(temporary / "x")
    assert (tmp_path / "d" / "x").read_text() == "old"
    with atomic_directory(tmp_path / "d", overwrite=True) as temporary:
        (temporary / "y").write_text("new")
    assert os.listdir(tmp_path / "d") == ["y"]
    assert os.listdir(tmp_path) == ["d"]


KILLED = """
import os, signal, sys
from tfde.storage.atomic import atomic_directory

rename = os.rename
def last(*names):
    rename(*names)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = last
with atomic_directory(sys.argv[1], overwrite=True) as temporary:
    (temporary / "x").write_text("new")
"""


def test_there_is_no_moment_without_a_directory(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "d")]
    assert subprocess.run(command).returncode == -signal.SIGKILL  # a first one is renamed
    assert (tmp_path / "d" / "x").read_text() == "new"
    (tmp_path / "d" / "x").write_text("old")
    subprocess.run(command)
    assert (tmp_path / "d" / "x").read_text() in ("old", "new")


def test_file_in_the_way_of_a_directory_is_refused(tmp_path):
    (tmp_path / "d").write_text("")
    with pytest.raises(ConfigError, match=r"d: the output must be a directory, but a file stands"):
        refuse_existing(tmp_path / "d", overwrite=True)


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for make in (atomic_file, atomic_directory):
        with (
            pytest.raises(ConfigError, match=r"file/below/x: cannot be written \(Not a directory"),
            make(tmp_path / "file" / "below" / "x"),
        ):
            pass


def test_a_directory_in_the_way_of_a_file_is_refused(tmp_path):
    with (
        pytest.raises(ConfigError, match="must be a file, but a directory stands"),
        atomic_file(tmp_path),
    ):
        pass


def test_the_working_directory_is_no_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"\.: the output must not be the working directory"):
        refuse_existing(".", overwrite=True)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(ConfigError, match="the output must not hold the working directory"):
        refuse_existing(tmp_path, overwrite=True)


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    """As root `/dev/null` could be."""
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(ConfigError, match="must be a file, but a device or pipe stands there"),
        atomic_file(tmp_path / "pipe"),
    ):
        pass
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(ConfigError, match="/dev/null: the output must be a file"):
        refuse_unwritable("/dev/null")


def test_a_link_to_a_file_stays(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_file(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_an_output_that_holds_what_is_read(tmp_path):
    (tmp_path / "raw").mkdir()
    source = tmp_path / "raw" / "train.json"
    source.write_text("{}")
    (tmp_path / "same").symlink_to("raw")
    with pytest.raises(ConfigError, match=r"raw: the output must not hold the file, .*train.json"):
        refuse_source(tmp_path / "raw", source, "the file")
    with pytest.raises(ConfigError, match=r"same: the output must not hold the file"):
        refuse_source(tmp_path / "same", source, "the file")
    refuse_source(tmp_path / "new", source, "the file")
    refuse_source(tmp_path / "raw" / "new", source, "the file")


def test_a_mounted_volume_is_refused_before_the_work(tmp_path):
    """Its directory cannot be exchanged for another: all would be lost at the end."""
    with pytest.raises(ConfigError, match=r"/proc: .* not empty"):
        refuse_existing("/proc", overwrite=False)
    with pytest.raises(ConfigError, match=r"/proc: the output must not be the place of a mounted"):
        refuse_existing("/proc", overwrite=True)


def test_a_closed_directory_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # not so for root
    for refuse in (refuse_unwritable, lambda path: refuse_existing(path, overwrite=False)):
        with pytest.raises(ConfigError, match=r"x: cannot be written: nothing can be made"):
            refuse(tmp_path / "x")


def test_an_error_names_what_was_asked_for(tmp_path):
    with (
        pytest.raises(OSError, match=r"/x'$") as told,
        atomic_file(tmp_path / "x") as temporary,
    ):
        raise PermissionError(errno.EACCES, "Permission denied", str(temporary))
    assert told.value.filename == str(tmp_path / "x")


@pytest.mark.parametrize("writes", [atomic_file, atomic_directory, make_directories])
def test_new_directories_are_flushed_into_those_that_hold_them(tmp_path, monkeypatch, writes):
    flushed, fsync = set(), os.fsync

    def noted(descriptor):
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    if writes is make_directories:
        writes(tmp_path / "a/b/c")
    else:
        with writes(tmp_path / "a/b/c") as temporary:
            (temporary / "x" if temporary.is_dir() else temporary).write_text("x")
    assert {str(tmp_path / name).rstrip("/") for name in ("", "a", "a/b")} <= flushed
    assert (tmp_path / "a/b/c").exists()
