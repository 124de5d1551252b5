import apache_beam as beam
import pytest

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
