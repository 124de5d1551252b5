import pytest
import tensorflow as tf

from tfde.errors import LostProcessError
from tfde.training.distribution import lost_processes

# What TensorFlow 2.20 said when worker 1 of two was killed; and after a collective's timeout.
UNHEALTHY = (
    "Collective ops is aborted by: The following tasks are unhealthy (stopped sending"
    " heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed."
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
