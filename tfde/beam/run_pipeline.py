"""Running a pipeline: which local runner, and errors of workers as one line."""

from __future__ import annotations

import re
from collections.abc import Callable

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from tfde.beam.local_workers import quiet_channels, take_lost_workers
from tfde.errors import PipelineError

# The direct runner hands most pipelines to Prism, a program that it downloads; this is the part of
# it that comes with the package.
LOCAL_RUNNER = "FnApiRunner"

_RAISED = re.compile(r"tfde\.errors\.\w+: (.+)")
_WHERE = re.compile(r" \[while running '[^']*'\]$")


def run_pipeline(options: PipelineOptions, build: Callable[[beam.Pipeline], None]) -> None:
    """Runs a pipeline to its end.

    Args:
        options: Beam's own; without a runner, and for `DirectRunner`, the local runner.
        build: Adds the steps.

    Raises:
        PipelineError: a step failed, or a worker is gone; one line, that of our own error where
            one of our errors was the cause.
    """
    standard = options.view_as(StandardOptions)
    if standard.runner in (None, "DirectRunner"):
        standard.runner = LOCAL_RUNNER
    pipeline = beam.Pipeline(options=options)
    build(pipeline)
    try:
        with quiet_channels():
            pipeline.run().wait_until_finish()
    except Exception as error:
        lost = take_lost_workers()
        if lost:
            # Other errors are what followed from it.
            raise PipelineError(f"{lost[0]}; give the job again to go on.") from error
        raise PipelineError(cause_of(error)) from error


def cause_of(error: BaseException) -> str:
    """Returns in one line what made a pipeline fail.

    A worker's exception comes as the text of its traceback; where the steps run in this process it
    comes as it is.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = _RAISED.findall(text)
    line = raised[-1] if raised else lines[-1] if lines else type(error).__name__
    return _WHERE.sub("", line)
