"""Embeddings of a bundle's encoder, shard by shard, are those of the model in one process."""

import gzip
import json

import numpy as np
import pytest

from tfde.beam.encode import encode_with_beam
from tfde.errors import ConfigError, MismatchError, PipelineError
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def test_the_embeddings_of_one_process(scifact, model, bundle, tmp_path, options):
    made = encode_with_beam(
        bundle, scifact.path, tmp_path / "beam", options, shard_size=70, batch_size=16
    )
    alone = encode_corpus(
        model, scifact.documents(), tmp_path / "alone", shard_size=70, batch_size=16
    )
    assert made.num_shards == 5
    assert made.doc_ids == alone.doc_ids == [d.doc_id for d in scifact.documents()]
    assert made.fingerprint == model.fingerprint()
    np.testing.assert_allclose(made.read(), alone.read(), atol=1e-6)
    made.verify()
    # With the same encoder the files are equal, byte by byte.
    encode_corpus(
        SavedEncoder(bundle), scifact.documents(), tmp_path / "saved", shard_size=70, batch_size=16
    )
    assert contents(tmp_path / "beam") == contents(tmp_path / "saved")


def test_queries_too(scifact, model, bundle):
    texts = [query.text for query in scifact.queries("train")][:20]
    embeddings = SavedEncoder(bundle).encode_queries(texts, batch_size=7)
    np.testing.assert_allclose(embeddings, model.encode_queries(texts), atol=1e-6)


def test_finished_shards_stay(scifact, bundle, tmp_path, options):
    common = {"shard_size": 100, "dtype": "int8"}
    encode_with_beam(bundle, scifact.path, tmp_path / "e", options, **common)
    whole = contents(tmp_path / "e")
    for name in ("embeddings.json", "shard-00001.json"):
        (tmp_path / "e" / name).unlink()
    written = {name: (tmp_path / "e" / name).stat().st_mtime_ns for name in ("shard-00000.npy",)}
    with pytest.raises(FileNotFoundError, match="unfinished: encode again to resume"):
        Embeddings.open(tmp_path / "e")
    encode_with_beam(bundle, scifact.path, tmp_path / "e", options, **common)
    assert contents(tmp_path / "e") == whole
    for name, time in written.items():
        assert (tmp_path / "e" / name).stat().st_mtime_ns == time
    with pytest.raises(MismatchError, match="begun otherwise: shard_size was 100"):
        encode_with_beam(
            bundle, scifact.path, tmp_path / "e", options, **{**common, "shard_size": 50}
        )


def damaged(scifact, folder):
    """The corpus with a line that is no JSON, one without text, and an id that comes twice."""
    folder.mkdir()
    with gzip.open(scifact.file("corpus.jsonl"), "rt") as file:
        lines = file.read().splitlines()[:40]
    good = list(lines)
    lines.insert(5, '{"_id": "half')
    lines.insert(9, '{"_id": "empty", "title": ""}')
    lines.insert(20, lines[2])
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return [json.loads(line)["_id"] for line in good]


def test_bad_documents_stop_the_job_or_are_kept_apart(scifact, bundle, tmp_path, options, letters):
    ids = damaged(scifact, tmp_path / "data")
    output = tmp_path / "e"
    with pytest.raises(PipelineError, match=r"corpus\.jsonl:6: must be JSON .* Received: '\{"):
        encode_with_beam(bundle, tmp_path / "data", output, options, shard_size=16)
    assert not (output / "embeddings.json").exists()
    made = encode_with_beam(
        bundle, tmp_path / "data", output, options, shard_size=16, skip_bad=True
    )
    assert made.doc_ids == ids
    found = [(letter["line"], letter["kind"], letter["rule"]) for letter in letters(output)]
    assert [row[0] for row in found] == [6, 10, 21]
    assert found[1][1:] == ("bad record", "field 'text' is missing.")
    assert found[2][1:] == ("id that comes twice", "field '_id' must be unique.")
    assert letters(output)[2]["received"] == repr(ids[2])
    # Nothing bad any more: no file of a former run stays.
    encode_with_beam(bundle, scifact.path, tmp_path / "f", options)
    assert not (tmp_path / "f.skipped.jsonl").exists()


def test_an_empty_corpus_and_no_bundle(scifact, bundle, tmp_path, options):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/corpus.jsonl").write_text("")
    with pytest.raises(PipelineError, match="`documents` must hold at least one document"):
        encode_with_beam(bundle, tmp_path / "data", tmp_path / "e", options)
    with pytest.raises(FileNotFoundError, match=r"no manifest\.json there, so no bundle"):
        encode_with_beam(tmp_path, scifact.path, tmp_path / "e", options)
    with pytest.raises(ConfigError, match="`batch_size` must be at least 1"):
        encode_with_beam(bundle, scifact.path, tmp_path / "e", options, batch_size=0)
