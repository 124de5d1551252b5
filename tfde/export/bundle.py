"""`export_bundle`: everything that is deployed, in one directory that appears whole or not."""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfde.argument_types import typed
from tfde.config.engines import Engine
from tfde.engines.tower_engine import require_engine
from tfde.environment import require_extra
from tfde.errors import require
from tfde.export.about_towers import about_towers
from tfde.export.bundle_directory import FORMAT, MANIFEST
from tfde.export.bundle_engines import write_engines
from tfde.export.bundle_index import check_index, documents_of, scann_index, vectors_of
from tfde.export.cards import bundle_card
from tfde.export.documents_model import DocumentsModel, save_documents_model
from tfde.export.partitioned_retriever import build_partitioned_retriever, check_target_recall
from tfde.export.retriever import ExactRetriever, Retriever, save_retriever
from tfde.export.saved_encoder import SavedEncoder
from tfde.export.serving_files import (
    BATCHING,
    BATCHING_NOTE,
    MONITORING,
    PER_MODEL_BATCHING_FILE,
    models_config,
    one_of_each_signature,
    write_warmup,
)
from tfde.export.stored_rows import RowsDtype, check_rows_dtype
from tfde.export.tpu_encoder import FUNCTION_ALIAS, TpuEncoder
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.index import Index
from tfde.retrieval.scann_index import ScannIndex
from tfde.storage.atomic import atomic_directory, refuse_existing
from tfde.storage.files import sha256, write_json
from tfde.towers.change_sharing import without_adapters
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.model_card import CARD_FILE
from tfde.towers.saved_models import DocumentEncoder, QueryEncoder, save_encoder
from tfde.types import Document, Query
from tfde.version import __version__

GOLDEN_K = 10
_LIBRARIES = ("tensorflow", "tensorflow-text", "keras", "scann", "numpy")
_DEFAULT = "serving_default"
_WARM_UP = "warm-up"
_BATCHED = ("query_encoder", "document_encoder")


@typed
def export_bundle(
    model: DualEncoder | SavedEncoder,
    index: Index | Embeddings | None,
    output: str | Path,
    *,
    documents: Iterable[Document] | None = None,
    golden_queries: Iterable[str | Query] = (),
    version: int = 1,
    scann: bool = True,
    int8_weights: bool = False,
    tpu: bool = False,
    engines: Sequence[Engine] = (),
    retriever_dtype: RowsDtype = "float32",
    target_recall: float | None = None,
    recall_queries: Iterable[str | Query] = (),
    measures: Mapping[str, Any] | None = None,
    model_card: str | None = None,
) -> Path:
    """Writes SavedModels, TensorFlow Serving's configuration and a manifest.

    Args:
        model: The trained model; or a SavedModel of others, which has no signatures from token
            ids.
        index: What to search: an index or embeddings of the corpus. `None` exports the two
            encoders alone.
        output: A new directory.
        documents: Titles and texts that clients show; those that are not in the index are left
            out. Without them a client sees ids only.
        golden_queries: A few queries; their answers now are what `tfde verify` expects later,
            and TensorFlow Serving warms up with them.
        version: The models' version number.
        scann: Whether to export the retriever with ScaNN's ops too.
        int8_weights: Whether the towers' matrices are stored in 8 bits; a SavedModel's are as
            they are.
        tpu: Whether the towers work on rows of one length, the longest text's, in a function with
            the alias `tpu_func`, as converters for TPUs ask for; then without `index`, and not of
            a SavedModel.
        engines: For each of these the towers lie beside the SavedModels too, compared with
            TensorFlow and measured; TensorFlow Serving passes over them.
        retriever_dtype: How the retrievers of ordinary ops store the documents' embeddings.
        target_recall: Export `retriever_partitioned` too, which searches as many of its leaves as
            find this share of the 10 best documents.
        recall_queries: Queries on which that is measured, a few hundred at least; by default
            stand-ins made from the embeddings.
        measures: Measured quality, put into the manifest as it is.
        model_card: `README.md` of the model directory, which the bundle's own card ends with.

    Returns:
        `output`.

    Raises:
        MissingExtraError: the extra `serve` is not installed.
        ConfigError: `output` is not empty, `version` below 1, an unknown `retriever_dtype`,
            `target_recall` not in (0, 1] or without an index, or `tpu` with one.
        MismatchError: the index comes from another model, or a document of it is missing; an
            engine gives other embeddings than TensorFlow.
        OSError: the bundle cannot be written; then nothing is left of it.
    """
    output = Path(output)
    refuse_existing(output, overwrite=False)
    require_extra("serve", "a bundle")
    require(version >= 1, "version", "at least 1", version)
    check_rows_dtype(retriever_dtype, "retriever_dtype")
    for engine in engines:
        require_engine(engine, writes=True)
        require(isinstance(model, DualEncoder), "engines", "none for a SavedModel", engine)
        require(not int8_weights, "engines", "none where weights have 8 bits", engine)
        require(not tpu, "engines", "none with `tpu`", engine)
    if target_recall is not None:
        check_target_recall(target_recall)
        require(index is not None, "index", "given where `target_recall` is", index)
    if tpu:
        require(index is None, "index", "left out with `tpu`: a TPU has the encoders", index)
        require(isinstance(model, DualEncoder), "model", "a tfde.DualEncoder with `tpu`", model)
    fingerprint = model.fingerprint()  # that of an index of the same model, adapters and all
    if isinstance(model, DualEncoder):
        model = without_adapters(model)
    texts = None
    if index is not None:
        check_index(model, index, fingerprint)
        if documents is not None:
            texts = documents_of(index, documents)
    golden = _texts(golden_queries)
    with _writing(output), atomic_directory(output) as temporary:
        exporter = _Exporter(
            model, temporary / "models", str(version), golden, int8_weights=int8_weights, tpu=tpu
        )
        answers = exporter.encoders()
        rows = 0
        if index is not None:
            vectors, doc_ids = vectors_of(index), list(index.doc_ids)
            rows = len(doc_ids)
            exporter.exact_retriever(vectors, doc_ids, answers, dtype=retriever_dtype)
            if target_recall is not None:
                exporter.partitioned_retriever(
                    vectors,
                    doc_ids,
                    answers,
                    dtype=retriever_dtype,
                    target_recall=target_recall,
                    recall_queries=_texts(recall_queries),
                )
            if scann:
                exporter.scann_retriever(scann_index(index, vectors), answers)
            if texts is not None:
                exporter.documents(texts, temporary)
        about_engines = {engine: exporter.engine(engine) for engine in engines}
        _write_config(temporary, exporter.names, str(version))
        manifest = {
            "format": FORMAT,
            "tfde_version": __version__,
            "python_version": platform.python_version(),
            "libraries": _library_versions(),
            "version": version,
            "models": exporter.names,
            "retrievers": exporter.retrievers,
            "towers_fingerprint": fingerprint,
            "index_fingerprint": None if index is None else index.fingerprint,
            "embedding_dim": model.embedding_dim,
            "documents": rows,
            "int8_weights": int8_weights,
            "tpu": tpu,
            **about_towers(model),
            "engines": about_engines,
            "golden_k": GOLDEN_K,
            "golden_queries": [
                {"text": text, **answer} for text, answer in zip(golden, answers, strict=True)
            ],
            "measures": dict(measures or {}),
        }
        (temporary / CARD_FILE).write_text(bundle_card(manifest, model_card), "utf-8")
        manifest["files"] = {
            file.relative_to(temporary).as_posix(): sha256(file)
            for file in sorted(temporary.rglob("*"))
            if file.is_file()
        }
        write_json(temporary / MANIFEST, manifest)
    return output


def _library_versions() -> dict[str, str]:
    """Returns the versions of what a bundle is made with; ScaNN's where it is installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:  # an extra that this bundle does without
            continue
    return found


class _Exporter:
    """Writes the models of one bundle and remembers what it wrote."""

    def __init__(
        self,
        model: DualEncoder | SavedEncoder,
        directory: Path,
        version: str,
        golden: list[str],
        *,
        int8_weights: bool,
        tpu: bool,
    ) -> None:
        self._model = model
        self._directory = directory
        self._version = version
        self._golden = golden
        self._query_encoder, self._document_encoder = _encoders_of(
            model, int8=int8_weights, tpu=tpu
        )
        self._golden_embeddings = model.encode_queries(golden)
        self.names: list[str] = []
        self.retrievers: dict[str, dict[str, Any]] = {}

    def encoders(self) -> list[dict[str, Any]]:
        """Writes both encoders; returns, for each golden query, what Keras answers."""
        cut: dict[str, Any] = {}
        if isinstance(self._model, DualEncoder):
            config, dim = self._model.config, self._model.embedding_dim
            cut = {
                "trained_dims": [d for d in config.trained_dims if d < dim],
                "normalize": config.normalize,
            }
        self._encoder("query_encoder", self._query_encoder, cut)
        self._warm_up("query_encoder", [{"text": [text]} for text in self._golden])
        self._encoder("document_encoder", self._document_encoder, cut)
        self._warm_up("document_encoder", [])
        return [{"embedding": row.tolist()} for row in self._golden_embeddings]

    def exact_retriever(
        self,
        vectors: np.ndarray,
        doc_ids: list[str],
        answers: list[dict[str, Any]],
        *,
        dtype: RowsDtype,
    ) -> None:
        """Writes the retriever that scores every document; adds what exact search answers."""
        if dtype == "bfloat16":
            # What is searched exactly are rounded vectors.
            vectors = np.asarray(vectors, tf.bfloat16.as_numpy_dtype)
        retriever = ExactRetriever(self._query_encoder, vectors, doc_ids, dtype=dtype)
        save_retriever(retriever, self._place("retriever"))
        about = {"exact": dtype != "int8", "dtype": dtype}
        index = ExactIndex.build(vectors, doc_ids) if about["exact"] else retriever
        self._finish_retriever("retriever", about, index, doc_ids, answers)

    def partitioned_retriever(
        self,
        vectors: np.ndarray,
        doc_ids: list[str],
        answers: list[dict[str, Any]],
        *,
        dtype: RowsDtype,
        target_recall: float,
        recall_queries: list[str],
    ) -> None:
        """Writes the retriever that scores the nearest leaves; adds what it answers."""
        retriever, about = build_partitioned_retriever(
            self._query_encoder,
            vectors,
            doc_ids,
            query_embeddings=self._model.encode_queries(recall_queries),
            target_recall=target_recall,
            dtype=dtype,
        )
        save_retriever(retriever, self._place("retriever_partitioned"))
        about = {"exact": False, "dtype": dtype, **about}
        self._finish_retriever("retriever_partitioned", about, retriever, doc_ids, answers)

    def scann_retriever(self, index: ScannIndex, answers: list[dict[str, Any]]) -> None:
        """Writes the retriever with ScaNN's ops; adds what the index answers."""
        # Here, so that a bundle without ScaNN can be made where its ops do not load.
        from tfde.export.scann_retriever import ScannRetriever, save_scann_retriever

        retriever = ScannRetriever(self._query_encoder, index)
        save_scann_retriever(retriever, self._place("retriever_scann"))
        about = {"exact": False}
        self._finish_retriever("retriever_scann", about, index, list(index.doc_ids), answers)

    def documents(self, documents: Sequence[Document], temporary: Path) -> None:
        """Writes titles and texts of the index's documents, in its order."""
        ids_file = temporary / "doc_ids.txt"
        save_documents_model(DocumentsModel(documents, ids_file), self._place("documents"))
        ids_file.unlink()
        self._warm_up("documents", [])

    def _encoder(self, name: str, encoder: Any, cut: Mapping[str, Any]) -> None:
        aliases = {}
        if isinstance(encoder, TpuEncoder):
            aliases[FUNCTION_ALIAS] = encoder.encode_tokens
        save_encoder(encoder, self._place(name), **cut, function_aliases=aliases)

    def engine(self, engine: Engine) -> dict[str, Any]:
        """Writes the towers for another engine; returns what the manifest says of them."""
        encoders = {
            "query_encoder": self._query_encoder,
            "document_encoder": self._document_encoder,
        }
        return write_engines(
            engine, self._directory, self._version, encoders=encoders, retrievers=self.retrievers
        )

    def _place(self, name: str) -> Path:
        self.names.append(name)
        return self._directory / name / self._version

    def _finish_retriever(
        self,
        name: str,
        about: dict[str, Any],
        index: Index | Retriever,
        doc_ids: list[str],
        answers: list[dict[str, Any]],
    ) -> None:
        """Writes warm-up requests; records what `index` answers and what is to be known."""
        k = np.int32(GOLDEN_K)
        self._warm_up(name, [{"text": [text], "k": k} for text in self._golden])
        self.retrievers[name] = about
        scores, positions = index.search_positions(self._golden_embeddings, GOLDEN_K)
        for answer, row, found in zip(answers, scores, positions, strict=True):
            ids = [doc_ids[position] for position in found]
            answer[name] = {"doc_ids": ids, "scores": row.tolist()}

    def _warm_up(self, name: str, golden: list[dict[str, Any]]) -> None:
        """Writes warm-up requests: golden ones of the first signature, one of each other."""
        directory = self._directory / name / self._version
        texts = {key: [_WARM_UP] for key in ("text", "title", "context", "doc_ids")}
        dim = self._golden_embeddings.shape[1]
        of_search = {"embeddings": np.zeros((1, dim), np.float32), "k": np.int32(GOLDEN_K)}
        each = one_of_each_signature(directory, {**texts, **of_search})
        others = [one for one in each if one[0] != _DEFAULT or not golden]
        write_warmup(directory, name, [*((_DEFAULT, inputs) for inputs in golden), *others])


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Turns what TensorFlow says of a full disk into an error of the operating system."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = f"cannot be written ({' '.join(error.message.split())})"
        raise OSError(errno.EIO, reason, str(output)) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(output)) from error


def _encoders_of(model: DualEncoder | SavedEncoder, *, int8: bool, tpu: bool) -> tuple[Any, Any]:
    """Returns the modules that encode queries and documents."""
    if isinstance(model, SavedEncoder):
        require(not int8, "int8_weights", "false for a SavedModel, which is taken as it is", int8)
        return model.modules()
    query = QueryEncoder(model.query_tower, model.preprocessor, int8_weights=int8)
    document = DocumentEncoder(model.document_tower, model.preprocessor, int8_weights=int8)
    if not tpu:
        return query, document
    lengths = model.preprocessor.text_config
    return (
        TpuEncoder(query, lengths.query_max_length_tokens),
        TpuEncoder(document, lengths.document_max_length_tokens),
    )


def _texts(queries: Iterable[str | Query]) -> list[str]:
    return [query if isinstance(query, str) else query.text for query in queries]


def _write_config(bundle: Path, names: list[str], version: str) -> None:
    everywhere = [name for name in names if name != "retriever_scann"]
    (bundle / "models.config").write_text(models_config(everywhere), "utf-8")
    (bundle / "models.scann.config").write_text(models_config(names), "utf-8")
    (bundle / "batching.config").write_text(BATCHING_NOTE + BATCHING, "utf-8")
    (bundle / "monitoring.config").write_text(MONITORING, "utf-8")
    for name in set(_BATCHED) & set(names):
        (bundle / "models" / name / version / PER_MODEL_BATCHING_FILE).write_text(BATCHING, "utf-8")
