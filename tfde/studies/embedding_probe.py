"""Where queries and their documents lie: in one space or in two; as numbers and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError, require
from tfde.evaluation.report_charts import plain_text
from tfde.retrieval.recall import unit_rows
from tfde.storage.atomic import atomic_directory, atomic_file
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document, Query

_FOLDS = 5
_PERPLEXITY = 30.0
_FEWEST = 2 * _FOLDS


class SpaceMeasures(NamedTuple):
    """How the embeddings of queries and of their documents lie to each other.

    Attributes:
        separability: Accuracy of a linear classifier that tells queries from documents, on folds
            it was not fitted to: 0.5 where both lie in one space, 1 where they lie apart.
        alignment: Mean squared distance of a query and its document, at unit length; in [0, 4].
        query_uniformity: Logarithm of the mean of exp(-2 d^2) over pairs of queries, d their
            distance at unit length; the lower, the more evenly they are spread.
        document_uniformity: The same of documents.
    """

    separability: float
    alignment: float
    query_uniformity: float
    document_uniformity: float


class EmbeddedPairs(NamedTuple):
    """Queries and for each of them a relevant document, (N, D) float32 each."""

    queries: np.ndarray
    documents: np.ndarray


def sample_pairs(
    dataset: DatasetDirectory, split: str, number: int, *, seed: int = 0
) -> list[tuple[Query, Document]]:
    """Returns judged queries, each with its first relevant document; no document stands twice.

    Args:
        dataset: Queries, judgements, documents.
        split: Of the judgements.
        number: How many pairs.
        seed: Of the sample.

    Raises:
        ConfigError: the split has fewer such pairs, or `number` is too small to tell anything.
    """
    require(number >= _FEWEST, "pairs", f"at least {_FEWEST}", number)
    relevant_of = dataset.relevant(split)
    queries = list(dataset.queries(split))
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(queries))
    chosen: dict[str, Query] = {}
    for row in order:
        documents = relevant_of[queries[row].query_id]
        relevant = next((doc_id for doc_id in documents if doc_id not in chosen), None)
        if relevant is not None and len(chosen) < number:
            chosen[relevant] = queries[row]
    if len(chosen) < number:
        raise ConfigError(
            f"`pairs` must be at most those of {dataset.path}, {split}, each with a document of its"
            f" own: {len(chosen)}. Received: {number}"
        )
    store = dataset.document_store(list(chosen))
    return [(query, store[doc_id]) for doc_id, query in chosen.items()]


def embed_pairs(
    model: DualEncoder, pairs: list[tuple[Query, Document]], *, batch_size: int = 64
) -> EmbeddedPairs:
    """Encodes both sides of pairs."""
    return EmbeddedPairs(
        model.encode_queries([query.text for query, _ in pairs], batch_size=batch_size),
        model.encode_documents([document for _, document in pairs], batch_size=batch_size),
    )


def measure_space(pairs: EmbeddedPairs, *, seed: int = 0) -> SpaceMeasures:
    """Returns how two sets of embeddings lie to each other.

    Args:
        pairs: Row i of both belongs together.
        seed: Of the folds.

    Raises:
        ImportError: scikit-learn is not installed.

    Source: Wang and Isola 2020, section 4.1 (alignment with exponent 2, uniformity with t = 2);
    the classifier (logistic regression, 5 folds that keep a pair together) is derived here.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    queries, documents = (unit_rows(np.asarray(part, np.float64)) for part in pairs)
    count = len(queries)
    texts = np.concatenate([queries, documents])
    sides = np.repeat([0, 1], count)
    folds = GroupKFold(_FOLDS, shuffle=True, random_state=seed)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    scores = cross_val_score(
        classifier, texts, sides, groups=np.tile(np.arange(count), 2), cv=folds
    )
    return SpaceMeasures(
        separability=float(scores.mean()),
        alignment=float(((queries - documents) ** 2).sum(axis=1).mean()),
        query_uniformity=_uniformity(queries),
        document_uniformity=_uniformity(documents),
    )


def draw_spaces(
    found: Mapping[str, EmbeddedPairs],
    path: str | Path,
    *,
    captions: Mapping[str, str],
    seed: int = 0,
) -> None:
    """Draws a panel for each model: t-SNE of its embeddings, queries and documents in two colours.

    Args:
        found: Name of a model -> its embeddings.
        path: PNG to write.
        captions: Name of a model -> what stands below its name.
        seed: Of t-SNE, which starts from the principal components.

    Raises:
        ImportError: matplotlib or scikit-learn is not installed.

    Source: van der Maaten and Hinton 2008; Dong et al. 2022, figure 2.
    """
    from matplotlib.figure import Figure
    from sklearn.manifold import TSNE

    columns = min(len(found), 3)
    rows = -(-len(found) // columns)
    canvas = Figure(figsize=(3.8 * columns, 4.1 * rows), layout="constrained")
    panels = list(canvas.subplots(rows, columns, squeeze=False).ravel())
    for panel, (name, pairs) in zip(panels, found.items(), strict=False):
        texts = np.concatenate([unit_rows(part) for part in pairs])
        perplexity = min(_PERPLEXITY, (len(texts) - 1) / 3)
        points = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(texts)
        count = len(pairs.queries)
        for part, label, colour in (
            (points[:count], "queries", "tab:blue"),
            (points[count:], "documents", "tab:red"),
        ):
            panel.scatter(*part.T, s=6, alpha=0.7, label=label, color=colour, linewidths=0)
        panel.set_title(plain_text(f"{name}\n{captions[name]}"), fontsize="small")
        panel.set_xticks([])
        panel.set_yticks([])
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    panels[0].legend(fontsize="small", markerscale=2)
    with atomic_file(path) as temporary:
        canvas.savefig(temporary, dpi=130)


def write_projector(
    found: Mapping[str, EmbeddedPairs],
    pairs: Sequence[tuple[Query, Document]],
    directory: str | Path,
) -> None:
    """Writes embeddings and texts for TensorBoard's projector (`tensorboard --logdir DIR`).

    A tensor for each model; its rows are the queries, then the documents, with side, id and text.

    Args:
        found: Name of a model -> its embeddings.
        pairs: The texts, in the same order.
        directory: A new one; whole or not.

    Raises:
        ConfigError: the directory is not empty.
    """
    from tensorboard.plugins.projector import ProjectorConfig

    config = ProjectorConfig()
    with atomic_directory(directory) as temporary:
        rows = [("query", query.query_id, query.text) for query, _ in pairs]
        rows += [("document", d.doc_id, f"{d.title} {d.text}") for _, d in pairs]
        lines = ["\t".join(" ".join(cell.split()) for cell in row) for row in rows]
        text = "\n".join(["side\tid\ttext", *lines])
        (temporary / "texts.tsv").write_text(f"{text}\n", "utf-8")
        for number, (name, embedded) in enumerate(found.items(), start=1):
            file = f"{number}.tsv"
            np.savetxt(temporary / file, np.concatenate(embedded), fmt="%.6g", delimiter="\t")
            config.embeddings.add(tensor_name=name, tensor_path=file, metadata_path="texts.tsv")
        (temporary / "projector_config.pbtxt").write_text(str(config), "utf-8")


def _uniformity(rows: np.ndarray) -> float:
    squares = np.maximum(2.0 - 2.0 * (rows @ rows.T), 0.0)
    upper = np.triu_indices(len(rows), k=1)
    return float(np.log(np.exp(-2.0 * squares[upper]).mean()))
