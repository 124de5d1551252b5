"""What a run chooses, from lists of devices that this machine need not have."""

import json

import pytest

from tfde.errors import ConfigError
from tfde.training.devices import (
    Device,
    choose_distribution,
    choose_jit_compile,
    choose_precision,
    list_devices,
)

CPU = Device("CPU")
T4, A100, H100 = (Device("GPU", capability) for capability in ((7, 5), (8, 0), (9, 0)))
UNKNOWN = Device("GPU")
TPU = Device("TPU")


@pytest.mark.parametrize(
    ("devices", "precision"),
    [
        ([CPU], "float32"),
        ([CPU, T4], "mixed_float16"),
        ([CPU, A100], "mixed_bfloat16"),
        ([CPU, H100, A100], "mixed_bfloat16"),
        ([CPU, H100, T4], "mixed_float16"),
        ([CPU, UNKNOWN], "mixed_float16"),
        ([CPU, TPU], "mixed_bfloat16"),
    ],
)
def test_precision_by_device(devices, precision):
    assert choose_precision("auto", devices) == precision
    assert choose_precision("float32", devices) == "float32"


def cluster(workers, **others):
    task = {"type": "worker", "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers, **others}, "task": task})}


@pytest.mark.parametrize(
    ("devices", "environment", "distribution"),
    [
        ([CPU], {}, "one_device"),
        ([CPU, A100], {}, "one_device"),
        ([CPU, A100, A100], {}, "mirrored"),
        ([CPU, TPU, TPU], {}, "tpu"),
        ([CPU], cluster(["a:1"]), "one_device"),
        ([CPU], cluster(["a:1", "b:1"]), "multi_worker"),
        ([CPU], cluster(["b:1"], chief=["a:1"]), "multi_worker"),
        ([CPU, A100, A100], cluster(["a:1", "b:1"]), "multi_worker"),
    ],
)
def test_distribution_by_device(devices, environment, distribution):
    assert choose_distribution("auto", devices, environment=environment) == distribution
    assert choose_distribution("mirrored", devices, environment=environment) == "mirrored"


def test_impossible_clusters_are_refused():
    with pytest.raises(ConfigError, match="`distribution: multi_worker` needs TF_CONFIG"):
        choose_distribution("multi_worker", [CPU], environment={})
    for text in ("{", "[]", '{"cluster": {"worker": ["a:1", "b:1"]}}'):
        with pytest.raises(ConfigError, match=r"TF_CONFIG must be JSON with .* Received: "):
            choose_distribution("auto", [CPU], environment={"TF_CONFIG": text})
    for task, received in (
        ({"type": "worker", "index": 2}, "worker 2"),
        ({"type": "ps", "index": 0}, "ps 0"),
    ):
        text = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": task})
        with pytest.raises(ConfigError, match=rf"worker 0 to 1\. Received: {received}$"):
            choose_distribution("auto", [CPU], environment={"TF_CONFIG": text})


def test_a_cluster_of_nobody_is_told(caplog):
    environment = {"TF_CONFIG": '{"cluster": {}}'}
    assert choose_distribution("auto", [CPU], environment=environment) == "one_device"
    assert "names neither worker nor chief: this process trains alone" in caplog.text


def test_this_machine():
    assert CPU in list_devices()


def test_xla_is_chosen_by_whoever_asks():
    for devices in ([CPU], [CPU, A100], [CPU, TPU]):
        assert choose_jit_compile(True, devices, replicas=1, chunk_size=None)
        assert not choose_jit_compile(False, devices, replicas=1, chunk_size=None)
