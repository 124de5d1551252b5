"""What a family is: where a backbone's sizes and weights stand in other libraries' files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np

from tfde.backbones.backbone import Backbone
from tfde.config.backbones import Activation, BackboneConfig
from tfde.errors import ConfigError, shorten
from tfde.text.tokenizer import Tokenizer

ACTIVATIONS_READ: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATIONS_WRITTEN: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
}
# Our description and tokenizer to the `config.json` of the model of transformers that computes the
# same; its `model_type` is the family that says where the weights stand.
WriteConfig = Callable[[Any, Tokenizer], dict[str, Any]]
# A variable, its array, and the first name that this has in the files.
Assignment = tuple[keras.Variable, np.ndarray, str]


class FieldsOfConfig:
    """The fields of a `config.json`, checked as they are read.

    Args:
        where: The file, for messages.
        value: Its object.
    """

    def __init__(self, where: str, value: Mapping[str, Any]) -> None:
        self._where = where
        self._value = value

    def size(self, name: str, default: int | None = None) -> int:
        """Returns a whole number of at least 1.

        Raises:
            ConfigError: the field is missing or something else.
        """
        value = self._field(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(name, "a whole number of at least 1", value)
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Returns a rate or an epsilon: a number from 0 to below 1.

        Raises:
            ConfigError: the field is something else.
        """
        value = self._field(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.refuse(name, "a number from 0 to below 1", value)
        return float(value)

    def activation(self, name: str, default: str) -> Activation:
        """Returns an activation by our name.

        Raises:
            ConfigError: we do not have it.
        """
        return ACTIVATIONS_READ[self.choice(name, default, ACTIVATIONS_READ)]

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """Returns one of some strings.

        Raises:
            ConfigError: the field is something else.
        """
        value = self._field(name, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}", value)
        return str(value)

    def require(self, name: str, wanted: Any) -> None:
        """Checks that a field, if it is there, has the only value that we can hold.

        Raises:
            ConfigError: it has another.
        """
        value = self._value.get(name, wanted)
        if value != wanted:
            self.refuse(name, str(wanted), value)

    def get(self, name: str, default: Any) -> Any:
        """Returns a field as it is."""
        return self._value.get(name, default)

    def refuse(self, name: str, rule: str, value: object) -> None:
        """Raises the error about a field."""
        raise ConfigError(f"{self._where}: `{name}` must be {rule}. Received: {shorten(value)}")

    def _field(self, name: str, default: Any) -> Any:
        value = self._value.get(name, default)
        if value is None:
            raise ConfigError(f"{self._where}: has no field {name!r}.")
        return value


@dataclass(frozen=True)
class WeightSource:
    """Where the values of a variable stand.

    Args:
        variable: The variable.
        names: Arrays that lie side by side in it, by their names without a prefix.
        transposed: PyTorch's linear layers hold (out, in), ours (in, out).
        first_row: Rows before it belong to no text: RoBERTa counts positions from 2.
    """

    variable: keras.Variable
    names: tuple[str, ...]
    transposed: bool = False
    first_row: int = 0

    def join(self, read: Callable[[str], np.ndarray]) -> np.ndarray:
        """Returns the variable's value from the arrays."""
        arrays = [read(name)[self.first_row :] for name in self.names]
        if self.transposed:
            arrays = [array.T for array in arrays]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)

    def shape(self) -> tuple[int, ...]:
        """Returns the shape that each of the arrays must have."""
        *rows, columns = self.variable.shape
        if rows:
            rows[0] += self.first_row
        shape = (*rows, columns // len(self.names))
        return shape[::-1] if self.transposed else shape

    def split(self) -> dict[str, np.ndarray]:
        """Returns the arrays from the variable's value; rows before `first_row` are zeros."""
        value = keras.ops.convert_to_numpy(self.variable)
        if self.first_row:
            value = np.pad(value, ((self.first_row, 0), (0, 0)))
        arrays = np.split(value, len(self.names), axis=-1)
        return {
            name: np.ascontiguousarray(array.T if self.transposed else array)
            for name, array in zip(self.names, arrays, strict=True)
        }


# ---- Hugging Face --------------------------------------------------------------------------------


@dataclass(frozen=True)
class HuggingFaceFamily:
    """How one `model_type` of Hugging Face becomes a backbone.

    Args:
        read_config: Fields of `config.json` to our description.
        sources: Where each variable's values stand.
        prefixes: What models with a head put before the names of the arrays.
        anchor: An array that every checkpoint of the family has.
        sizes: Field of `config.json` (or a product of fields) -> an array and its axis that must
            be as long.
        layers: Field that counts the layers, and the array names of a layer up to its number.
        unread: What its models hold beside, which has no part in what is computed here: written,
            so that transformers misses nothing.
    """

    read_config: Callable[[FieldsOfConfig], BackboneConfig]
    sources: Callable[[Backbone], Iterator[WeightSource]]
    prefixes: tuple[str, ...]
    anchor: str
    sizes: Mapping[str, tuple[str, int]]
    layers: tuple[str, str]
    unread: Callable[[Backbone], Iterator[tuple[str, np.ndarray]]] = lambda backbone: iter(())


# ---- keras-hub -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredVariable:
    """Where the values of a variable of ours stand.

    Args:
        owner: The layer that has it: one of the backbone's two, or the number of a Transformer
            layer.
        attribute: Its name there.
        names: Arrays that lie side by side in it.
        shape: Sizes of each of the arrays, by the names that `KerasHubFamily.sizes` gives them.
    """

    owner: Literal["token_embedder", "encoder"] | int
    attribute: str
    names: tuple[str, ...]
    shape: tuple[str, ...]

    def variable(self, backbone: Backbone) -> keras.Variable:
        """Returns the variable."""
        if isinstance(self.owner, int):
            return getattr(backbone.encoder.transformer_layers[self.owner], self.attribute)
        return getattr(getattr(backbone, self.owner), self.attribute)


@dataclass(frozen=True)
class KerasHubFamily:
    """How one backbone class of keras-hub becomes ours.

    Args:
        read_config: Fields of `config.json` to our description.
        sizes: Our description to the sizes of the arrays, by name.
        stored: Our description to every variable.
        layer: What Keras calls a Transformer layer, up to its number.
        foreign_part: What only layers have that are not ours (a decoder's).
        absent_parts: Our description to what no layer of ours may have, by the field of
            `config.json` that says so.
    """

    read_config: Callable[[FieldsOfConfig], BackboneConfig]
    sizes: Callable[[Any], Mapping[str, int]]
    stored: Callable[[Any], Iterator[StoredVariable]]
    layer: str
    foreign_part: str = ""
    absent_parts: Callable[[Any], Mapping[str, str]] = lambda config: {}


def numbered(name: str, i: int) -> str:
    """Returns what Keras calls the i-th layer of a class in a weight file."""
    return name if i == 0 else f"{name}_{i}"


def names_of(*layers: str, index: int = 0) -> tuple[str, ...]:
    """Returns the names in a weight file of one variable of each of some layers."""
    return tuple(f"layers/{layer}/vars/{index}" for layer in layers)
