"""Versions of a bundle are installed where it is served, made live, taken back and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfde.errors import ConfigError, CorruptError
from tfde.export.bundle_directory import (
    INCOMING,
    VERSIONS,
    WITHDRAWN,
    BundleVersion,
    bundle_versions,
)
from tfde.export.verify import verify_bundle
from tfde.progress import progress_bar
from tfde.storage.atomic import atomic_directory, atomic_file, directory_lock, remove_left
from tfde.storage.files import check_sha256


def install_bundle(new: str | Path, bundle: str | Path) -> int:
    """Copies a bundle's version beside those of another one and makes it live.

    A server of `bundle` answers with the version before until the new one is whole. So it does
    after an error or a kill; then the same call may be given again.

    Args:
        new: What `export_bundle` wrote, of a higher version than all in `bundle`.
        bundle: The directory that is served.

    Returns:
        The version.

    Raises:
        FileNotFoundError: no bundle at one of them.
        ConfigError: the version is not above those that are there, or has other models; another
            process changes the bundle's versions.
        CorruptError: `new` is not as exported, or the copy is not.
        OSError: it cannot be copied.
    """
    with _alone(bundle):
        return _install(new, Path(bundle))


def roll_back_bundle(bundle: str | Path, to: int | None = None) -> int:
    """Makes an earlier version live again, or one that was taken back.

    Args:
        bundle: The directory that is served.
        to: The version; by default the one before the live one that was not taken back itself.
            All later ones are taken back, and stay on the disk.

    Returns:
        The version.

    Raises:
        FileNotFoundError: no bundle there.
        ConfigError: there is no such version, or none before the live one; another process
            changes the bundle's versions.
    """
    with _alone(bundle):
        return _roll_back(Path(bundle), to)


def remove_version(bundle: str | Path, number: int) -> None:
    """Removes a version that is not live from the disk.

    Raises:
        FileNotFoundError: no bundle there.
        ConfigError: there is no such version, or it is live; another process
            changes the bundle's versions.
    """
    with _alone(bundle):
        _remove(Path(bundle), number)


@contextlib.contextmanager
def _alone(bundle: str | Path) -> Iterator[None]:
    """Lets one process at a time change a bundle's versions."""
    bundle_versions(bundle)  # says what is not there
    with directory_lock(Path(bundle), "changing its versions"):
        for folder in (Path(bundle), Path(bundle, VERSIONS), *Path(bundle, "models").glob("*")):
            remove_left(folder)
        yield


def _install(new: str | Path, bundle: Path) -> int:
    known = bundle_versions(bundle)
    version = _only(Path(new))
    number, models = version.number, version.manifest["models"]
    known = {n: v for n, v in known.items() if (n, v.state) != (number, "unfinished")}
    latest = known[max(known)]
    if number in known and known[number].manifest == version.manifest:
        if known[number].state == "live":  # a kill may have come before all of it was shown
            _show(bundle, number)
            return number
        raise ConfigError(
            f"{new}: is installed in {bundle}, {known[number].state}; tfde bundle rollback {bundle}"
            f" --to {number} makes it live."
        )
    if number <= latest.number:
        raise ConfigError(
            f"{new}: its version must be above {latest.number}, the latest of {bundle}: tfde export"
            f" --version {latest.number + 1}. Received: {number}"
        )
    if set(models) != set(latest.manifest["models"]):
        expected = ", ".join(sorted(latest.manifest["models"]))
        raise ConfigError(
            f"{new}: must have the models of {bundle}, {expected}."
            f" Received: {', '.join(sorted(models))}"
        )
    differences = verify_bundle(new)
    if differences:
        raise CorruptError(f"{new}: is not as exported: {differences[0]}")
    begun = bundle_versions(bundle).get(number)
    if begun is not None and begun.manifest != version.manifest:  # a kill left half of another one
        _remove(bundle, number)
    for each in (*known.values(), version):  # known as unfinished from now on
        _keep(bundle, each)
    with progress_bar(total=len(models), unit="model", desc="install") as progress:
        for name, folder in version.models.items():
            _copy_model(version, folder, bundle / "models" / name)
            progress.update()
    for name in _in_order(models):
        _rename(bundle / "models" / name, f"{number}{INCOMING}", str(number))
    _show(bundle, number)
    return number


def _roll_back(bundle: Path, to: int | None) -> int:
    versions = bundle_versions(bundle)
    whole = {n: version for n, version in versions.items() if version.state != "unfinished"}
    live = next((n for n, version in whole.items() if version.state == "live"), None)
    if to is None:
        earlier = [number for number, version in whole.items() if version.state == "earlier"]
        if not earlier:
            raise ConfigError(f"{bundle}: there is no version before the live one, {live}.")
        to = max(earlier)
    if to not in whole:
        there = ", ".join(map(str, whole))
        raise ConfigError(f"{bundle}: the version must be one of {there}. Received: {to}")
    for name in _in_order(whole[to].models):
        _rename(bundle / "models" / name, f"{to}{WITHDRAWN}", str(to))
    for number in sorted((number for number in versions if number > to), reverse=True):
        for name in reversed(_in_order(versions[number].models)):
            _rename(bundle / "models" / name, str(number), f"{number}{WITHDRAWN}")
    _show(bundle, to)
    return to


def _remove(bundle: Path, number: int) -> None:
    versions = bundle_versions(bundle)
    if number not in versions or versions[number].state == "live":
        there = [str(n) for n, version in versions.items() if version.state != "live"]
        raise ConfigError(
            f"{bundle}: the version must be one that is not live: {', '.join(there) or 'none is'}."
            f" Received: {number}"
        )
    for name in reversed(_in_order(versions[number].models)):
        folder = bundle / "models" / name
        _rename(folder, str(number), f"{number}{WITHDRAWN}")  # never seen half removed
        for end in (WITHDRAWN, INCOMING):
            shutil.rmtree(folder / f"{number}{end}", ignore_errors=True)
    shutil.rmtree(bundle / VERSIONS / str(number))


def _only(new: Path) -> BundleVersion:
    versions = bundle_versions(new)
    if len(versions) > 1:
        raise ConfigError(
            f"{new}: must hold one version, as tfde export writes it."
            f" Received: {', '.join(map(str, versions))}"
        )
    return next(iter(versions.values()))


def _copy_model(version: BundleVersion, source: Path, model: Path) -> None:
    """Copies a model's version under a name that no server takes, and compares the copy."""
    copied = model / str(version.number)
    if copied.is_dir():  # renamed before a kill, or put there by someone else
        try:
            _compare(version, copied, model.name)
        except CorruptError as error:
            raise CorruptError(f"{error} Remove {copied}, and install again.") from error
        return
    incoming = model / f"{version.number}{INCOMING}"
    shutil.rmtree(incoming, ignore_errors=True)
    with atomic_directory(incoming) as copy:
        shutil.copytree(source, copy, dirs_exist_ok=True)
        _compare(version, copy, model.name)


def _compare(version: BundleVersion, copy: Path, model: str) -> None:
    """Compares the copy of a model with the checksums of its manifest."""
    prefix = f"models/{model}/{version.number}/"
    for name, checksum in version.manifest["files"].items():
        if name.startswith(prefix):
            check_sha256(copy / name.removeprefix(prefix), checksum)


def _keep(bundle: Path, version: BundleVersion) -> None:
    """Keeps what is of a version and of no model in `versions/N`."""
    folder = bundle / VERSIONS / str(version.number)
    if not folder.is_dir():
        with atomic_directory(folder) as copy:
            for name in version.own_files:
                shutil.copyfile(version.files / name, copy / name)


def _show(bundle: Path, number: int) -> None:
    """Puts a version's own files where a server and a reader look for those of the bundle."""
    version = bundle_versions(bundle)[number]
    for name in version.own_files if version.files != bundle else []:
        with atomic_file(bundle / name) as path:
            shutil.copyfile(version.files / name, path)


def _in_order(models: Iterable[str]) -> list[str]:
    """Texts and towers before what finds them, for servers that take each model by itself."""
    return sorted(models, key=lambda name: (name.startswith("retriever"), name))


def _rename(folder: Path, old: str, new: str) -> None:
    """Renames a version of a model; after a kill there may be both, of which the live one stays."""
    if not (folder / old).is_dir():
        return
    if (folder / new).is_dir():
        if new.isdecimal():
            shutil.rmtree(folder / old)
            return
        shutil.rmtree(folder / new)
    os.replace(folder / old, folder / new)
