"""What Keras asks of a model that it saves, loads or clones, and the model directory beside it."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfde.backbones.seeded_layer import zero_weights
from tfde.checkpoints.checkpoint_files import is_keras_file
from tfde.config.backbones import backbone_to_mapping, from_mapping
from tfde.errors import ConfigError, CorruptError, TfdeError, first_line, require, shorten
from tfde.storage.atomic import atomic_directory, atomic_file
from tfde.text.absent_tokenizer import describe_tokenizer, tokenizer_of
from tfde.text.batch_preprocessor import LATER_FIELDS, BatchPreprocessor
from tfde.text.read_tokenizer import load_tokenizer
from tfde.towers.preset import (
    READ_FAULTS,
    WEIGHTS_FILE,
    check_class,
    preset_class,
    read_config,
    write_config,
)
from tfde.towers.saved_models import save
from tfde.towers.weights import fingerprint, read_weights, stored_dtype, write_weights

_LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"_\d+(?=/|$)")
_WEIGHTS = "weights"  # names and shapes of all, in a file of them


class WholeFiles(keras.Model):
    """A model whose files appear whole or not at all, with all that decides its next step.

    Beside what Keras writes, a file of weights holds the state of dropout and the place in the
    data, so that `keras.callbacks.BackupAndRestore` gives a killed `fit` its own next batch.

    Attributes:
        position: Epoch, and how many batches of it the last `fit` has taken.
        order_seed: Of the order in which it took them.
    """

    position: tuple[int, int] = (0, 0)
    order_seed: int = 0
    # A function, hidden from Keras, which would track what it sees; a `compile` sets it.
    _compile_arguments: Callable[[], dict[str, Any]] = staticmethod(dict)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what `compile` was given, as JSON values; none, where Keras could not read it."""
        arguments = self._compile_arguments()
        if not arguments:
            return {}
        stored = stored_compile({**arguments, "optimizer": self.optimizer})
        return {**stored, "built": self.optimizer.built} if stored else {}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles the model as `get_compile_config` says; called by Keras."""
        arguments = keras.saving.deserialize_keras_object(config)
        built = arguments.pop("built", True)
        try:
            self.compile(**arguments)
        except ConfigError as error:
            if arguments.pop("metrics", None) is None:
                raise
            # An earlier version took others.
            said = f"the model is compiled without the metrics that it was saved with: {error}"
            warnings.warn(said, stacklevel=2)
            self.compile(**arguments)
        if built:  # else it has no state to be read
            self.optimizer.build(self.trainable_weights)

    def save(
        self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """Writes the `.keras` file that `keras.saving.load_model` reads; arguments as in Keras.

        Raises:
            ConfigError: an HDF5 file, in which Keras leaves no room for the tokenizer.
        """
        rule = "a .keras file, for HDF5 holds no tokenizer; `save_weights` writes .weights.h5"
        is_hdf5 = str(filepath).endswith((".h5", ".hdf5"))
        require(not is_hdf5, "filepath", rule, str(filepath))
        if zipped is False and _is_local(filepath):
            filepath = os.path.abspath(filepath)  # Keras loses the assets of a relative one
        if overwrite and not zipped and _is_local(filepath, ".keras"):
            with atomic_file(filepath) as temporary:
                super().save(temporary, **kwargs)
        else:
            super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_weights(
        self, filepath: Any, overwrite: bool = True, max_shard_size: float | None = None
    ) -> None:
        """Writes the weights that `load_weights` reads; arguments as in Keras."""
        if overwrite and max_shard_size is None and _is_local(filepath, ".weights.h5"):
            with atomic_file(filepath) as temporary:
                super().save_weights(temporary)
        else:
            super().save_weights(filepath, overwrite=overwrite, max_shard_size=max_shard_size)

    def save_own_variables(self, store: Any) -> None:
        """Writes the state that stands in no layer's weights; called by Keras."""
        store["position"] = np.array((*self.position, self.order_seed), np.int64)
        for name, variable in self._passing_state().items():
            store[name] = variable

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote; called by Keras."""
        if "position" not in store:  # Keras alone wrote it
            return
        epoch, step, *seed = map(int, store["position"])  # earlier versions wrote no seed
        self.position, self.order_seed = (epoch, step), seed[0] if seed else 0
        for name, variable in self._passing_state().items():
            if name in store:  # a model that is not compiled has no metrics
                variable.assign(store[name])

    def _passing_state(self) -> dict[str, keras.Variable]:
        """Returns the seeds of dropout, and the sums of metrics in the middle of an epoch."""
        weights, metrics = ({id(x) for x in y} for y in (self.weights, self.metrics_variables))
        seeds = [x for x in self.variables if id(x) not in weights | metrics]
        of_metrics = {f"metric_{x.path}": x for x in self.metrics_variables}
        return {f"seed_{n}": x for n, x in enumerate(seeds)} | {
            name.replace("/", "_"): x for name, x in of_metrics.items()
        }


class StoredModel(WholeFiles):
    """A model with its tokenizer: in Keras' own file, and in a model directory.

    In a `.keras` file the configuration describes the layers, and the assets are the tokenizer.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    preprocessor_class: ClassVar[type[BatchPreprocessor]]

    config: Any
    preprocessor: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuses a path, which `from_backbone` and `from_preset` take."""
        if args and isinstance(args[0], str | os.PathLike):
            raise ConfigError(
                f"a path makes no {cls.__name__}: write `{cls.__name__}.from_backbone(path)` for a"
                " checkpoint, `from_preset(path)` for what tfde saved."
                f" Received: {shorten(args[0])}"
            )
        made: Self = super().__new__(cls, *args, **kwargs)
        return made

    @classmethod
    @abstractmethod
    def from_description(
        cls, value: Mapping[str, Any], preprocessor: Any, *, dtype: str | None
    ) -> Self:
        """Returns the model that `description` described, with random weights.

        Args:
            value: JSON values.
            preprocessor: Texts to token ids.
            dtype: Keras dtype policy of the backbone; `None` takes Keras' current one.
        """

    def save_own_variables(self, store: Any) -> None:
        """Writes the state that stands in no layer's weights; called by Keras."""
        super().save_own_variables(store)
        store[_WEIGHTS] = np.frombuffer(json.dumps(self._weight_shapes()).encode(), np.uint8)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Loads all weights, as in Keras, of a model built alike; if compiled, its optimizer's too.

        Args:
            filepath: What `save_weights` wrote.
            skip_mismatch: Whether a file of another model is read as far as Keras finds the same
                layers in it.
            **kwargs: As in Keras.

        Raises:
            ConfigError: the file holds those of another; nothing is changed.
        """
        local = _is_local(filepath, ".weights.h5") and Path(filepath).is_file()
        if local and not skip_mismatch:
            _check_built_alike(Path(filepath), self._weight_shapes())
        if self.compiled and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_weights)
        super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)

    def _weight_shapes(self) -> dict[str, list[int]]:
        return {name: list(weight.shape) for name, weight in self.named_weights().items()}

    def description(self) -> dict[str, Any]:
        """Returns `config` as JSON values."""
        backbone = backbone_to_mapping(self.config.backbone)
        return {**dataclasses.asdict(self.config), "backbone": backbone}

    @abstractmethod
    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight by `part/...`."""

    def fingerprint(self) -> str:
        """Returns 16 hex digits that change with any weight, the tokenizer or the configuration."""
        described = json.dumps(self.description(), sort_keys=True).encode()
        texts = self.preprocessor.fingerprint_bytes()
        return fingerprint(described + texts, self.named_weights().values())

    @abstractmethod
    def exported(self) -> tuple[tf.Module, dict[str, Any]]:
        """Returns what `export` writes: a module of strings, and its functions by signature."""

    def export(
        self,
        filepath: str | Path,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: None = None,
    ) -> None:
        """Writes a SavedModel with the tokenizer inside: strings in. Whole or not at all.

        An existing SavedModel is replaced.

        Args:
            filepath: Its directory.
            format: `tf_saved_model`, the only one that can hold the tokenizer.
            verbose: Whether its signatures are logged.
            input_signature: `None`; the signatures are those of the model.

        Raises:
            ConfigError: another format; another signature; the directory holds something else.
        """
        rule = "tf_saved_model, which alone holds the tokenizer; a tower has an `export` of its own"
        require(format == "tf_saved_model", "format", rule, format)
        require(input_signature is None, "input_signature", "None: texts come in", input_signature)
        directory = Path(filepath)
        module, signatures = self.exported()
        overwrite = (directory / "saved_model.pb").is_file()
        with atomic_directory(directory, overwrite=overwrite) as temporary:
            save(module, temporary, signatures)
        if verbose:
            _LOG.info("%s: signatures %s", directory, ", ".join(signatures))

    # ---- Keras' own file ---------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` makes an equal model of, with other weights; JSON values."""
        text = self.preprocessor.text_config
        prompts = (getattr(text, name, "") for name in ("query_prompt", "document_prompt"))
        return {
            "description": self.description(),
            "text": dataclasses.asdict(text),
            "tokenizer": describe_tokenizer(
                self.preprocessor.tokenizer,
                prompts=[prompt.rstrip() for prompt in prompts if prompt],
                tokens=[token for name in LATER_FIELDS if (token := getattr(text, name, ""))],
                punctuation=getattr(self.config, "skip_punctuation", False),
            ),
            "dtype": self.dtype_policy.name,
            "frozen_weights": [n for n, w in enumerate(self.weights) if not w.trainable],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """Returns the model that `get_config` described, with random weights.

        Args:
            config: The description. The tokenizer is in it by name: one of a model of this process
                is found; else `keras.saving.load_model` reads it from the file's assets.
            custom_objects: As in Keras.
        """
        text = {**config["text"], "buckets": tuple(config["text"]["buckets"])}
        text_config = from_mapping(cls.preprocessor_class.config_class, text, "text")
        tokenizer = tokenizer_of(config["tokenizer"])
        preprocessor = cls.preprocessor_class(tokenizer, text_config)  # type: ignore[call-arg]
        model = cls.from_description(config["description"], preprocessor, dtype=config["dtype"])
        frozen = set(config["frozen_weights"])
        for number, weight in enumerate(model.weights):
            weight.trainable = number not in frozen
        return model

    def save_assets(self, directory: str) -> None:
        """Writes the tokenizer; called by Keras."""
        self.preprocessor.tokenizer.save_assets(directory)

    def load_assets(self, directory: str) -> None:
        """Reads what `save_assets` wrote; called by Keras."""
        text_config = self.preprocessor.text_config
        self.preprocessor = type(self.preprocessor)(load_tokenizer(directory), text_config)

    # ---- the model directory -----------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses the word of other libraries.

        Raises:
            ConfigError: always; it says what to write.
        """
        raise ConfigError(
            f"`{cls.__name__}.from_pretrained` is `from_backbone(path)` here, for checkpoints, and"
            f" `from_preset(path)` for what tfde saved. Received: {shorten(args or kwargs)}"
        )

    @classmethod
    def from_preset(cls, directory: str | Path, *, dtype: str | None = None) -> Self:
        """Loads a model directory that `save_to_preset` wrote, or a `.keras` file of such a model.

        Args:
            directory: The model directory, or the file.
            dtype: Keras dtype policy of the backbone, as in `from_backbone`; `None` takes
                bfloat16 or float16 where the weights were saved in it, else Keras' current one
                (for a file, the one that the model had).

        Raises:
            CorruptError: the file, or one of the directory, is missing or not what was written.
        """
        if is_keras_file(directory):
            return cls._from_keras_file(directory, dtype)
        directory = Path(directory)
        description = read_config(directory, cls.kind, cls.config_class)
        dtype = dtype or stored_dtype(directory / WEIGHTS_FILE)
        preprocessor = cls.preprocessor_class.load(directory)
        with zero_weights():
            model = cls.from_description(description, preprocessor, dtype=dtype)
        read_weights(directory / WEIGHTS_FILE, model.named_weights())
        return model

    def save_to_preset(self, directory: str | Path) -> None:
        """Writes the model directory: configuration, weights, tokenizer, metadata. Whole or not.

        An existing model directory of this class is replaced.

        Raises:
            ConfigError: the directory holds something else.
        """
        directory = Path(directory)
        overwrite = preset_class(directory) == self.kind
        with atomic_directory(directory, overwrite=overwrite) as temporary:
            write_config(temporary, self, self.description(), fingerprint=self.fingerprint())
            self.preprocessor.save(temporary)
            write_weights(temporary / WEIGHTS_FILE, self.named_weights())

    @classmethod
    def _from_keras_file(cls, path: str | Path, dtype: str | None) -> Self:
        check_class(path, cls.kind)
        try:
            model = keras.saving.load_model(path, compile=False)
        except TfdeError:
            raise
        except (*READ_FAULTS, TypeError, AttributeError, IndexError) as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CorruptError(
                f"{path}: must be as `save` wrote it. Received: {shorten(said)}"
            ) from error
        if dtype in (None, model.dtype_policy.name):
            return model
        other = cls.from_config({**model.get_config(), "dtype": dtype})
        for weight, value in zip(other.weights, model.weights, strict=True):
            weight.assign(keras.ops.cast(value, weight.dtype))
        return other


def _check_built_alike(path: Path, shapes: Mapping[str, list[int]]) -> None:
    """Refuses a file of other weights: Keras would read what it finds, layer by layer."""
    try:
        with h5py.File(path) as file:
            if _WEIGHTS not in (own := file.get("vars", {})):
                return  # an earlier version wrote it, or another program
            saved = json.loads(bytes(own[_WEIGHTS][()]))
    except (OSError, ValueError):
        return  # Keras says what is wrong
    if _without_numbers(saved) == _without_numbers(shapes):
        return
    for name in [*saved, *shapes]:
        there, here = saved.get(name), shapes.get(name)
        if there != here:
            raise ConfigError(
                f"{path}: must hold the weights of a model built alike, in its sharing and all"
                f" sizes. Received: {name} of the shape {there or 'none'}, here {here or 'none'}"
            )


def _without_numbers(shapes: Mapping[str, list[int]]) -> list[tuple[str, list[int]]]:
    """Returns names and shapes in their order, without what Keras counts layers of a process by."""
    return [(_NUMBER.sub("", name), shape) for name, shape in shapes.items()]


def stored_compile(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `compile` as JSON values; none, where Keras could not read them.

    Args:
        arguments: By name; objects are of Keras, or of classes registered with it.
    """
    try:
        stored = {n: keras.saving.serialize_keras_object(x) for n, x in arguments.items()}
        for value in stored.values():
            keras.saving.deserialize_keras_object(copy.deepcopy(value))  # some take it apart
    except (TypeError, ValueError, NotImplementedError) as error:
        warnings.warn(
            "what `compile` was given is not saved: call `compile` after loading. A class of your"
            " own needs `get_config` and keras.saving.register_keras_serializable."
            f" ({first_line(error)[:200]})",
            stacklevel=2,
        )
        return {}
    return stored


def _is_local(path: Any, suffix: str = "") -> bool:
    if not isinstance(path, str | os.PathLike):
        return False
    name = os.fspath(path)
    return "://" not in name and name.endswith(suffix)
