import argparse
import importlib
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tfde.beam.run_pipeline import cause_of, run_pipeline
from tfde.errors import DataError, PipelineError

REMOTE = """Traceback (most recent call last):
  File "sdk_worker.py", line 312, in _execute
    response = task()
tfde.errors.DataError: corpus.jsonl:7: must be JSON (Expecting value). Received: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "common.py", line 1507, in process
tfde.errors.DataError: corpus.jsonl:7: must be JSON (Expecting value). Received: 'x' [while running 'Read/Read']
"""  # noqa: E501


def test_a_workers_traceback_becomes_its_last_line():
    line = "corpus.jsonl:7: must be JSON (Expecting value). Received: 'x'"
    assert cause_of(RuntimeError(REMOTE)) == line
    assert cause_of(RuntimeError(f"{line} [while running 'Read']")) == line
    assert cause_of(KeyError("a\n b")) == r"'a\n b'"
    assert cause_of(MemoryError()) == "MemoryError"


def raise_it(number):
    raise DataError("corpus.jsonl", number, "must be good.")


def test_an_error_of_a_step_is_one_line(options):
    with pytest.raises(PipelineError, match=r"^corpus\.jsonl:3: must be good\.$"):
        run_pipeline(options, lambda p: p | beam.Create([3]) | beam.Map(raise_it))


SCRIPTS = Path(__file__).parents[3] / "pipelines/beam"
JOBS = ("encode_corpus", "make_pairs", "mine_negatives", "retrieve")


@pytest.mark.parametrize("job", JOBS)
def test_an_option_that_is_nearly_ours_is_told(job, monkeypatch, capsys):
    """Beam drops what it does not know, and the job would run without it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    parser = importlib.import_module(job).parser
    script = importlib.import_module("script")
    of_beam = argparse.ArgumentParser(allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        if options.__module__.startswith("apache_beam."):
            options._add_argparse_args(of_beam)
    known = [option for action in of_beam._actions for option in action.option_strings]
    assert len(known) > 100
    script.refuse_misspelled(parser, [name for name in known if name not in ("-h", "--help")])
    with pytest.raises(SystemExit) as caught:
        script.refuse_misspelled(parser, ["--direct_num_workers", "2", "--ouput=x"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --ouput; did you mean --output?" in capsys.readouterr().err
