"""JSON files of strangers, through every reader of one: bombs, pointers, byte order marks."""

import json

import pytest
import tiny
from bert_directory import write

from tfde.checkpoints.hdf5_file import open_hdf5
from tfde.checkpoints.loading import load_backbone
from tfde.errors import ConfigError, CorruptError, DataError, TfdeError
from tfde.storage import json_file
from tfde.storage.files import read_json
from tfde.storage.json_file import read_json_file
from tfde.storage.json_lines import read_json_lines
from tfde.text.batch_preprocessor import PREPROCESSOR_FILE
from tfde.text.read_tokenizer import read_tokenizer
from tfde.towers.dual_encoder import DualEncoder

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BOMBS = {
    "deep list": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "long number": b"[" + b"9" * 100_000 + b"]",
    "not UTF-8": b'{"a": "\xff"}',
    "cut": b'{"a": 1',
    "empty": b"",
    "pointer": POINTER,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_every_reader_tells_it_in_one_line(tmp_path, bomb):
    tiny.dual_encoder().save_to_preset(tmp_path / "ours")
    write(tmp_path / "theirs")
    readers = [
        (tmp_path / "theirs/config.json", lambda: load_backbone(tmp_path / "theirs")),
        (tmp_path / "theirs/modules.json", lambda: load_backbone(tmp_path / "theirs")),
        (tmp_path / "theirs/tokenizer.json", lambda: read_tokenizer(tmp_path / "theirs")),
        (tmp_path / "theirs/tokenizer_config.json", lambda: load_backbone(tmp_path / "theirs")),
        (tmp_path / "manifest.json", lambda: read_json(tmp_path / "manifest.json")),
        *((file, lambda: DualEncoder.from_preset(tmp_path / "ours"))
          for file in (tmp_path / "ours").rglob("*.json") if file.name != "metadata.json"),
    ]  # fmt: skip
    assert any(file.name == PREPROCESSOR_FILE for file, _ in readers)
    for file, read in readers:
        whole = file.read_bytes() if file.exists() else None
        file.write_bytes(BOMBS[bomb])
        with pytest.raises(TfdeError) as caught:
            read()
        assert "\n" not in str(caught.value), file
        assert file.parent.name in str(caught.value), file
        file.unlink()
        if whole is not None:
            file.write_bytes(whole)


def test_weights_that_git_did_not_fetch(tmp_path):
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(DataError, match=r"model.safetensors: is a Git LFS pointer and not"):
        load_backbone(tmp_path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("vocab.txt", read_tokenizer),
        ("spiece.model", read_tokenizer),
        ("model.weights.h5", lambda path: open_hdf5(path).__enter__()),
        ("corpus.jsonl", lambda path: next(read_json_lines(path))),
        ("corpus.jsonl.gz", lambda path: next(read_json_lines(path))),
    ],
)
def test_other_files_that_git_did_not_fetch(tmp_path, name, read):
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(TfdeError, match=f"{name}: is a Git LFS pointer and not"):
        read(tmp_path / name)


def test_a_byte_order_mark_is_left_out(tmp_path):
    write(tmp_path)
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    load_backbone(tmp_path)


def test_a_file_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_file, "MAX_JSON_BYTES", 1000)
    path = tmp_path / "x.json"
    path.write_text(json.dumps("x" * 998))
    assert read_json_file(path) == "x" * 998
    path.write_text(json.dumps("x" * 999))
    with pytest.raises(DataError, match=r"x.json: a JSON file must be at most 0 MiB\. Received"):
        read_json_file(path)
    with pytest.raises(CorruptError, match="does not hold a JSON object"):
        read_json(path)
    (tmp_path / "tokenizer.json").write_bytes(b"[" * 100_000)
    with pytest.raises(ConfigError, match="must be a JSON object"):
        read_tokenizer(tmp_path)
