"""What a run does with the devices it finds: choices, made from a list of them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tfde.config.training import Distribution, Precision
from tfde.errors import ConfigError, shorten

# From here on a GPU multiplies bfloat16, whose range is float32's: no loss scale is needed.
_BFLOAT16_CAPABILITY = (8, 0)

logger = logging.getLogger("tfde")


class Device(NamedTuple):
    """A device as TensorFlow lists it.

    Args:
        kind: `CPU`, `GPU` or `TPU`.
        compute_capability: Of a GPU, (major, minor); `None` where it is not known.
    """

    kind: str
    compute_capability: tuple[int, int] | None = None


def list_devices() -> list[Device]:
    """Returns the devices of this process, without starting TensorFlow on them."""
    devices = []
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        devices.append(Device(device.device_type, details.get("compute_capability")))
    return devices


def choose_precision(wanted: Precision, devices: Sequence[Device]) -> str:
    """Returns the dtype policy of a run.

    Args:
        wanted: `auto`: mixed_bfloat16 on TPUs and on GPUs that multiply it (compute capability 8.0
            and more), mixed_float16 on other GPUs, float32 on CPUs.
        devices: What there is.
    """
    if wanted != "auto":
        return wanted
    kinds = {device.kind for device in devices}
    if "TPU" in kinds:
        return "mixed_bfloat16"
    gpus = [device.compute_capability for device in devices if device.kind == "GPU"]
    if not gpus:
        return "float32"
    able = all(known is not None and known >= _BFLOAT16_CAPABILITY for known in gpus)
    return "mixed_bfloat16" if able else "mixed_float16"


@contextlib.contextmanager
def in_precision(wanted: Precision) -> Iterator[None]:
    """Makes layers in its block compute in the precision of a run, on the devices of this machine.

    Args:
        wanted: As of `choose_precision`.
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(choose_precision(wanted, list_devices()))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def choose_distribution(
    wanted: Distribution, devices: Sequence[Device], *, environment: Mapping[str, str]
) -> Distribution:
    """Returns how a run is distributed.

    Args:
        wanted: `auto`: multi_worker where `TF_CONFIG` names more than one process, tpu where there
            is one, mirrored where there are several GPUs, else one_device.
        devices: What there is.
        environment: Environment variables.

    Raises:
        ConfigError: `TF_CONFIG` is not what TensorFlow describes, or missing for multi_worker.
    """
    processes = count_processes(environment.get("TF_CONFIG", ""))
    if wanted == "multi_worker" and not processes:
        raise ConfigError(
            "`distribution: multi_worker` needs TF_CONFIG in the environment of each process:"
            ' {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}.'
        )
    if wanted != "auto":
        return wanted
    if processes > 1:
        return "multi_worker"
    kinds = [device.kind for device in devices]
    if "TPU" in kinds:
        return "tpu"
    return "mirrored" if kinds.count("GPU") > 1 else "one_device"


def choose_jit_compile(
    wanted: bool | str, devices: Sequence[Device], *, replicas: int, chunk_size: int | None
) -> bool:
    """Returns whether XLA compiles the step.

    Args:
        wanted: `auto`: on one GPU, unless texts are taken in chunks (a TPU's strategy compiles by
            itself).
        devices: What there is.
        replicas: Over how many replicas a batch is spread.
        chunk_size: That of the stage.
    """
    if wanted == "auto":
        gpu = any(device.kind == "GPU" for device in devices)
        return gpu and replicas == 1 and chunk_size is None
    return bool(wanted)


def count_processes(text: str) -> int:
    """Returns how many processes train by `TF_CONFIG`; 0 where it names none.

    Raises:
        ConfigError: it is no such description, or this process is none of its cluster.
    """
    if not text:
        return 0
    try:
        description = json.loads(text)
        cluster = description.get("cluster", {})
        trains = {job: len(cluster.get(job, ())) for job in ("chief", "worker")}
        if cluster:
            kind, index = str(description["task"]["type"]), int(description["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            "TF_CONFIG must be JSON with `cluster` and `task` (`type` and `index`)."
            f" Received: {shorten(text)}"
        ) from None
    if not sum(trains.values()):
        logger.warning("TF_CONFIG names neither worker nor chief: this process trains alone")
    elif index not in range(trains.get(kind, 0)):
        there = ", ".join(f"{job} 0 to {count - 1}" for job, count in trains.items() if count)
        raise ConfigError(
            f"TF_CONFIG: `task` must be one of the cluster's, {there}. Received: {kind} {index}"
        )
    return sum(trains.values())
