import hashlib
import json

import numpy as np
import pytest
import tiny

from tfde.errors import ConfigError, CorruptError, DataError, MismatchError
from tfde.retrieval.embeddings import Embeddings
from tfde.retrieval.encode_corpus import encode_corpus
from tfde.retrieval.exact_index import ExactIndex
from tfde.storage.rows import scale_rows
from tfde.types import Document


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def test_shards_hold_what_the_model_gives_in_order(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, iter(documents), tmp_path / "e", shard_size=10)
    expected = encoder.encode_documents(documents)
    assert embeddings.shape == (25, 16)
    assert len(embeddings) == 25
    assert embeddings.dtype == np.float32
    assert embeddings.fingerprint == "hashing"
    assert embeddings.doc_ids == [f"d{i}" for i in range(25)]
    np.testing.assert_array_equal(embeddings.read(), expected)
    assert [len(shard) for shard in embeddings.shards()] == [10, 10, 5]
    embeddings.verify()
    reopened = Embeddings.open(tmp_path / "e")
    np.testing.assert_array_equal(reopened.read(), expected)
    # The format, read without our code.
    shard = np.load(tmp_path / "e/shard-00001.npy", allow_pickle=False)
    np.testing.assert_array_equal(shard, expected[10:20])
    assert (tmp_path / "e/shard-00001.ids.txt").read_bytes() == b"".join(
        f"d{i}\n".encode() for i in range(10, 20)
    )
    record = json.loads((tmp_path / "e/shard-00001.json").read_text())
    npy = (tmp_path / "e/shard-00001.npy").read_bytes()
    assert record["rows"] == 10
    assert record["sha256"] == hashlib.sha256(npy).hexdigest()


def test_windows_are_small_and_never_cross_shards(tmp_path, encoder, documents):
    encode_corpus(encoder, documents * 4, tmp_path / "e", shard_size=70, batch_size=1)
    assert encoder.calls == [32, 32, 6, 30]


def test_float16_halves_the_bytes_and_reads_as_float32(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, documents, tmp_path / "e", dtype="float16")
    assert embeddings.dtype == np.float16
    assert embeddings.read().dtype == np.float32
    np.testing.assert_allclose(
        embeddings.read(), encoder.encode_documents(documents), rtol=2**-11, atol=1e-7
    )


def test_int8_keeps_a_quarter_and_a_scale_for_each_vector(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, documents, tmp_path / "e", dtype="int8", shard_size=10)
    expected = encoder.encode_documents(documents)
    scales = np.abs(expected).max(axis=1, keepdims=True) / 127
    assert embeddings.dtype == np.int8
    assert embeddings.read().dtype == np.float32
    assert (np.abs(embeddings.read() - expected) <= scales * 0.5001).all()
    # The format, read without our code.
    shard = np.load(tmp_path / "e/shard-00001.npy", allow_pickle=False)
    stored = np.load(tmp_path / "e/shard-00001.scales.npy", allow_pickle=False)
    assert shard.dtype == np.int8
    assert (np.abs(shard).max(axis=1) == 127).all()
    np.testing.assert_allclose(stored, scales[10:20, 0], rtol=1e-6)
    embeddings.verify()
    calls = len(encoder.calls)
    encode_corpus(encoder, documents, tmp_path / "e", dtype="int8", shard_size=10)
    assert len(encoder.calls) == calls


def test_an_exact_index_searches_int8_shards(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, documents, tmp_path / "e", dtype="int8", shard_size=10)
    index = ExactIndex.from_embeddings(embeddings)
    queries = encoder.encode_queries([f"word{i} word{i % 7} {i * i}" for i in range(25)])
    scores, doc_ids = index.search(queries, 25)
    expected = queries @ embeddings.read().T
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), atol=1e-6)
    assert (doc_ids[:, 0] == [f"d{i}" for i in expected.argmax(1)]).all()
    index.save(tmp_path / "index")
    np.testing.assert_array_equal(
        ExactIndex.load(tmp_path / "index").search(queries, 5)[1], doc_ids[:, :5]
    )


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_scales_are_found(tmp_path, encoder, documents, damage):
    encode_corpus(encoder, documents, tmp_path / "e", dtype="int8")
    file = tmp_path / "e/shard-00000.scales.npy"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        np.save(file, np.ones(24, np.float32))
    else:
        np.save(file, np.ones(25, np.float32))
    with pytest.raises(CorruptError, match=r"shard-00000\.scales\.npy: "):
        Embeddings.open(tmp_path / "e").verify()


def test_a_row_of_zeros_stays_one_in_int8():
    integers, scales = scale_rows(np.array([[0.0, 0.0], [1.0, -0.5]], np.float32))
    assert integers.tolist() == [[0, 0], [127, -64]]
    np.testing.assert_allclose(scales, [0, 1 / 127])


def test_a_second_run_encodes_nothing_and_changes_nothing(tmp_path, encoder, documents):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    before, calls = contents(tmp_path / "e"), len(encoder.calls)
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    assert contents(tmp_path / "e") == before
    assert len(encoder.calls) == calls


def test_an_interrupted_run_resumes_at_its_shard(tmp_path, encoder, documents):
    unbroken = encode_corpus(encoder, documents, tmp_path / "unbroken", shard_size=10)

    def breaks_after(count):
        yield from documents[:count]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_corpus(encoder, breaks_after(23), tmp_path / "e", shard_size=10)
    with pytest.raises(FileNotFoundError, match="unfinished: encode again to resume"):
        Embeddings.open(tmp_path / "e")
    encoder.calls.clear()
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    assert encoder.calls == [5]
    assert contents(tmp_path / "e") == contents(unbroken.path)


def test_two_at_once_do_not_write_one_directory(tmp_path, encoder, documents):
    second = []

    def meanwhile():
        for document in documents:
            if not second:
                message = r"e: another process \(pid \d+\) is encoding into it\.$"
                with pytest.raises(ConfigError, match=message):
                    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
                second.append(True)
            yield document

    encode_corpus(encoder, meanwhile(), tmp_path / "e", shard_size=10)
    alone = encode_corpus(encoder, documents, tmp_path / "alone", shard_size=10)
    assert second
    assert contents(tmp_path / "e") == contents(alone.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard_size": 9}, "begun otherwise: shard_size was 10, is 9; give"),
        ({"dtype": "float16"}, "begun otherwise: dtype was 'float32'"),
        ({"batch_size": 2}, "begun otherwise: batch_size was 64"),
    ],
)
def test_other_settings_do_not_resume(tmp_path, encoder, documents, change, message):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    with pytest.raises(MismatchError, match=message):
        encode_corpus(encoder, documents, tmp_path / "e", **{"shard_size": 10, **change})


def test_another_model_does_not_resume(tmp_path, encoder, encoder_class, documents):
    encode_corpus(encoder, documents, tmp_path / "e")
    with pytest.raises(MismatchError, match=r"fingerprint was 'hashing', is 'hashing2'"):
        encode_corpus(encoder_class("2"), documents, tmp_path / "e")


def test_another_corpus_does_not_resume(tmp_path, encoder, documents):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    swapped = [*documents[:12], documents[13], documents[12], *documents[14:]]
    with pytest.raises(MismatchError, match=r"shard-00001 .* row 2 was 'd12', now 'd13'"):
        encode_corpus(encoder, swapped, tmp_path / "e", shard_size=10)
    rewritten = [*documents[:12], documents[12]._replace(text="other"), *documents[13:]]
    with pytest.raises(MismatchError, match=r"shard-00001 .* other texts under the same ids"):
        encode_corpus(encoder, rewritten, tmp_path / "e", shard_size=10)
    with pytest.raises(MismatchError, match="row 4 was 'd24', now no document"):
        encode_corpus(encoder, documents[:24], tmp_path / "e", shard_size=10)
    with pytest.raises(MismatchError, match="shard-00002 was encoded from a longer corpus"):
        encode_corpus(encoder, documents[:20], tmp_path / "e", shard_size=10)


def test_a_title_does_not_run_into_its_text(tmp_path, encoder):
    encode_corpus(encoder, [Document("d", "ab", "c")], tmp_path / "e")
    with pytest.raises(MismatchError, match="other texts"):
        encode_corpus(encoder, [Document("d", "a", "bc")], tmp_path / "e")


def test_a_damaged_shard_is_named(tmp_path, encoder, documents):
    embeddings = encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    file = tmp_path / "e/shard-00001.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    Embeddings.open(tmp_path / "e")  # sizes still fit
    with pytest.raises(CorruptError, match=r"shard-00001\.npy: differs from what was written"):
        embeddings.verify()
    with pytest.raises(CorruptError, match=r"shard-00001\.npy: differs"):
        encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    file.write_bytes(content[:-4])
    with pytest.raises(CorruptError, match=r"shard-00001\.npy: is not a whole \.npy file"):
        Embeddings.open(tmp_path / "e")
    file.unlink()
    with pytest.raises(CorruptError, match=r"shard-00001\.npy: is missing"):
        Embeddings.open(tmp_path / "e")


def test_a_shard_of_another_shape_is_named(tmp_path, encoder, documents):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    np.save(tmp_path / "e/shard-00000.npy", np.zeros((9, 16), np.float32))
    with pytest.raises(CorruptError, match=r"must hold \(10, 16\) float32\. Received: \(9, 16\)"):
        Embeddings.open(tmp_path / "e")


def test_damaged_ids_and_manifest_are_named(tmp_path, encoder, documents):
    encode_corpus(encoder, documents, tmp_path / "e", shard_size=10)
    ids = tmp_path / "e/shard-00000.ids.txt"
    ids.write_text("d0\n")
    with pytest.raises(CorruptError, match=r"ids\.txt: must hold 10 ids\. Received: 1"):
        _ = Embeddings.open(tmp_path / "e").doc_ids
    ids.unlink()
    with pytest.raises(CorruptError, match=r"ids\.txt: is missing"):
        _ = Embeddings.open(tmp_path / "e").doc_ids
    manifest = tmp_path / "e/embeddings.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "rows": 24}))
    with pytest.raises(CorruptError, match="rows of the shards do not add up"):
        Embeddings.open(tmp_path / "e")
    manifest.write_text(json.dumps({**fields, "format": 99}))
    with pytest.raises(CorruptError, match="another format; expected format 1"):
        Embeddings.open(tmp_path / "e")
    del fields["dim"]
    manifest.write_text(json.dumps(fields))
    with pytest.raises(CorruptError, match="has no 'dim'"):
        Embeddings.open(tmp_path / "e")
    manifest.write_text("{")
    with pytest.raises(CorruptError, match=r"embeddings\.json: does not hold a JSON object"):
        Embeddings.open(tmp_path / "e")


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere: no embeddings\.json there\."):
        Embeddings.open(tmp_path / "nowhere")


def test_impossible_settings(tmp_path, encoder, documents):
    with pytest.raises(ConfigError, match=r"`shard_size` must be at least 1\. Received: 0"):
        encode_corpus(encoder, documents, tmp_path / "e", shard_size=0)
    with pytest.raises(ConfigError, match=r"`batch_size` must be at least 1\. Received: -1"):
        encode_corpus(encoder, documents, tmp_path / "e", batch_size=-1)
    with pytest.raises(
        ConfigError, match=r"`dtype` must be float32, float16 or int8\. Received: 'int4'"
    ):
        encode_corpus(encoder, documents, tmp_path / "e", dtype="int4")
    assert not (tmp_path / "e").exists()
    with pytest.raises(ConfigError, match="must hold at least one document"):
        encode_corpus(encoder, [], tmp_path / "e")
    (tmp_path / "f").mkdir()
    (tmp_path / "f/mine.txt").write_text("keep me")
    with pytest.raises(ConfigError, match="exists and holds no embeddings"):
        encode_corpus(encoder, documents, tmp_path / "f")


def test_ids_with_white_space_are_refused(tmp_path, encoder):
    corpus = [Document("a", "", "x"), Document("b c", "", "y")]
    with pytest.raises(DataError, match=r"documents:2: .*without white space\. Received: 'b c'"):
        encode_corpus(encoder, corpus, tmp_path / "e")


def test_embeddings_that_are_not_finite_are_refused(tmp_path, encoder, documents):
    class Broken(type(encoder)):
        def encode_documents(self, documents, *, batch_size=64):
            rows = super().encode_documents(documents)
            rows[3, 0] = np.nan
            return rows

    with pytest.raises(ConfigError, match=r"finite in float32.*document 'd3'"):
        encode_corpus(Broken(), documents, tmp_path / "e")


@pytest.mark.filterwarnings("error")
def test_embeddings_beyond_float16_are_refused(tmp_path, encoder, documents):
    class Large(type(encoder)):
        def encode_documents(self, documents, *, batch_size=64):
            rows = super().encode_documents(documents)
            rows[2, 0] = 70_000  # float16 ends at 65,504
            return rows

    encode_corpus(Large(), documents, tmp_path / "float32")
    with pytest.raises(ConfigError, match=r"finite in float16\. Received: document 'd2'"):
        encode_corpus(Large(), documents, tmp_path / "float16", dtype="float16")


def test_embeddings_of_several_precisions_share_no_directory(tmp_path, documents):
    """They have one fingerprint, for each can be searched by queries of another."""
    start = tiny.dual_encoder(tiny.BERT)
    half = tiny.dual_encoder(tiny.BERT, dtype="mixed_bfloat16")
    assert (start.precision, half.precision) == ("float32", "bfloat16")
    assert start.fingerprint() == half.fingerprint()
    for model in (start, half):
        output = tmp_path / model.precision
        encode_corpus(model, documents, output, shard_size=10)
        settings = json.loads((output / "encoding.json").read_text())
        assert settings.get("precision", "float32") == model.precision
        for file in (*output.glob("shard-00002*"), output / "embeddings.json"):
            file.unlink()
        encode_corpus(model, documents, output, shard_size=10)
        other = half if model is start else start
        with pytest.raises(MismatchError, match="was begun otherwise: precision was"):
            encode_corpus(other, documents, output, shard_size=10)
