"""Versions come and go while requests run: policies, labels, reloads, broken copies."""

import gc
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import model_management_pb2, model_pb2, predict_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelType
from toy_models import put, wait_for

from tfde.serving.server.inference import run_predict
from tfde.serving.server.model_manager import State
from tfde.serving.server.reload import ReloadRules, reload_config
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError
from tfde.serving.server.versions import model_config, server_config


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "toy"
    path.mkdir()
    return path


def spec_of(version=None, label=""):
    spec = model_pb2.ModelSpec(name="toy")
    if version is not None:
        spec.version.value = version
    if label:
        spec.version_label = label
    return spec


def ask(manager, spec=None, value=1.0):
    request = predict_pb2.PredictRequest(model_spec=spec or spec_of())
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([value], np.float32)))
    with manager.use(request.model_spec) as servable:
        return run_predict(servable, request).outputs["y"].float_val[0]


def states(manager):
    return {state.version: state.state for state in manager.states(spec_of())}


def labelled(base, policy=None, **labels):
    config = model_config("toy", base)
    if policy is not None:
        config.model_version_policy.specific.versions.extend(policy)
    for label, version in labels.items():
        config.version_labels[label] = version
    return server_config(config)


def test_a_new_version_replaces_the_old_one_without_a_failed_request(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager()
    manager.apply(server_config(model_config("toy", base)))
    assert ask(manager) == 1.0
    answers, stop = set(), threading.Event()

    def client():
        while not stop.is_set():
            answers.add(ask(manager))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in (2, 3):
        put(saved, base, version)
        manager.poll()
        wait_for(lambda version=version: states(manager).get(version) == State.AVAILABLE)
        wait_for(lambda version=version: states(manager)[version - 1] == State.END)
    stop.set()
    for thread in threads:
        thread.join()
    assert answers == {1.0, 2.0, 3.0}
    assert ask(manager) == 3.0
    # What is gone stays in the history, and the latest stands first.
    assert list(states(manager)) == [3, 2, 1]
    with pytest.raises(StatusError, match=r"Servable not found for request: Specific\(toy, 1\)"):
        ask(manager, spec_of(1))


def test_a_version_in_use_is_not_unloaded_before_its_request_has_ended(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager()
    manager.apply(server_config(model_config("toy", base)))
    with manager.use(spec_of()) as servable:
        put(saved, base, 2)
        manager.poll()
        wait_for(lambda: states(manager)[1] == State.UNLOADING)
        assert ask(manager) == 2.0
        x = np.array([5], np.float32)
        assert servable.runner.run("", {"x": x})["y"].tolist() == [5.0]
        assert states(manager)[1] == State.UNLOADING
    wait_for(lambda: states(manager)[1] == State.END)


def test_removing_a_version_goes_back_to_the_one_before(saved, base, make_manager):
    put(saved, base, 1)
    put(saved, base, 2)
    manager = make_manager()
    manager.apply(server_config(model_config("toy", base)))
    assert states(manager) == {2: State.AVAILABLE}
    shutil.rmtree(base / "2")
    manager.poll()
    wait_for(lambda: states(manager) == {2: State.END, 1: State.AVAILABLE})
    put(saved, base, 2)
    manager.poll()
    wait_for(lambda: states(manager) == {2: State.AVAILABLE, 1: State.END})
    # A base path that cannot be read is no reason to unload what answers.
    base.rename(base.with_name("away"))
    manager.poll()
    assert ask(manager) == 2.0
    base.mkdir()
    manager.poll()  # now it can be read, and nothing is in it
    wait_for(lambda: states(manager)[2] == State.END)


def test_a_half_copied_version_does_not_disturb_and_is_tried_again(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager(max_num_load_retries=100)
    manager.apply(server_config(model_config("toy", base)))
    half = base / "2"
    half.mkdir()
    pb = (saved / "2" / "saved_model.pb").read_bytes()
    (half / "saved_model.pb").write_bytes(pb[: len(pb) // 2])
    manager.poll()
    wait_for(lambda: states(manager).get(2) == State.LOADING)
    time.sleep(0.3)
    assert states(manager)[2] == State.LOADING
    assert ask(manager) == 1.0
    shutil.copytree(saved / "2" / "variables", half / "variables")
    (half / "saved_model.pb").write_bytes(pb)
    wait_for(lambda: states(manager) == {2: State.AVAILABLE, 1: State.END})
    assert ask(manager) == 2.0


def test_a_broken_version_ends_with_its_error_and_the_old_one_serves(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager(max_num_load_retries=1)
    manager.apply(server_config(model_config("toy", base)))
    (base / "2").mkdir()
    manager.poll()
    wait_for(lambda: states(manager).get(2) == State.END)
    broken = manager.states(spec_of(2))[0]
    assert broken.error.code.name == "NOT_FOUND"
    assert str(base / "2") in broken.error.message
    assert ask(manager) == 1.0
    assert manager.ready()


def test_labels(saved, base, make_manager):
    put(saved, base, 1)
    put(saved, base, 2)
    manager = make_manager()
    refused = "Request to assign label to version 1 of model toy, which is not currently available"
    with pytest.raises(StatusError, match=f"{refused}.*; --allow_version_labels_for_un") as caught:
        manager.apply(labelled(base, [1, 2], stable=1))
    assert caught.value.code.name == "FAILED_PRECONDITION"
    manager.apply(labelled(base, [1, 2]))
    wait_for(lambda: states(manager) == {2: State.AVAILABLE, 1: State.AVAILABLE})
    manager.apply(labelled(base, [1, 2], stable=1, canary=2))
    assert ask(manager, spec_of(label="stable")) == 1.0
    assert ask(manager, spec_of(label="canary")) == 2.0
    assert ask(manager) == 2.0
    with pytest.raises(StatusError, match="Unrecognized servable version label: other"):
        ask(manager, spec_of(label="other"))
    with pytest.raises(StatusError, match=r"version 3 of model toy, which is not currently"):
        manager.apply(labelled(base, [1, 2], stable=3))
    assert ask(manager, spec_of(label="stable")) == 1.0  # the old configuration holds
    manager.apply(labelled(base, [2], stable=2))
    assert ask(manager, spec_of(label="stable")) == 2.0
    wait_for(lambda: states(manager)[1] == State.END)


def test_labels_of_versions_that_come_later(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager(allow_labels_for_unavailable=True)
    manager.apply(labelled(base, [1, 2], canary=2))
    missing = r"Servable not found for request: Specific\(toy, 2\)"
    with pytest.raises(StatusError, match=missing):
        ask(manager, spec_of(label="canary"))
    put(saved, base, 2)
    manager.poll()
    wait_for(lambda: states(manager).get(2) == State.AVAILABLE)
    assert ask(manager, spec_of(label="canary")) == 2.0
    with pytest.raises(StatusError, match=r"version 3 of model toy.* inference$"):  # it would move
        manager.apply(labelled(base, [1, 2], canary=3))


def test_the_whole_configuration_is_replaced(saved, base, tmp_path, make_manager):
    put(saved, base, 1)
    other = tmp_path / "other"
    other.mkdir()
    put(saved, other, 3)
    manager = make_manager()
    manager.apply(server_config(model_config("toy", base)))
    request = model_management_pb2.ReloadConfigRequest()
    request.config.CopyFrom(server_config(model_config("second", other)))
    response = reload_config(manager, request)
    assert response.HasField("status")
    assert response.status.error_code == 0
    second = model_pb2.ModelSpec(name="second")
    assert ask(manager, second) == 3.0
    wait_for(lambda: states(manager)[1] == State.END)
    with pytest.raises(StatusError, match=r"Servable not found for request: Latest\(toy\)"):
        ask(manager)
    manager.apply(server_config(model_config("second", other), model_config("toy", base)))
    assert ask(manager) == 1.0


def test_a_reload_that_cannot_be_done(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager(max_num_load_retries=0)
    manager.apply(server_config(model_config("toy", base)))
    with pytest.raises(StatusError, match="Only ModelConfigList is currently supported"):
        reload_config(manager, model_management_pb2.ReloadConfigRequest())
    toy = model_config("toy", base)
    for configs, message in (
        ([toy, toy], "Illegal to list model toy multiple times in config list"),
        ([model_config("", base)], "Expected every model to have a name"),
        ([model_config("m", "m")], "Expected model m to have an absolute path or URI"),
        ([model_config("m", "../m")], "Expected model m to have an absolute path or URI"),
    ):
        with pytest.raises(StatusError, match=message):
            manager.apply(server_config(*configs))
    both, neither, of_a_type = (model_config("toy", base) for _ in range(3))
    both.model_type = ModelType.TENSORFLOW
    neither.model_platform = of_a_type.model_platform = ""
    of_a_type.model_type = ModelType.OTHER
    for config, message in (
        (both, r"Illegal setting both ModelServerConfig::model_type \(deprecated\) and"),
        (neither, r"Illegal setting neither ModelServerConfig::model_type \(deprecated\) nor"),
        (of_a_type, "ModelServerConfig::model_type choice 2 not supported."),
    ):
        with pytest.raises(StatusError, match=message):
            manager.apply(server_config(config))
    of_a_type.model_type = ModelType.TENSORFLOW
    manager.apply(server_config(of_a_type))
    other = model_config("toy", base)
    other.model_platform = "torch"
    with pytest.raises(StatusError, match="Model toy requests unsupported platform torch"):
        manager.apply(server_config(other))
    assert ask(manager) == 1.0
    (base.parent / "empty" / "1").mkdir(parents=True)
    broken = model_config("m", base.parent / "empty")
    with pytest.raises(StatusError, match=r"1 servable\(s\) did not become available: \{\{\{name"):
        manager.apply(server_config(toy, broken))
    with pytest.raises(StatusError, match="Models are still loading") as caught:
        manager.apply(server_config(toy, model_config("n", base.parent / "none")), timeout_s=0.1)
    assert caught.value.code.name == "DEADLINE_EXCEEDED"
    assert ask(manager) == 1.0


def test_a_wrong_base_path_is_corrected_by_the_next_reload(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager()
    with ThreadPoolExecutor(1) as threads:
        wrong = server_config(model_config("toy", base.parent / "tyo"))
        waiting = threads.submit(manager.apply, wrong)
        wait_for(lambda: manager.knows("toy"))
        manager.apply(wrong, wait=False)  # as the look at a file that has not changed does
        still = not waiting.done()
        manager.apply(server_config(model_config("toy", base)), timeout_s=30)
        assert still
        assert ask(manager) == 1.0
        with pytest.raises(StatusError, match="Another configuration came while toy was load"):
            waiting.result(30)


def test_what_waits_for_a_model_that_never_comes_ends(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager()
    request = model_management_pb2.ReloadConfigRequest()
    request.config.CopyFrom(server_config(model_config("n", base.parent / "none")))
    there = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        # Each that comes takes the place of the one before, which tells its client.
        waiting = [threads.submit(reload_config, manager, request) for _ in range(3)]
        wait_for(lambda: sum(each.done() for each in waiting) == 2)
        rules = ReloadRules(timeout_s=0.2)
        late = r"Models are still loading; 0.2 s are over \(--reload_timeout_in_ms\)\."
        with pytest.raises(StatusError, match=late):
            reload_config(manager, request, rules)
        with pytest.raises(StatusError, match=r"Models are still loading\.$"):  # the client's time
            reload_config(manager, request, rules, timeout_s=0.1)
        waiting.append(
            threads.submit(reload_config, manager, request, still_wanted=lambda: not there.is_set())
        )
        wait_for(lambda: sum(each.done() for each in waiting) == 3)
        there.set()
        codes = [each.exception(30).code.name for each in waiting]
    assert codes == ["ABORTED"] * 3 + ["CANCELLED"]
    manager.apply(server_config(model_config("toy", base)))
    assert ask(manager) == 1.0


@pytest.mark.parametrize(
    ("rules", "path", "message"),
    [
        (ReloadRules(allowed=False), "/models/m", r"HandleReloadConfigRequest is off \(--allow_r"),
        (ReloadRules(base_paths=("/models/",)), "/models/m", None),
        (ReloadRules(base_paths=("/x", "gs://b/models")), "gs://b/models/m", None),
        (ReloadRules(base_paths=("/",)), "/anything", None),
        (ReloadRules(base_paths=("/models",)), "/models", None),
        (ReloadRules(base_paths=("/models",)), "/models2", "model m must lie in --reload_base_p"),
        (ReloadRules(base_paths=("/models",)), "/models/../etc", "Received: /models/../etc"),
        (ReloadRules(base_paths=("gs://b/m",)), "gs://b/m/../n", "must lie in"),
        (ReloadRules(base_paths=("gs://b/m",)), "/gs:/b/m", "must lie in"),
    ],
)
def test_what_a_reload_may_do(rules, path, message):
    request = model_management_pb2.ReloadConfigRequest()
    request.config.CopyFrom(server_config(model_config("m", path)))
    if message is None:
        return rules.check(request)
    with pytest.raises(StatusError, match=message) as caught:
        rules.check(request)
    assert caught.value.code.name == "PERMISSION_DENIED"


def test_a_broken_version_is_loaded_from_the_path_of_the_next_reload(saved, base, make_manager):
    put(saved, base, 1)
    (base.parent / "tyo" / "1").mkdir(parents=True)
    manager = make_manager(max_num_load_retries=0)
    with pytest.raises(StatusError, match="did not become available"):
        manager.apply(server_config(model_config("toy", base.parent / "tyo")))
    manager.apply(server_config(model_config("toy", base)))
    assert ask(manager) == 1.0


def test_a_version_that_is_tried_again_is_loaded_from_where_it_lies_now(saved, base, make_manager):
    put(saved, base, 1)
    (base.parent / "tyo" / "1").mkdir(parents=True)
    manager = make_manager(max_num_load_retries=100)
    manager.apply(server_config(model_config("toy", base.parent / "tyo")), wait=False)
    wait_for(lambda: manager.loads())
    manager.apply(server_config(model_config("toy", base)), timeout_s=30)
    assert ask(manager) == 1.0


def test_a_base_path_that_cannot_be_listed_keeps_no_other_model_away(saved, base, make_manager):
    put(saved, base, 1)
    manager = make_manager()
    toy, unreadable = model_config("toy", base), model_config("m", "nosuch://bucket/m")
    manager.apply(server_config(unreadable), wait=False)
    manager.apply(server_config(unreadable, toy))
    assert ask(manager) == 1.0


def test_a_version_that_cannot_be_loaded_leaves_nothing_in_memory(saved, base, make_manager):
    put(saved, base, 1)
    extra = base / "1" / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as requests:
        requests.write(b"\xff")  # is no request

    def runners():  # those of other tests in this process too
        gc.collect()
        return sum(isinstance(each, SignatureRunner) for each in gc.get_objects())

    before, manager = runners(), make_manager(max_num_load_retries=0)
    with pytest.raises(StatusError, match="did not become available"):
        manager.apply(server_config(model_config("toy", base)))
    assert runners() <= before


def test_a_version_is_loaded_from_its_directory_whatever_its_zeros(saved, base, make_manager):
    shutil.copytree(saved / "1", base / "1")
    shutil.copytree(saved / "2", base / "00000000000000000000002")
    manager = make_manager()
    manager.apply(server_config(model_config("toy", base)))
    assert states(manager) == {2: State.AVAILABLE}
    assert ask(manager) == ask(manager, spec_of(2)) == 2.0
    # Of two directories of one version the last by name is served.
    shutil.copytree(saved / "3", base / "01")
    manager.apply(labelled(base, [1]))
    wait_for(lambda: states(manager).get(1) == State.AVAILABLE)
    assert ask(manager) == 1.0
    shutil.rmtree(base / "1")
    shutil.rmtree(base / "01")
    manager.poll()
    wait_for(lambda: states(manager)[1] == State.END)
    shutil.copytree(saved / "3", base / "01")
    manager.poll()
    wait_for(lambda: states(manager)[1] == State.AVAILABLE)
    assert ask(manager) == 3.0


def test_policies(saved, base, make_manager):
    for version in (1, 2, 3):
        put(saved, base, version)
    (base / "no version").mkdir()
    Path(base, "4").write_text("a file")
    latest, everything = model_config("toy", base), model_config("toy", base)
    latest.model_version_policy.latest.num_versions = 2
    everything.model_version_policy.all.SetInParent()
    manager = make_manager()
    manager.apply(server_config(latest))
    wait_for(lambda: states(manager).get(2) == State.AVAILABLE)
    manager.apply(server_config(everything))
    wait_for(lambda: states(manager).get(1) == State.AVAILABLE)
    manager.apply(labelled(base, [1, 7]))
    wait_for(lambda: states(manager)[3] == State.END)
    assert ask(manager) == 1.0
