"""Encoders that are SavedModels: those of a bundle, and those that others publish. No Keras."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the text ops that SavedModels hold.
import tensorflow_text  # noqa: F401

from tfde.argument_types import typed
from tfde.config.engines import EngineChoice, Use
from tfde.config.model import DOCUMENT_FIELDS
from tfde.engines.tower_engine import open_tower
from tfde.errors import ConfigError, require, shorten
from tfde.export.bundle_directory import (
    MANIFEST,
    SAVED_MODEL,
    is_saved_encoder,
    precision_of_bundle,
    read_manifest,
)
from tfde.export.bundle_engines import engine_of
from tfde.text.cut_texts import CutTexts
from tfde.towers.batches import encode_by_length
from tfde.towers.encodes_texts import EncodesTexts
from tfde.types import CONTEXT

# Of several outputs of one text, the one that is its vector.
_SERVING = "serving_default"
_VECTOR_NAMES = ("embeddings", "outputs", "default", "sentence_embedding", "pooled_output")
_BLOCK_BYTES = 1 << 20
_UNIT_WITHIN = 1e-2  # float16 and int8 weights round

# From texts of queries, or the fields of documents, (B,) strings each, to what the model gives.
_Encode = Callable[..., Any]


class SavedEncoder(EncodesTexts):
    """Encodes queries and documents by SavedModels.

    `path` is what `tfde export` wrote, or one SavedModel from strings to vectors, as TensorFlow
    Hub's are (GTR, Sentence-T5, the Universal Sentence Encoders):

    - one that is callable, or has one signature of one string input: it encodes queries, and
      documents as `title text`;
    - one with the signatures `question_encoder` and `response_encoder` (USE-QA): the second takes
      a document's text as `input`, and its title, or where it has none its text, as `context`;
    - what `DualEncoder.export` wrote.

    Each SavedModel is loaded when it is first used. It may do what TensorFlow can do, files
    included: load only those that you trust.

    Args:
        path: The directory of a bundle or of a SavedModel.
        engine: What runs the towers of a bundle; `auto`: what was fastest when it was exported.

    Raises:
        ConfigError: it is neither, or has no towers for the engine.
        CorruptError: a bundle's manifest cannot be read.
    """

    @typed
    def __init__(self, path: str | Path, *, engine: EngineChoice = "tensorflow") -> None:
        self.path = Path(path)
        if not is_saved_encoder(self.path):
            raise ConfigError(
                f"{self.path}: must be a bundle (with {MANIFEST}) or a SavedModel (with"
                f" {SAVED_MODEL})."
            )
        bundle = (self.path / MANIFEST).is_file()
        self._manifest = read_manifest(self.path) if bundle else {}
        self._parts: dict[Use, Any] = {}
        self._engine: dict[Use, str] = {
            "query": engine_of(self._manifest, engine, use="query"),
            "document": engine_of(self._manifest, engine, use="document"),
        }

    def __repr__(self) -> str:
        return f"SavedEncoder({str(self.path)!r})"

    @functools.cached_property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        if self._manifest:
            return int(self._manifest["embedding_dim"])
        return int(self._vectors("query", ["a"]).shape[-1])

    @property
    def precision(self) -> str:
        """What it computes in, and whether its weights have 8 bits, as its manifest says."""
        return precision_of_bundle(self._manifest) if self._manifest else "float32"

    def fingerprint(self) -> str:
        """Returns what changes with the model: of a bundle, that of the model exported."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        if self._manifest:
            return str(self._manifest["towers_fingerprint"])
        digest = hashlib.blake2b(digest_size=8)
        files = [self.path / SAVED_MODEL]
        for folder in ("assets", "variables"):
            files += sorted(file for file in (self.path / folder).rglob("*") if file.is_file())
        for file in files:
            digest.update(file.relative_to(self.path).as_posix().encode())
            with file.open("rb") as opened:
                while block := opened.read(_BLOCK_BYTES):
                    digest.update(block)
        return digest.hexdigest()

    @functools.cached_property
    def _normalizes(self) -> bool:
        """Whether embeddings are unit vectors; a SavedModel does not say, so one is measured."""
        return bool(abs(np.linalg.norm(self._vectors("query", ["a"])[0]) - 1) < _UNIT_WITHIN)

    def modules(self) -> tuple[tf.Module, tf.Module]:
        """Returns the query and the document encoder as bundles hold them, each with `encode`.

        Raises:
            ConfigError: it is a bundle's, which is exported from its model.
        """
        if self._manifest:
            raise ConfigError(
                f"{self.path}: is a bundle; `tfde export` takes the model that it was made from."
            )
        strings = tf.TensorSpec([None], tf.string)
        query, document = tf.Module(), tf.Module()

        @tf.function(input_signature=[strings], autograph=False)
        def encode_query(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"embeddings": self._embed("query", text)}

        named = [tf.TensorSpec([None], tf.string, name=name) for name in self.document_fields]

        @tf.function(input_signature=named, autograph=False)
        def encode_document(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"embeddings": self._embed("document", *texts)}

        for module, encode in ((query, encode_query), (document, encode_document)):
            module.model = self._model  # whose variables are saved
            module.encode = encode
        return query, document

    def cut_texts(self) -> list[CutTexts]:
        """Returns nothing: a SavedModel does not say where it cut a text."""
        return []

    def _embeddings_of(
        self,
        side: Use,
        rows: Sequence[tuple[str, ...]],
        *,
        batch_size: int,
        max_length_tokens: int | None,
        show_progress: bool,
    ) -> np.ndarray:
        rule = "left out: a SavedModel cuts texts where it was made to"
        require(max_length_tokens is None, "max_length_tokens", rule, max_length_tokens)
        return encode_by_length(
            functools.partial(self._vectors, side),
            rows,
            self.embedding_dim,
            batch_size=batch_size,
            show_progress=show_progress,
        )

    def _vectors(self, side: str, *texts: Sequence[str]) -> np.ndarray:
        columns = (tf.constant(column, tf.string) for column in texts)
        embeddings: np.ndarray = self._embed(side, *columns).numpy()
        return embeddings

    def _embed(self, side: str, *texts: tf.Tensor) -> tf.Tensor:
        function = self._query_function if side == "query" else self._document_function
        vectors = _vector_of(function(*texts), texts[0].shape[0], self.path)
        return tf.ensure_shape(tf.cast(vectors, tf.float32), [None, vectors.shape[-1]])

    @functools.cached_property
    def _query_function(self) -> _Encode:
        if self._manifest:
            encode = self._encode_of("query")
            return lambda texts: encode(text=texts)
        for key in ("question_encoder", "query_encoder"):
            encode = self._model.signatures.get(key)
            if encode is not None:
                return _encode_by(encode, key, self.path)
        return self._text_function

    @functools.cached_property
    def document_fields(self) -> tuple[str, ...]:
        """What the model reads of a document: title and text, perhaps its context."""
        encode = self._document_signature
        reads = encode is not None and CONTEXT in encode.structured_input_signature[1]
        return DOCUMENT_FIELDS if reads else DOCUMENT_FIELDS[:2]

    @property
    def needs_context(self) -> bool:
        """Whether each document must have a context; USE-QA's has its title else, or its text."""
        return bool(self._manifest.get("needs_context", self._is_ours))

    @property
    def _is_ours(self) -> bool:
        """Whether the function of documents takes them by the names that we gave."""
        return bool(self._manifest) or "document_encoder" in self._model.signatures

    @functools.cached_property
    def _document_signature(self) -> Any:
        """The function of documents, if there is one: ours, or USE-QA's of answers."""
        if self._manifest:
            return self._part("document").signatures["serving_default"]
        signatures = self._model.signatures
        return signatures.get("document_encoder") or signatures.get("response_encoder")

    @functools.cached_property
    def _document_function(self) -> _Encode:
        encode = self._encode_of("document") if self._manifest else self._document_signature
        if encode is not None and self._is_ours:
            names = self.document_fields
            return lambda *texts: encode(**dict(zip(names, texts, strict=True)))
        if encode is not None:

            def respond(titles: tf.Tensor, texts: tf.Tensor, contexts: tf.Tensor) -> Any:
                others = tf.where(titles == "", texts, titles)
                return encode(input=texts, context=tf.where(contexts == "", others, contexts))

            return respond
        function = self._text_function
        return lambda titles, texts: function(
            tf.strings.strip(tf.strings.join([titles, texts], " "))
        )

    @functools.cached_property
    def _model(self) -> Any:
        return tf.saved_model.load(str(self.path))

    def _part(self, use: Use) -> Any:
        """Returns a bundle's encoder; kept, for it owns the variables of its signatures."""
        if use not in self._parts:
            self._parts[use] = tf.saved_model.load(str(self._directory_of(use)))
        return self._parts[use]

    def _directory_of(self, use: Use) -> Path:
        return self.path / "models" / f"{use}_encoder" / str(self._manifest["version"])

    def _encode_of(self, use: Use) -> Any:
        """Returns what a bundle's encoder makes of texts by name, in the engine that was chosen."""
        signatures = self._part(use).signatures
        if self._engine[use] == "tensorflow":
            return signatures["serving_default"]
        runner = open_tower(self._engine[use], self._directory_of(use))

        def encode(**texts: tf.Tensor) -> tf.Tensor:
            tokens = signatures["tokenize"](**texts)
            return tf.constant(runner(**{name: part.numpy() for name, part in tokens.items()}))

        return encode

    @functools.cached_property
    def _text_function(self) -> Callable[[tf.Tensor], Any]:
        """Returns what encodes texts, whatever they are."""
        if callable(self._model):
            return self._call
        signatures = self._model.signatures
        key = next(iter(signatures), "") if len(signatures) == 1 else _SERVING
        if key not in signatures:
            raise ConfigError(
                f"{self.path}: a SavedModel must be callable with strings, or have one signature,"
                f" `{_SERVING}`, or `question_encoder` and `response_encoder`. Received: signatures"
                f" {', '.join(signatures) or 'none'}"
            )
        return _encode_by(signatures[key], key, self.path)

    def _call(self, texts: tf.Tensor) -> Any:
        try:
            return self._model(texts)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.path}: must take strings when it is called."
                f" Received: {shorten(' '.join(str(error).split()))}"
            ) from error


def _encode_by(signature: Any, key: str, path: Path) -> Callable[[tf.Tensor], Any]:
    """Returns what a signature makes of texts, (B,), its one input."""
    inputs = signature.structured_input_signature[1]
    if len(inputs) != 1 or next(iter(inputs.values())).dtype != tf.string:
        found = ", ".join(f"{name} {spec.dtype.name}" for name, spec in sorted(inputs.items()))
        raise ConfigError(
            f"{path}: signature {key!r} must have one input, strings. Received: {found or 'none'}"
        )
    ((name, spec),) = inputs.items()
    if spec.shape.rank == 2:  # as Keras has it: a column of one text
        return lambda texts: signature(**{name: texts[:, tf.newaxis]})
    return lambda texts: signature(**{name: texts})


def _vector_of(given: Any, rows: int | None, path: Path) -> tf.Tensor:
    """Returns the (B, D) tensor among what a model gave for B texts, if B is known."""
    if isinstance(given, Mapping):
        named = dict(given)
    elif isinstance(given, list | tuple):
        named = {str(number): value for number, value in enumerate(given)}
    else:
        named = {"output": given}
    vectors = {
        name: value
        for name, value in named.items()
        if tf.is_tensor(value)
        and value.dtype.is_floating
        and value.shape.rank == 2
        and (rows is None or value.shape[0] in (None, rows))
    }
    for name in _VECTOR_NAMES:
        if name in vectors:
            return vectors[name]
    if len(vectors) == 1:
        return next(iter(vectors.values()))
    shapes = {name: getattr(value, "shape", "") for name, value in sorted(named.items())}
    found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    raise ConfigError(f"{path}: must give one vector a text, (B, D) floats. Received: {found}")
