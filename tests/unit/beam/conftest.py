"""A small exported model, and a part of a real data set."""

import json

import pytest
import tiny
from apache_beam.options.pipeline_options import PipelineOptions
from scifact_part import write_scifact_part

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
    path = tmp_path_factory.mktemp("data") / "scifact"
    return write_scifact_part(data_dir, path, documents=300)


@pytest.fixture
def letters():
    """Reads what a job left out."""

    def read(output):
        path = output.with_name(f"{output.name}.skipped.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
