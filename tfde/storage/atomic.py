"""Files and directories that appear whole or not at all, and one writer at a time.

Everything is written under a temporary name beside the target (the same file system), flushed
to the disk, then renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

from tfde.errors import ConfigError

# Source: Linux's fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_unfinished: set[Path] = set()
LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there becomes `path` at the end.

    The temporary name keeps the last two suffixes, for libraries that look at them. An existing
    file is replaced; a link stays, and what it leads to is replaced. After an error nothing is left
    behind and an older file stays as it was.

    Raises:
        ConfigError: as `refuse_unwritable`, or the directory it lies in cannot be made.
    """
    path = Path(path)
    refuse_unwritable(path)
    if path.is_symlink():
        path = path.resolve()
    with _creating(path):
        make_directories(path.parent)
    temporary = _beside(path, "".join(path.suffixes[-2:]))
    _unfinished.add(temporary)
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise _named(error, path, temporary) from error
    finally:
        temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)


@contextlib.contextmanager
def atomic_directory(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives a temporary directory beside `path` that becomes `path` at the end.

    After an error nothing is left behind and an older directory stays as it was. Where the file
    system can exchange two names, there is no moment without a directory at `path`.

    Raises:
        ConfigError: `path` is a file, or a directory that is not empty without `overwrite`; or it
            cannot be made.
    """
    path = Path(path)
    if path.is_symlink():  # which stays
        path = path.resolve()
    refuse_existing(path, overwrite=overwrite)
    temporary, older = _beside(path), _beside(path, ".old")
    with _creating(path):
        make_directories(temporary)
    _unfinished.add(temporary)
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                _flush(Path(folder, name))
            _flush(Path(folder))
        if not (path.exists() and _exchange(temporary, path)):
            if path.exists():
                os.rename(path, older)
            try:
                os.rename(temporary, path)
            except OSError:
                if older.exists():
                    os.rename(older, path)
                raise
        _flush(path.parent)
    except OSError as error:
        raise _named(error, path, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _unfinished.discard(temporary)
        if path.exists():
            shutil.rmtree(older, ignore_errors=True)


@contextlib.contextmanager
def temporary_directory(path: str | Path) -> Iterator[Path]:
    """Gives a new directory beside `path`, for what is needed until `path` is written.

    Raises:
        ConfigError: it cannot be made.
    """
    temporary = _beside(Path(path))
    with _creating(Path(path)):
        make_directories(temporary)
    _unfinished.add(temporary)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _unfinished.discard(temporary)


def make_directories(path: str | Path) -> None:
    """Makes a directory and those above it, each flushed to the disk in the one that holds it.

    Without that a power cut could take a new directory away with all that was flushed inside it.

    Raises:
        OSError: one cannot be made, or is a file.
    """
    path = Path(path)
    if path.is_dir():
        return
    if not path.parent.exists():
        make_directories(path.parent)
    path.mkdir(exist_ok=True)
    _flush(path.parent)


def remove_unfinished() -> None:
    """Removes what this process has begun to write; for a process that is about to end."""
    for path in list(_unfinished):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_left(directory: str | Path) -> None:
    """Removes what killed processes began to write in a directory in which none writes now."""
    for left in Path(directory).glob(".*.tmp*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def end_by_signal(number: int, frame: object) -> None:
    """Ends this process by a signal, as it would without a handler, but leaves nothing unfinished.

    It is no exception: the way out would wait for the processes at work.
    """
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container does not end by it


def refuse_unwritable(path: str | Path) -> None:
    """Refuses an output file that cannot be put in its place; call it before long work.

    Raises:
        ConfigError: a directory, a device or a pipe stands at `path`, which would be replaced, or
            no file can be made where it lies.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: the output must be a file, but a directory stands there.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: the output must be a file, but a device or pipe stands there.")
    _refuse_closed(path)


def refuse_source(path: str | Path, source: str | Path, what: str) -> None:
    """Refuses an output directory that is, or holds, what is read: it would be put in its place.

    Args:
        path: The output.
        source: A file or directory that is read.
        what: How messages call that.

    Raises:
        ConfigError: the source would be replaced.
    """
    if not Path(path).is_dir() or not Path(source).exists():
        return
    output, read = Path(path).resolve(), Path(source).resolve()
    if read == output:
        raise ConfigError(f"{path}: the output must not be {what}; name another.")
    if read.is_relative_to(output):
        raise ConfigError(f"{path}: the output must not hold {what}, {source}; name another.")


def refuse_existing(path: str | Path, *, overwrite: bool, flag: str = "") -> None:
    """Refuses an output directory that already holds something; call it before long work.

    Args:
        path: The directory.
        overwrite: Whether what it holds may be replaced.
        flag: The option of a command that says so, for the message.

    Raises:
        ConfigError: `path` is a file, a directory that is not empty without `overwrite`, or one
            that is or holds the working directory, or a mounted volume, which no other can be put
            in place of; or it lies where nothing can be made.
    """
    path = Path(path)
    if path.is_dir() and Path.cwd().is_relative_to(path.resolve()):
        holds = "be" if path.samefile(os.curdir) else "hold"
        raise ConfigError(
            f"{path}: the output must not {holds} the working directory; name a new one."
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path}: the output must be a directory, but a file stands there.")
    if not overwrite and path.exists() and any(path.iterdir()):
        ways = f"choose another, or give {flag}" if flag else "choose another or remove it"
        raise ConfigError(f"{path}: the output exists and is not empty; {ways}.")
    if path.is_mount():
        raise ConfigError(
            f"{path}: the output must not be the place of a mounted volume, which nothing can be"
            " put in place of; name a directory inside it."
        )
    _refuse_closed(path)


def _refuse_closed(path: Path) -> None:
    """Refuses a path beside which this process may make nothing."""
    holder = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    if holder.is_dir() and not os.access(holder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: cannot be written: nothing can be made in {holder}.")


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    """Names what was asked for, not our temporary names."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from error


def _beside(path: Path, suffix: str = "") -> Path:
    # Not tempfile: its files are readable by their owner only, and stay so after the rename.
    return path.absolute().parent / f".{path.name}.{uuid.uuid4().hex[:12]}.tmp{suffix}"


def _exchange(one: Path, other: Path) -> bool:
    """Gives each of two directories the other's name, in one step; returns whether it could."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    return rename is not None and not rename(
        _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE
    )


def _named(error: OSError, path: Path, temporary: Path | None = None) -> OSError:
    """Returns an error with what was to be written: Python leaves it out, or names the temporary.

    One without a name is ours where it tells of a full disk.
    """
    ours = error.errno in _FULL and error.filename is None
    if not ours and (temporary is None or str(error.filename) != str(temporary)):
        return error
    return OSError(error.errno, error.strerror, str(path))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def directory_lock(directory: Path, doing: str) -> Iterator[None]:
    """Keeps other processes out of a directory; the lock of a killed process is free.

    Args:
        directory: It must exist.
        doing: What the other process is doing there, for the error.

    Raises:
        ConfigError: another process has the lock; the message gives its pid.
    """
    with (directory / LOCK).open("a+") as file:
        file.seek(0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = f"another process ({file.read().strip() or 'just started'})"
            raise ConfigError(f"{directory}: {process} is {doing}.") from None
        try:
            file.truncate()
            file.write(f"pid {os.getpid()}\n")
            file.flush()
        except OSError as error:
            raise _named(error, directory / LOCK) from error
        try:
            yield
        finally:
            file.truncate(0)  # the same directory again has the same contents
