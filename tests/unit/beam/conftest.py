"""A small exported model, and a part of a real data set."""

import json

import pytest
import tiny
from apache_beam.options.pipeline_options import PipelineOptions

from tfde.data.dataset_directory import DatasetDirectory, write_dataset_directory
from tfde.export.bundle import export_bundle


@pytest.fixture
def options():
    """The local runner, all in this process."""
    return PipelineOptions([])


@pytest.fixture(scope="session")
def model():
    return tiny.dual_encoder()


@pytest.fixture(scope="session")
def bundle(model, tmp_path_factory):
    return export_bundle(model, None, tmp_path_factory.mktemp("export") / "bundle")


@pytest.fixture(scope="session")
def scifact(data_dir, tmp_path_factory):
    """The first 300 documents of SciFact and the queries judged on them."""
    whole = DatasetDirectory(data_dir / "scifact")
    documents = [document for document, _ in zip(whole.documents(), range(300), strict=False)]
    known = {document.doc_id for document in documents}
    qrels = {
        query_id: judged
        for query_id, judged in whole.qrels("train").items()
        if set(judged) <= known
    }
    queries = [query for query in whole.queries("train") if query.query_id in qrels]
    path = tmp_path_factory.mktemp("data") / "scifact"
    write_dataset_directory(path, documents, queries, {"train": qrels})
    return DatasetDirectory(path)


@pytest.fixture
def letters():
    """Reads what a job left out."""

    def read(output):
        path = output.with_name(f"{output.name}.skipped.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
