"""The arrays of a safetensors checkpoint, one file or shards, read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  # lets NumPy, and so safetensors, know bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tfde.checkpoints.checkpoint_files import CheckpointFiles, is_beside
from tfde.checkpoints.hdf5_file import check_finite
from tfde.errors import ConfigError, DataError, shorten

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Quantised weights mean nothing without their scales, and flags are no weights.
_DTYPES = ("F16", "BF16", "F32", "F64")


def write_safetensors(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes arrays as a safetensors file.

    Raises:
        OSError: it cannot be written; safetensors itself raises an error that names no file.
    """
    try:
        save_file(arrays, path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written. Received: {error}") from error


class SafetensorsArrays:
    """Arrays by name, from `model.safetensors` or from the shards that its index lists.

    A file is opened for each array and closed again: mapped pages would count as memory, and a
    checkpoint of many gigabytes must be read within little more than its own size.

    Args:
        files: The checkpoint.
        prefixes: What may stand before the names asked for; the first that fits the file is
            taken (a `BertForSequenceClassification` has `bert.` before those of a `BertModel`).
        anchor: A name that the checkpoint must hold, by which the prefix is found.
        stem: The file's name without `.safetensors`.

    Raises:
        ConfigError: there are no safetensors (a `pytorch_model.bin` is a pickle, which could run
            code, and is refused).
        DataError: a file is not what its name says, is cut off, or lacks the anchor.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        *,
        prefixes: Sequence[str] = ("",),
        anchor: str | None = None,
        stem: str = "model",
    ) -> None:
        self._files = files
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        self._shards: dict[str, str] = {}
        for shard in self._shard_names(f"{stem}.safetensors"):
            with self._open(shard) as file:
                for name in file.keys():  # noqa: SIM118  # it has no iterator
                    header = file.get_slice(name)
                    self._shapes[name] = tuple(header.get_shape())
                    self._dtypes[name] = header.get_dtype()
                    self._shards[name] = shard
        self._prefix = ""
        if anchor is not None:
            found = [prefix for prefix in prefixes if prefix + anchor in self._shapes]
            if not found:
                names = " or ".join(prefix + anchor for prefix in prefixes)
                held = ", ".join(list(self._shapes)[:2]) or "none"
                rule = f"the weights must hold the array {names}."
                raise DataError(str(files), None, rule, f"{len(self._shapes)} arrays: {held} ...")
            self._prefix = found[0]

    def names(self) -> list[str]:
        """Returns the names of all arrays, without the prefix where they have it."""
        return [name.removeprefix(self._prefix) for name in self._shapes]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array.

        Raises:
            DataError: there is no such array.
        """
        return self._shapes[self._stored(name)]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks an array by its header, before it is read.

        Raises:
            DataError: there is no such array, it has another shape, or it does not hold floats.
        """
        stored = self._stored(name)
        rule = ""
        received: object = self._shapes[stored]
        if received != shape:
            rule = f"must have shape {shape}."
        elif self._dtypes[stored] not in _DTYPES:
            rule, received = f"must have a dtype of {', '.join(_DTYPES)}.", self._dtypes[stored]
        if rule:
            raise DataError(str(self._files), None, f"the array {stored} {rule}", received)

    def read(self, name: str) -> np.ndarray:
        """Returns an array in the dtype in which it is stored.

        Raises:
            DataError: there is no such array, it cannot be read, or it is not finite.
        """
        stored = self._stored(name)
        where = self._files.path(self._shards[stored])
        with self._open(self._shards[stored]) as file:
            try:
                value: np.ndarray = file.get_tensor(stored)
            except (SafetensorError, TypeError) as error:
                raise DataError(where, None, f"{stored} must be readable.", str(error)) from error
        check_finite(where, stored, value)
        return value

    def _stored(self, name: str) -> str:
        unprefixed, name = name, self._prefix + name
        # Before 2019's rename, layer norms had TensorFlow's names; T5's tables have two names.
        others = (
            name.replace("LayerNorm.weight", "LayerNorm.gamma"),
            name.replace("LayerNorm.bias", "LayerNorm.beta"),
            name.replace("shared.weight", "encoder.embed_tokens.weight"),
        )
        for key in (name, *others, unprefixed):
            if key in self._shapes:
                return key
        raise DataError(str(self._files), None, f"the weights must hold the array {name}.")

    def _shard_names(self, file: str) -> list[str]:
        if self._files.find(file) is not None:
            return [file]
        index = f"{file}.index.json"
        if self._files.find(index) is not None:
            shards = self._files.json_object(index, "weight_map").values()
            wrong = [shard for shard in shards if not is_beside(shard, ".safetensors")]
            if wrong:
                raise ConfigError(
                    f"{self._files}/{index}: `weight_map` must name files beside it."
                    f" Received: {shorten(wrong[0])}"
                )
            return sorted(set(shards))
        if any(self._files.find(name) is not None for name in _PICKLES):
            # By the model's own class: AutoModel would drop a classifier.
            kinds = self._files.json_or_empty("config.json").get("architectures")
            kind = kinds[0] if isinstance(kinds, list) and kinds else "AutoModel"
            convert = f"{kind}.from_pretrained(DIR).save_pretrained(DIR) of transformers"
            if self._files.root().find("modules.json") is not None:
                convert = "SentenceTransformer(DIR).save_pretrained(DIR) of sentence_transformers"
            raise ConfigError(
                f"{self._files}: must hold {file}; pytorch_model.bin is a pickle, which could run"
                f" code, and is not read. Convert it with {convert}."
            )
        return [self._files.path(file).name]  # says that it is not there

    def _open(self, shard: str) -> safe_open:
        path = self._files.path(shard)
        try:
            return safe_open(str(path), framework="np")
        except (SafetensorError, OSError, ValueError) as error:
            rule = "must be a whole safetensors file."
            raise DataError(path, None, rule, str(error)) from error
