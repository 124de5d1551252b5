"""What one request of a batch ends by costs the others nothing."""

import threading
import time

import numpy as np
import pytest
from grpc import StatusCode

from tfde.protos.batching_parameters_pb2 import BatchingParameters
from tfde.serving.server.batching import Batcher
from tfde.serving.server.status import StatusError


@pytest.mark.parametrize("hurried_first", [True, False])
def test_a_deadline_that_ends_in_the_queue_ends_its_own_request_alone(hurried_first):
    begun, go_on = threading.Event(), threading.Event()

    def run(inputs):
        begun.set()
        assert go_on.wait(30)
        return [2 * inputs[0]]

    parameters = BatchingParameters()
    parameters.max_batch_size.value = 4
    parameters.num_batch_threads.value = 1
    batcher = Batcher(run, ["x"], parameters, lenient=True, queued=lambda seconds: None)
    found = {}

    def ask(name, timeout_s):
        try:
            (found[name],) = batcher.run([np.ones(1, np.float32)], 1, timeout_s=timeout_s)
        except StatusError as error:
            found[name] = error.code

    def start(name, timeout_s):
        thread = threading.Thread(target=ask, args=(name, timeout_s))
        before = len(batcher._requests)
        thread.start()
        while len(batcher._requests) == before:
            time.sleep(0.01)
        time.sleep(0.1)  # it is in the queue
        return thread

    threads = [start("running", None)]
    assert begun.wait(30)
    waiting = [("hurried", 0.2), ("patient", None), ("with a deadline", 60)]
    threads += [start(*one) for one in (waiting if hurried_first else reversed(waiting))]
    time.sleep(0.3)  # the hurried one's time is over
    go_on.set()
    for thread in threads:
        thread.join(30)
    batcher.close()
    assert found.pop("hurried") == StatusCode.DEADLINE_EXCEEDED
    assert found == {"running": [2.0], "patient": [2.0], "with a deadline": [2.0]}


def test_an_answer_that_comes_too_late_is_none():
    parameters = BatchingParameters()

    def run(inputs):
        time.sleep(0.3)
        return inputs

    batcher = Batcher(run, ["x"], parameters, lenient=True, queued=lambda seconds: None)
    with pytest.raises(StatusError) as caught:
        batcher.run([np.ones(1, np.float32)], 1, timeout_s=0.1)
    assert caught.value.code == StatusCode.DEADLINE_EXCEEDED
    batcher.close()
