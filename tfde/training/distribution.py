"""The `tf.distribute` strategy of a run, who writes files, and what a lost process becomes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import context

from tfde.config.training import Distribution
from tfde.errors import ConfigError, LostProcessError, first_line

_HEARTBEAT_S = 60
# What the survivors see, whichever notices first: the connection, the heartbeat or the timeout.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


def open_strategy(distribution: Distribution, *, timeout_s: int) -> tf.distribute.Strategy:
    """Returns the strategy of a run; with several processes, waits until all are there.

    Args:
        distribution: Any but `auto`.
        timeout_s: After so many seconds an exchange between processes fails.

    Raises:
        ConfigError: TensorFlow has worked already, and can join no other process any more.
    """
    if distribution == "mirrored":
        return tf.distribute.MirroredStrategy()
    if distribution == "tpu":
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        return tf.distribute.TPUStrategy(resolver)
    if distribution == "multi_worker":
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_s)
        try:
            _allow_silence(min(timeout_s, _HEARTBEAT_S))
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        except RuntimeError as error:
            raise ConfigError(
                "`distribution: multi_worker` must come before anything else that TensorFlow does"
                f" in a process. Received: {first_line(error)}"
            ) from error
    return tf.distribute.get_strategy()


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is the one that writes files."""
    resolver = _resolver(strategy)
    if resolver is None:
        return True
    if resolver.task_type == "worker" and not resolver.cluster_spec().as_dict().get("chief"):
        return resolver.task_id == 0
    return resolver.task_type == "chief"


def is_alone(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether no other process takes part."""
    return _resolver(strategy) is None


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Returns when all processes of a strategy have come here."""
    if _resolver(strategy) is None:
        return

    def meet() -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    strategy.experimental_local_results(tf.function(strategy.run)(meet))[0].numpy()


@contextlib.contextmanager
def lost_processes(*, timeout_s: int) -> Iterator[None]:
    """Turns what TensorFlow says when a process of a strategy is gone into one line.

    Raises:
        LostProcessError: a process is gone, or answered nothing for `timeout_s` seconds.
    """
    try:
        yield
    except _LOST as error:
        cause = re.search(r"aborted by: (.*)", error.message)
        first = cause[1] if cause else first_line(error)
        raise LostProcessError(
            f"{_lost(error, timeout_s)}; the same command in every process goes on from the last"
            f" checkpoint. TensorFlow says: {first[:160]}"
        ) from error


def _lost(error: tf.errors.OpError, timeout_s: int) -> str:
    silent = re.search(r"stopped sending heartbeats\):\s*((?:/job:\S+\s*)+)", error.message)
    if silent:
        names = re.findall(r"/job:(\w+)\S*/task:(\d+)", silent[1])
        return f"{', '.join(' '.join(name) for name in names)} of this run is gone"
    if isinstance(error, tf.errors.DeadlineExceededError):
        return f"a process was silent for the {timeout_s} s of `collective_timeout_s`"
    return "another process of this run is gone"


def _allow_silence(seconds: int) -> None:
    """Sets after how many seconds without a heartbeat a process counts as lost.

    TensorFlow's own 10 are too few for a machine whose cores are all at work; the strategy has no
    argument for it, but leaves alone what is there before it.
    """
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    context.context().configure_coordination_service(
        "standalone",
        service_leader=multi_worker_util.coordination_leader(cluster),
        heartbeat_timeout_in_ms=seconds * 1000,
        coordinated_jobs=[
            CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
            for job in ("chief", "worker")
            if job in cluster.jobs
        ],
    )


def _resolver(
    strategy: tf.distribute.Strategy,
) -> tf.distribute.cluster_resolver.ClusterResolver | None:
    """Where the processes are; `None` where there is one."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return strategy.cluster_resolver
    return None
