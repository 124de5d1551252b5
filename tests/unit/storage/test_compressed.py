import gzip
import io
import tarfile

import pytest
import zstandard

from tfde.errors import ConfigError, DataError
from tfde.storage.compressed import open_binary, raw_lines, read_lines, write_lines
from tfde.storage.intake import Intake

LINES = [f"{i * 7919} é 汉" for i in range(20_000)]
CONTENT = "".join(f"{line}\n" for line in LINES).encode()


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.txt.zst"])
def test_what_is_written_is_read(tmp_path, name):
    assert write_lines(tmp_path / name, LINES) == len(LINES)
    assert [line for _, line in read_lines(tmp_path / name)] == LINES
    other = tmp_path / f"other_{name}"
    write_lines(other, LINES)
    assert other.read_bytes() == (tmp_path / name).read_bytes()


def test_the_libraries_read_what_we_write(tmp_path):
    write_lines(tmp_path / "x.gz", LINES)
    write_lines(tmp_path / "x.zst", LINES)
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == CONTENT
    with zstandard.open(tmp_path / "x.zst", "rb") as file:
        assert file.read() == CONTENT


def test_several_frames_and_empty_files(tmp_path):
    half = len(CONTENT) // 2
    frames = [zstandard.compress(part) for part in (CONTENT[:half], b"", CONTENT[half:])]
    (tmp_path / "x.zst").write_bytes(b"".join(frames))
    with open_binary(tmp_path / "x.zst") as file:
        assert file.read() == CONTENT
    for name in ("e", "e.gz", "e.zst"):
        (tmp_path / name).write_bytes(b"")
        assert list(read_lines(tmp_path / name)) == []


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [(".gz", gzip.compress(CONTENT, mtime=0)), (".zst", zstandard.compress(CONTENT))],
)
@pytest.mark.parametrize("share", [0.0002, 0.5, 0.9999])
def test_a_cut_file_is_named_with_its_line(tmp_path, suffix, packed, share):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(packed[: max(int(len(packed) * share), 6)])
    kind = {".gz": "gzip", ".zst": "zstd"}[suffix]
    with pytest.raises(DataError, match=rf"x{suffix}:\d+: the {kind} stream must be whole \(.*\)"):
        list(read_lines(path))
    intake = Intake(skip_bad=True)
    kept = [line for _, line in read_lines(path, intake)]
    assert intake.skipped == 1
    assert kept == LINES[: len(kept)]
    assert len(kept) >= 0.8 * share * len(LINES) - 5_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.gz", b"plain", r"x\.gz:1: the gzip stream must be whole \(Not a gzipped file"),
        ("x.zst", b"plain", r"x\.zst:1: the zstd stream must be whole \("),
        ("x.zst", gzip.compress(b"a", mtime=0), r"x\.zst:1: the zstd stream must be whole \("),
        ("x.gz", zstandard.compress(b"a"), r"x\.gz:1: the gzip stream must be whole \("),
        (
            "x",
            gzip.compress(b"a", mtime=0),
            r"x: is packed with gzip, so its name must end in \.gz\.",
        ),
        ("x", zstandard.compress(b"a"), r"x: is packed with zstd, so its name must end in \.zst"),
        ("x.tar.gz", b"", r"x\.tar\.gz: must be one file; unpack the archive first\."),
        ("x.zip", b"", r"x\.zip: must be one file; unpack the archive first\."),
    ],
)
def test_wrong_compression_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_lines(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_an_archive_is_refused_by_its_name(tmp_path):
    with tarfile.open(tmp_path / "collection.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("collection.tsv"), io.BytesIO())
    with pytest.raises(DataError, match=r"collection\.tar\.gz: must be one file"):
        open_binary(tmp_path / "collection.tar.gz")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_in_utf_16_is_named_as_such(tmp_path, encoding, skip_bad):
    (tmp_path / "x").write_text("\ufeffa line\nanother\n", encoding)
    rule = "x: must not be UTF-16; `iconv -f UTF-16 -t UTF-8` makes it UTF-8"
    with pytest.raises(ConfigError, match=rule):
        list(raw_lines(tmp_path / "x", Intake(skip_bad=skip_bad)))


def test_lines_that_are_not_utf_8_are_named_or_skipped(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfone\ncaf\xe9\nthree\r\n\n")
    with pytest.raises(
        DataError, match=r"x:2: must be UTF-8 \(byte 3 of the line is not\); `iconv -f WIN"
    ):
        list(read_lines(tmp_path / "x"))
    intake = Intake(skip_bad=True)
    assert list(read_lines(tmp_path / "x", intake)) == [(1, "one"), (3, "three")]
    assert (intake.skipped, intake.path, intake.line) == (1, tmp_path / "x", 4)
    assert list(raw_lines(tmp_path / "x", intake)) == [(1, "one\n"), (3, "three\r\n"), (4, "\n")]
