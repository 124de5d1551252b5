import pytest
import tensorflow as tf

from tfde.errors import LostProcessError
from tfde.training.distribution import lost_processes

# A sentence of TensorFlow 2.20's coordination service (its library holds it) with the name of a
# task. That a killed process is named is tested in tests/integration; this is for the wordings.
UNHEALTHY = (
    "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (tf.errors.UnavailableError(None, None, UNHEALTHY), r"^worker 1 of this run is gone; the"),
        (
            tf.errors.DeadlineExceededError(None, None, "Collective has timed out"),
            r"^a process was silent for the 7 s of `collective_timeout_s`; the same command in",
        ),
        (
            tf.errors.CancelledError(None, None, "Connection reset by peer"),
            r"^another process of this run is gone; .* TensorFlow says: Connection reset by peer$",
        ),
    ],
)
def test_who_is_lost_is_named(error, line):
    with pytest.raises(LostProcessError, match=line), lost_processes(timeout_s=7):
        raise error
