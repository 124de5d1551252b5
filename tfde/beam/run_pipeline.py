"""Running a pipeline: which local runner, its workers, and their errors as one line."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.portability.local_job_service import SubprocessSdkWorker

from tfde.errors import PipelineError

# The direct runner hands most pipelines to Prism, a program that it downloads; this is the part of
# it that comes with the package.
LOCAL_RUNNER = "FnApiRunner"
_RAISED = re.compile(r"tfde\.errors\.\w+: (.+)")
_WHERE = re.compile(r" \[while running '[^']*'\]$")
_ANSWER_AGAIN_S = 0.2
_PATIENCE_S = 10.0  # a worker that was told to end has this long
_lost: list[str] = []


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


def take_lost_workers() -> list[str]:
    """Returns which workers died, in words, since this was asked last."""
    lost = _lost.copy()
    _lost.clear()
    return lost


@contextlib.contextmanager
def quiet_channels() -> Iterator[None]:
    """Keeps Beam's threads from printing that their channel to a dead worker broke."""
    print_error = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, grpc.RpcError):
            print_error(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = print_error


@WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)
class WatchedWorkerHandler(SubprocessSdkWorkerHandler):
    """Starts a worker process, and answers for it with an error when it is gone."""

    def start_worker(self) -> None:
        """Starts the process and a thread that waits for its end."""
        self._closing = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="tfde-worker-")
        self._pid_file = Path(self._folder.name) / "pid"
        # `exec`, so that the process we wait for is the worker and not its shell.
        command = (
            f"echo $$ > {shlex.quote(str(self._pid_file))};"
            f" exec {shlex.quote(sys.executable)} -m tfde.beam.local_worker_main"
        )
        self.worker = SubprocessSdkWorker(
            command.encode(), self.control_address, self.provision_info, self.worker_id
        )
        self.worker_thread = threading.Thread(name="run_worker", target=self._run)
        self.worker_thread.start()

    def close(self) -> None:
        """Ends the process."""
        self._closing.set()
        super().close()

    def stop_worker(self) -> None:
        """Waits for the process to end, not for ever."""
        self.worker_thread.join(_PATIENCE_S)
        if self.worker_thread.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
            self.worker_thread.join()
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            self.worker.run()
            return
        except RuntimeError as error:
            if self._closing.is_set():  # nothing was asked of it any more
                return
            lost = f"{self.worker_id} is gone: {error}"
        _lost.append(lost)
        # The job may ask once more between two answers.
        while not self._closing.wait(_ANSWER_AGAIN_S):
            for future in list(self.control_conn._futures_by_id.values()):
                answer = beam_fn_api_pb2.InstructionResponse(
                    instruction_id=future.instruction_id, error=lost
                )
                future.set(answer)
