"""Pairs drawn by parts are the file of one process."""

import json

import pytest

from tfde.beam.make_pairs import make_pairs_with_beam
from tfde.errors import ConfigError, DataError
from tfde.pretraining.build_store import build_store
from tfde.pretraining.pair_stream import PairStream
from tfde.pretraining.write_pair_file import write_pair_file
from tfde.storage.compressed import read_lines, write_lines
from tfde.storage.intake import Intake

WEIGHTS = {"ict": 2.0, "bfs": 1.0, "wlp": 1.0}


@pytest.fixture(scope="module")
def pages(data_dir, tmp_path_factory):
    """The first 60 pages of wikispeedia; most of their links lead out of them."""
    path = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    lines = read_lines(data_dir / "wikispeedia" / "pages.jsonl.gz")
    write_lines(path, (line for _, (_, line) in zip(range(60), lines, strict=False)))
    return path


def test_the_file_of_one_process(pages, tmp_path, options, letters):
    output, store = tmp_path / "pairs.jsonl.gz", tmp_path / "store"
    common = {"weights": WEIGHTS, "seed": 4, "limit": 1050, "skip_bad": True}
    found = make_pairs_with_beam(pages, store, output, options, pairs_a_part=100, **common)

    intake = Intake(skip_bad=True)
    alone = PairStream(build_store(pages, tmp_path / "alone", intake=intake), WEIGHTS, seed=4)
    statistics = write_pair_file(alone, tmp_path / "alone.jsonl.gz", limit=1050)
    assert output.read_bytes() == (tmp_path / "alone.jsonl.gz").read_bytes()
    assert found == statistics
    assert not (tmp_path / "pairs.jsonl.gz.parts").exists()
    (letter,) = letters(output)
    assert letter["kind"] == "link to nowhere"
    assert letter["count"] == intake.kinds["link to nowhere"] > 100
    assert letter["file"] == str(pages)
    assert letter["line"] == 1

    # Told with the store that was made: another output of it does not say it again, or wrongly.
    other = tmp_path / "other.jsonl"
    make_pairs_with_beam(pages, store, other, options, pairs_a_part=500, **common)
    assert not other.with_name("other.jsonl.skipped.jsonl").exists()

    written = output.stat().st_mtime_ns
    again = make_pairs_with_beam(pages, store, output, options, pairs_a_part=100, **common)
    assert again == statistics
    assert output.stat().st_mtime_ns == written
    with pytest.raises(ConfigError, match=r"was made otherwise: seed was 4, is 5"):
        make_pairs_with_beam(
            pages, store, output, options, pairs_a_part=100, **{**common, "seed": 5}
        )


def test_only_missing_parts_are_drawn(pages, tmp_path, options):
    def make(name, **changes):
        return make_pairs_with_beam(
            pages, tmp_path / "store", tmp_path / name, options, weights={"ict": 1.0}, limit=50,
            pairs_a_part=10, skip_bad=True, **changes,
        )  # fmt: skip

    make("whole.jsonl")
    make("broken.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    # As a kill leaves it: parts, of which one is not whole, and no output.
    settings = json.loads((tmp_path / "broken.jsonl.json").read_text())["settings"]
    for name in ("broken.jsonl", "broken.jsonl.json"):
        (tmp_path / name).unlink()
    make("other.jsonl", seed=1)
    parts = tmp_path / "broken.jsonl.parts"
    parts.mkdir()
    (parts / "settings.json").write_text(json.dumps(settings))
    (parts / "part-00001.lines").write_bytes(b"".join(lines[10:15]))
    make("broken.jsonl")
    assert (tmp_path / "broken.jsonl").read_bytes() == b"".join(lines)
    assert (tmp_path / "other.jsonl").read_bytes() != b"".join(lines)


def test_bad_pages_and_settings_are_named(pages, tmp_path, options):
    store, output = tmp_path / "store", tmp_path / "pairs.jsonl"
    with pytest.raises(DataError, match=r"pages\.jsonl:1: field 'links' must hold ids of pages"):
        make_pairs_with_beam(pages, store, output, options, weights=WEIGHTS)
    assert list(tmp_path.iterdir()) == []
    for name in ("limit", "pairs_a_part"):
        with pytest.raises(ConfigError, match=rf"`{name}` must be at least 1\. Received: 0"):
            make_pairs_with_beam(
                pages, store, output, options, weights=WEIGHTS, skip_bad=True, **{name: 0}
            )
