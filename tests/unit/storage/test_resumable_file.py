"""A file made part by part: what a kill at any place leaves, and what is refused."""

import gzip
import json

import pytest

from tfde.errors import ConfigError, CorruptError, MismatchError
from tfde.storage.resumable_file import PartedFile, check_finished

LINES = [[b"a\n", b"b\n"], [], [b"c\n"]]


def make(output, parts=LINES, **settings):
    work = PartedFile(output, settings)
    with work.begin():
        for number, lines in enumerate(parts):
            work.write_part(number, lines, {"lines": len(lines)})
    return work


def test_parts_become_one_file_and_its_record(tmp_path):
    work = make(tmp_path / "f.gz", seed=(1, 2))
    assert work.part(1) == {"lines": 0}
    assert work.part(3) is None
    assert work.finished() is None
    assert work.finish(3) == {"lines": 3}
    assert gzip.decompress((tmp_path / "f.gz").read_bytes()) == b"a\nb\nc\n"
    assert PartedFile(tmp_path / "f.gz", {"seed": [1, 2]}).finished() == {"lines": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.gz", "f.gz.json"]
    check_finished(tmp_path / "f.gz")
    with pytest.raises(ConfigError, match=r"f\.gz: was made otherwise: seed was \[1, 2\], is"):
        PartedFile(tmp_path / "f.gz", {"seed": [3]}).finished()


def test_a_run_that_was_killed_at_its_first_line_begins_anew(tmp_path):
    directory = tmp_path / "f.parts"
    directory.mkdir()
    (directory / ".settings.json.0123456789ab.tmp.json").write_text("{")
    make(tmp_path / "f").finish(3)
    assert (tmp_path / "f").read_bytes() == b"a\nb\nc\n"


def test_a_kill_before_the_record_of_the_whole_costs_nothing(tmp_path):
    """Not even where an older record still stood, of an output that was removed."""
    make(tmp_path / "f", seed=1).finish(3)
    (tmp_path / "f").unlink()
    work = make(tmp_path / "f", seed=2)
    (tmp_path / "f").write_bytes(b"a\nb\nc\n")
    again = PartedFile(tmp_path / "f", {"seed": 2})
    assert again.finished() is None
    with again.begin():
        assert again.finish(3) == {"lines": 3}
    assert work.finished() == {"lines": 3}
    assert json.loads((tmp_path / "f.json").read_text())["settings"]["seed"] == 2


def test_a_beginning_without_a_part_stands_in_nobodys_way(tmp_path):
    """As where the first command was refused after it had begun."""
    with (begun := PartedFile(tmp_path / "f", {"seed": 1})).begin():
        (begun.directory / "documents").mkdir()  # of another data set, perhaps
    with (again := PartedFile(tmp_path / "f", {"seed": 2})).begin():
        assert not (again.directory / "documents").exists()
    make(tmp_path / "f", seed=2).finish(3)
    assert json.loads((tmp_path / "f.json").read_text())["settings"]["seed"] == 2


def test_what_is_refused(tmp_path):
    work = make(tmp_path / "f", LINES[:1], seed=1)
    with pytest.raises(CorruptError, match=r"part-00001\.json: is missing"):
        work.finish(2)
    with pytest.raises(MismatchError, match=r"f\.parts: was begun otherwise: seed was 1, is 2"):
        make(tmp_path / "f", seed=2)
    (tmp_path / "other.parts").mkdir()
    (tmp_path / "other.parts" / "mine").write_text("")
    with pytest.raises(ConfigError, match=r"other\.parts: holds no parts of ours; remove it"):
        make(tmp_path / "other")
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match=r"mine: exists already; choose another or remove it"):
        PartedFile(tmp_path / "mine", {}).finished()
