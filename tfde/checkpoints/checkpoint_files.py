"""What a checkpoint is: files, here or on a hub, and the steps that it says follow the backbone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import numpy as np

from tfde.checkpoints.hub_repository import HubRepository
from tfde.config.model import DenseConfig, Pooling
from tfde.errors import ConfigError, first_line, shorten
from tfde.storage.json_file import read_json_file, refuse_pointer

_HUB = "hf://"
_KERAS_FILE = ".keras"
_BUNDLE = "manifest.json"
# A model; sentence-transformers; a SavedModel; DPR's two encoders; a bundle.
_HELD = ("config.json", "modules.json", "saved_model.pb", "question_encoder", _BUNDLE)
# Where sentence-transformers keeps the settings of a transformer; names but the first are old.
_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_CHANGE_TEXTS = ("processing_kwargs", "query_expansion")
_RULE = (
    "The checkpoint must be a directory,{} the name of a keras-hub preset, or a kaggle:// or hf://"
    " handle, such as hf://sentence-transformers/all-MiniLM-L6-v2."
)


def is_keras_file(path: str | Path) -> bool:
    """Returns whether `path` is a file with the name that `model.save("model.keras")` gives one."""
    return str(path).endswith(_KERAS_FILE) and Path(path).is_file()


def is_beside(name: object, suffix: str) -> bool:
    """Returns whether it is the name of a file beside another one, with this suffix."""
    return isinstance(name, str) and name.endswith(suffix) and PurePath(name).name == name


def check_checkpoint(checkpoint: str | Path, *, trains: bool = False) -> None:
    """Refuses what cannot be one, without TensorFlow and without asking a hub.

    Args:
        checkpoint: As `CheckpointFiles` takes it, or two with a comma between; or a `.keras` file.
        trains: Whether training is to start from it, which a bundle is no start of.

    Raises:
        ConfigError: another file, a directory of something else, or a path at which nothing
            stands.
    """
    whole = str(checkpoint)
    for name in [whole] if Path(whole).exists() else map(str.strip, whole.split(",")):
        path, is_handle = Path(name), "://" in name
        if name and path.is_dir():
            _check_directory(name, trains=trains)
        elif not is_keras_file(name) and (path.exists() or ("/" in name and not is_handle)):
            missing = "" if path.exists() else ", a path at which nothing stands"
            raise ConfigError(
                f"{_RULE.format(' a .keras file,')} Received: {shorten(name)}{missing}"
            )


def _check_directory(name: str, *, trains: bool) -> None:
    held = [file for file in _HELD if (Path(name) / file).exists()]
    if trains and held == [_BUNDLE]:
        raise ConfigError(
            f"{name}: must be a model to train, and holds none. An exported bundle only answers:"
            " give the model that it was made from."
        )
    if not held:
        raise ConfigError(
            f"{name}: must be a model's directory, which holds {_HELD[0]}, or"
            f" {' or '.join(_HELD[1:])}. Received: a directory without any{hint_of_run(name)}"
        )


def hint_of_run(directory: str | Path) -> str:
    """Returns which model was probably meant by the directory of a run; "" of another one."""
    for folder in ("best_model", "model"):
        if (Path(directory) / folder).is_dir():
            return f"; did you mean {Path(directory) / folder}?"
    return ""


class CheckpointFiles:
    """The files of a local directory, a keras-hub preset name, or a hub handle.

    Args:
        checkpoint: A directory; a keras-hub preset name such as `t5_1.1_base`; or a handle such as
            `kaggle://keras/t5/keras/t5_1.1_base` or `hf://intfloat/e5-small-v2`. A directory
            goes before a name. Files of the latter two are fetched when asked for, and cached:
            those of `hf://` as `HubRepository` says (`HF_TOKEN` opens private repositories),
            others by keras-hub.

    Attributes:
        checkpoint: The checkpoint.
        folder: Folder inside it that the names are relative to.

    Raises:
        ConfigError: a path that is no directory; no such repository on the hub, or no hub.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        self.checkpoint = str(checkpoint)
        self.folder = ""
        self._is_local = bool(self.checkpoint) and Path(checkpoint).is_dir()
        self._repository: HubRepository | None = None
        if is_keras_file(checkpoint):
            raise ConfigError(
                f"{checkpoint}: must be a checkpoint's directory; a .keras file is loaded by"
                " `from_preset`, and `save_to_preset` of its model writes a directory."
            )
        if not self._is_local and isinstance(checkpoint, Path):
            raise ConfigError(f"{checkpoint}: must be the directory of a checkpoint.")
        if not self._is_local and self.checkpoint.startswith(_HUB):
            self._repository = HubRepository(self.checkpoint.removeprefix(_HUB))

    def __eq__(self, other: object) -> bool:
        """Whether both are the same folder of the same checkpoint."""
        if not isinstance(other, CheckpointFiles):
            return NotImplemented
        return (self.checkpoint, self.folder) == (other.checkpoint, other.folder)

    def __hash__(self) -> int:
        return hash((self.checkpoint, self.folder))

    def __str__(self) -> str:
        return f"{self.checkpoint}/{self.folder}".rstrip("/")

    def inside(self, folder: str) -> CheckpointFiles:
        """Returns the files of a folder of this checkpoint.

        Raises:
            ConfigError: the folder is not inside it.
        """
        # PureWindowsPath knows both separators, and drives.
        path = PureWindowsPath(folder)
        if path.drive or path.root or ".." in path.parts:
            raise ConfigError(
                f"{self}: a module's folder must be inside the checkpoint."
                f" Received: {shorten(folder)}"
            )
        files = copy.copy(self)  # one connection to the hub, and one commit, for all folders
        files.folder = "/".join(filter(None, (self.folder, *path.parts)))
        return files

    def root(self) -> CheckpointFiles:
        """Returns the files of the whole checkpoint."""
        files = copy.copy(self)
        files.folder = ""
        return files

    def find(self, name: str) -> Path | None:
        """Returns the local path of a file, or `None` if the checkpoint does not have it.

        Raises:
            ConfigError: an unknown name, or the hub could not be reached.
        """
        name = f"{self.folder}/{name}".lstrip("/")
        if self._is_local:
            path = Path(self.checkpoint) / name
            return path if path.is_file() else None
        if self._repository is not None:
            return self._repository.find(name)
        # Imported here: keras-hub takes more than a second, and local checkpoints need none of it.
        from keras_hub.src.utils.preset_utils import BUILTIN_PRESETS, get_file

        if "://" not in self.checkpoint and self.checkpoint not in BUILTIN_PRESETS:
            raise ConfigError(f"{_RULE.format('')} Received: {shorten(self.checkpoint)}")
        try:
            return Path(get_file(self.checkpoint, name))
        except FileNotFoundError:
            return None
        except Exception as error:  # each hub's client raises its own kinds
            reason = first_line(error)
            raise ConfigError(
                f"{self.checkpoint}: {name} could not be fetched: {reason}"
            ) from error

    def path(self, name: str) -> Path:
        """Returns the local path of a file that must be there.

        Raises:
            ConfigError: it is not, or `find` failed.
            DataError: it is a Git LFS pointer.
        """
        path = self.find(name)
        if path is None:
            hint = "" if self._is_local else " (a typing error, or no network?)"
            raise ConfigError(f"{self}: must hold {name}. Received: no such file{hint}")
        refuse_pointer(path)
        return path

    def json(self, name: str) -> Any:
        """Returns the value in a JSON file that must be there.

        Raises:
            ConfigError: it is not there.
            DataError: it is not JSON in UTF-8.
        """
        return read_json_file(self.path(name))

    def json_object(self, name: str, key: str = "") -> dict[str, Any]:
        """Returns the object in a JSON file that must be there, or the object under a key of it.

        Raises:
            ConfigError: the file or the object is not there.
            DataError: the file is not JSON.
        """
        value = self.json(name)
        if key and isinstance(value, dict):
            value = value.get(key)
        if not isinstance(value, dict):
            what = f"the object `{key}`" if key else "an object"
            raise ConfigError(f"{self}/{name}: must hold {what}. Received: {shorten(value)}")
        return value

    def json_or_empty(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file, `{}` if the checkpoint does not have it."""
        return self.json_object(name) if self.find(name) else {}


def transformer_settings(files: CheckpointFiles) -> tuple[str, dict[str, Any]]:
    """Returns the file in which sentence-transformers keeps a transformer's settings, and these.

    Raises:
        ConfigError: a setting changes how texts are read, in a way that is not known here.
    """
    name = next(filter(files.find, _SETTINGS), _SETTINGS[0])
    found = files.json_or_empty(name)
    for key in _CHANGE_TEXTS:
        if found.get(key):
            raise ConfigError(
                f"{files}/{name}: `{key}` must be null. Received: {shorten(found[key])}"
            )
    return name, found


def length_setting(
    files: CheckpointFiles, name: str, found: Mapping[str, Any], key: str
) -> float | None:
    """Returns a number of tokens among settings, perhaps without end; `None` if there is none.

    Raises:
        ConfigError: it is no number, or leaves no room for a token.
    """
    value = found.get(key)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 3
    if value is not None and not fits:
        raise ConfigError(
            f"{files}/{name}: `{key}` must be a number of at least 3. Received: {shorten(value)}"
        )
    return value


@dataclass(frozen=True)
class EncoderSteps:
    """The steps after the transformer; a plain language model says nothing of them.

    Args:
        pooling: How token vectors become one; `None` where the checkpoint does not say, and then
            nothing else here is known.
        pool_prompts: Whether a prompt's tokens count in pooling.
        projection: Linear layers after pooling.
        projection_weights: Kernel (in, out) and, if it has one, bias of each, one after the other.
        normalize: Whether vectors are compared by cosine, that is as unit vectors.
        query_prompt: What stands before every query.
        document_prompt: What stands before every document.
        document_template: How title and text become one string, where the checkpoint was trained
            with a form of its own.
        query_length: Longest query in tokens, where it is another than that of all texts; JSON's
            numbers may be without end.
        document_length: Longest document, likewise.
    """

    pooling: tuple[Pooling, ...] | None = None
    pool_prompts: bool = True
    projection: tuple[DenseConfig, ...] = ()
    projection_weights: tuple[np.ndarray, ...] = ()
    normalize: bool | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    document_template: str | None = None
    query_length: float | None = None
    document_length: float | None = None
