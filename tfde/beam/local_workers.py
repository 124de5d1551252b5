"""Worker processes of the local runner: one that dies ends the job, one that stays is ended.

Beam's own handler leaves the job waiting for the dead process for ever (apache/beam#19674), and
at the end of a job for a process that does not end. This one takes its place in Beam's table of
environments, answers in the dead worker's stead and kills who stays.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.portability.local_job_service import SubprocessSdkWorker

_ANSWER_AGAIN_S = 0.2
_PATIENCE_S = 10.0  # a worker that was told to end has this long
_lost: list[str] = []


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
