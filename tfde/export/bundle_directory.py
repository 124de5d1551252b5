"""A bundle's manifest, and which of its versions lie in its directory.

A bundle's first version lies as `export_bundle` wrote it. Of each installed version, what is of
no model (manifest, configuration, card) lies in `versions/N`; the bundle's own files are those of
the live version. A model's version is a directory `models/NAME/N`; one that was taken back is
called `N.withdrawn`, and one that is being copied `N.incoming`: no server takes these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfde.errors import CorruptError, shorten
from tfde.storage.files import read_json

VERSIONS, WITHDRAWN, INCOMING = "versions", ".withdrawn", ".incoming"
MANIFEST = "manifest.json"
SAVED_MODEL = "saved_model.pb"
FORMAT = 1
_FIELDS = {
    "format",
    "version",
    "models",
    "files",
    "embedding_dim",
    "towers_fingerprint",
    "index_fingerprint",
    "golden_queries",
    "golden_k",
    "compute_dtype",
    "int8_weights",
}


class BundleVersion(NamedTuple):
    """A version of a bundle.

    `state`: "live" is the latest that is whole, which servers answer with; "earlier" is whole too;
    "withdrawn" was taken back; "unfinished" has models that are not there (yet).
    """

    number: int
    state: Literal["live", "earlier", "withdrawn", "unfinished"]
    manifest: dict[str, Any]
    models: dict[str, Path]
    files: Path

    @property
    def own_files(self) -> list[str]:
        """The names of the files that are of no model, the manifest last."""
        return [n for n in self.manifest["files"] if not n.startswith("models/")] + [MANIFEST]


def precision_of_bundle(manifest: Mapping[str, Any]) -> str:
    """Returns what the towers of a bundle compute in, and whether their weights have 8 bits."""
    eight = ", weights of 8 bits" if manifest["int8_weights"] else ""
    return f"{manifest['compute_dtype']}{eight}"


def bundle_versions(bundle: str | Path) -> dict[int, BundleVersion]:
    """Returns all versions of a bundle by number, the earliest first.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: a manifest cannot be read.
    """
    bundle = Path(bundle)
    first = read_manifest(bundle)
    folders = {first["version"]: bundle} | {
        int(folder.name): folder
        for folder in bundle.joinpath(VERSIONS).glob("*")
        if folder.name.isdecimal()
    }
    found: dict[int, BundleVersion] = {}
    for number, files in sorted(folders.items(), reverse=True):
        manifest, files = _of_version(files, bundle, first)
        models = {name: _folder(bundle / "models" / name, number) for name in manifest["models"]}
        ends = {folder.name.removeprefix(str(number)) for folder in models.values()}
        is_live = ends == {""} and all(version.state != "live" for version in found.values())
        found[number] = BundleVersion(
            number,
            "live" if is_live else _STATES[max(ends, key=list(_STATES).index)],
            manifest,
            models,
            files,
        )
    return dict(sorted(found.items()))


def _of_version(files: Path, bundle: Path, first: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Returns the manifest of a version and where it lies; the bundle's own may stand for it."""
    try:
        return read_manifest(files), files
    except (FileNotFoundError, CorruptError) as error:
        if files.name == str(first["version"]):
            return first, bundle
        rule = f"Restore it, or remove {files} and the directories of this version in models."
        raise CorruptError(f"{error} {rule}") from error


_STATES: dict[str, Literal["earlier", "withdrawn", "unfinished"]] = {
    "": "earlier",
    WITHDRAWN: "withdrawn",
    INCOMING: "unfinished",
}


def _folder(model: Path, number: int) -> Path:
    for end in ("", WITHDRAWN):
        if (model / f"{number}{end}").is_dir():
            return model / f"{number}{end}"
    return model / f"{number}{INCOMING}"


def is_saved_encoder(path: str | Path) -> bool:
    """Returns whether `path` is a bundle or a SavedModel, by the names of its files."""
    return any((Path(path) / name).is_file() for name in (MANIFEST, SAVED_MODEL))


def read_manifest(bundle: str | Path) -> dict[str, Any]:
    """Returns the manifest of a bundle.

    Raises:
        FileNotFoundError: no bundle there.
        CorruptError: its manifest cannot be read, or names what lies outside of the bundle.
    """
    path = Path(bundle) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{bundle}: no {MANIFEST} there, so no bundle.")
    manifest = read_json(path)
    missing = _FIELDS - set(manifest)
    if missing or manifest["format"] != FORMAT:
        what = f"has no {sorted(missing)[0]!r}" if missing else "has another format"
        raise CorruptError(f"{path}: {what}; expected format {FORMAT}.")
    models = manifest["models"]
    # They are copied, renamed and removed, and a bundle may be a stranger's.
    wrong = [name for name in models if not _is_place(name) or "/" in name]
    wrong += [name for name in manifest["files"] if not _is_place(name, models)]
    wrong += [number for number in [manifest["version"]] if not isinstance(number, int)]
    if wrong:
        rule = "models, files and version must be those of places in the bundle."
        raise CorruptError(f"{path}: {rule} Received: {shorten(wrong[0])}")
    return manifest


def _is_place(name: Any, models: Collection[str] | None = None) -> bool:
    """Returns whether a name stays in a bundle, and if `models` are given, is of no other one."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if {"", ".", ".."} & set(parts) or "\0" in name:
        return False
    return models is None or parts[0] != "models" or (len(parts) > 3 and parts[1] in models)
