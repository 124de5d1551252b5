"""SentencePiece as a graph op, with T5's special tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text as tft
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from tfde.errors import ConfigError
from tfde.text.tokenizer import Tokenizer, read_settings

MODEL_FILE = "vocabulary.spm"
END_TOKEN = "</s>"
# Where a directory may keep the model: ours, Hugging Face's T5, keras-hub's preset.
_PLACES = (MODEL_FILE, "spiece.model", f"assets/tokenizer/{MODEL_FILE}", f"tokenizer/{MODEL_FILE}")


class SentencePieceTokenizer(Tokenizer):
    """Turns texts into the token ids of a SentencePiece model, as T5 uses one.

    Nothing goes before a text; `</s>` goes after it and between segments. Special tokens that a
    text spells out stay ordinary text, and bytes that are not UTF-8 become U+FFFD, as in the
    sentencepiece library.

    Args:
        model: The serialized SentencePiece model: what its `.model` file holds.

    Raises:
        ConfigError: `model` is no SentencePiece model, or has no padding id or no `</s>`.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__(name="sentence_piece_tokenizer")
        self._model = bytes(model)
        self._pieces = sentencepiece.SentencePieceProcessor()
        try:
            self._pieces.LoadFromSerializedProto(self._model)
        except RuntimeError as error:
            raise ConfigError(
                "`model` must be a serialized SentencePiece model."
                f" Received: {len(self._model)} bytes that are none"
            ) from error
        self.vocabulary_size = self._pieces.vocab_size()
        self.pad_id = self._pieces.pad_id()
        if self.pad_id < 0:
            raise ConfigError("`model` must have a padding id (T5: 0). Received: a model without")
        self.start_id = None
        self.end_id = self.separator_id = self._pieces.PieceToId(END_TOKEN)
        if self._pieces.IdToPiece(self.end_id) != END_TOKEN:
            raise ConfigError(f"`model` must have the piece {END_TOKEN}. Received: a model without")
        self._op = tft.SentencepieceTokenizer(self._model, out_type=tf.int32)
        self._op._model_resource = _SharedModel(self._model)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a `.model` file.

        Raises:
            ConfigError: the file cannot be read or is no fit SentencePiece model.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{path}: must be a readable SentencePiece model. Received: {error}"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_directory(cls, directory: str | Path) -> Self:
        """Reads the model in a Hugging Face T5 directory or a keras-hub preset.

        Raises:
            ConfigError: the directory holds no SentencePiece model.
        """
        for place in _PLACES:
            if (Path(directory) / place).is_file():
                return cls.from_file(Path(directory) / place)
        raise ConfigError(
            f"{directory}: must hold a SentencePiece model ({', '.join(_PLACES)}). Received: none"
        )

    @classmethod
    def from_assets(cls, directory: str | Path) -> Self:  # noqa: D102
        read_settings(directory, cls.__name__)
        return cls.from_file(Path(directory) / MODEL_FILE)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:  # noqa: D102
        return self._op.tokenize(texts)

    def id_to_token(self, token_id: int) -> str:  # noqa: D102
        return self._pieces.IdToPiece(self._check_id(token_id))

    def assets(self) -> dict[str, bytes]:  # noqa: D102
        return {MODEL_FILE: self._model}

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {}


class _SharedModel(tf.saved_model.experimental.TrackableResource):
    """The model that the op uses, kept when TensorFlow drops its cached kernels.

    tensorflow-text's own resource has no name and dies with the kernel that made it: after
    `keras.utils.set_random_seed` the tokenizer would fail with "Resource ... does not exist".
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self._model = model
        self._shared_name = f"tfde-{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # makes it

    def _create_resource(self) -> tf.Tensor:
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=self._shared_name
        )
