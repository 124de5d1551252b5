"""The first documents of SciFact, for tests that need real texts but not all of them."""

import itertools
from pathlib import Path

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.dataset_writer import write_dataset_directory


def write_scifact_part(data_dir: Path, path: Path, *, documents: int) -> DatasetDirectory:
    """Writes a dataset of so many documents and the train queries judged on no others."""
    whole = DatasetDirectory(data_dir / "scifact")
    first = list(itertools.islice(whole.documents(), documents))
    known = {document.doc_id for document in first}
    qrels = {
        query_id: judged
        for query_id, judged in whole.qrels("train").items()
        if set(judged) <= known
    }
    queries = [query for query in whole.queries("train") if query.query_id in qrels]
    write_dataset_directory(path, first, queries, {"train": qrels})
    return DatasetDirectory(path)
