"""Models of a bundle, which change their version together."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tensorflow_serving.apis import model_pb2
from toy_models import put, wait_for

from tfde.serving.server.model_manager import State
from tfde.serving.server.versions import model_config, server_config


@pytest.fixture
def pair(saved, tmp_path, make_manager):
    """Two models that belong together, in version 1; versions of both appear by `put`."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        put(saved, tmp_path / name, 1)
    manager = make_manager(one_version=True)
    manager.apply(server_config(*(model_config(n, tmp_path / n) for n in ("first", "second"))))
    return manager, tmp_path / "first", tmp_path / "second"


def versions_of(manager):
    with manager.use_all(["first", "second", "none of them"]) as servables:
        assert servables.keys() == {"first", "second"}
        return {servable.version for servable in servables.values()}


def test_models_that_belong_together_change_their_version_together(saved, pair):
    manager, first, second = pair
    put(saved, first, 2)
    manager.poll()
    assert versions_of(manager) == {1}
    spec = model_pb2.ModelSpec(name="first")
    assert [each.version for each in manager.states(spec)] == [1]  # not even begun
    seen, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            seen.append(tuple(versions_of(manager)))
            with manager.use(spec) as latest:
                seen.append((latest.version,))

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client) for _ in range(4)]
        put(saved, second, 2)
        wait_for(lambda: manager.poll() or versions_of(manager) == {2})
        wait_for(lambda: manager.states(spec)[1].state == State.END)
        for base in (first, second):  # and back again
            (base / "2").rename(base / "2.withdrawn")
            manager.poll()
        wait_for(lambda: versions_of(manager) == {1})
        wait_for(lambda: manager.states(spec)[0].state == State.END)
        stop.set()
        for each in clients:
            each.result()
    assert set(seen) == {(1,), (2,)}


def test_a_version_that_one_of_them_cannot_load_does_not_come(saved, pair):
    manager, first, second = pair
    put(saved, first, 2)
    (second / "2").mkdir()
    manager.poll()
    spec = model_pb2.ModelSpec(name="second")
    failed = lambda: {v.version: v.error for v in manager.states(spec)}.get(2)  # noqa: E731
    wait_for(failed)
    assert versions_of(manager) == {1}
    with manager.use(model_pb2.ModelSpec(name="first")) as servable:
        assert servable.version == 1
    put(saved, first, 3)
    put(saved, second, 3)
    wait_for(lambda: manager.poll() or versions_of(manager) == {3})


@pytest.mark.parametrize("gives_up", [True, False], ids=["failed", "tried again"])
@pytest.mark.parametrize("broken", [0, 1], ids=["first", "second"])
def test_a_withdrawn_version_takes_no_good_one_with_it(saved, pair, broken, gives_up):
    manager, *bases = pair
    put(saved, bases[1 - broken], 2)
    (bases[broken] / "2").mkdir()
    manager.poll()

    def states(base):
        found = manager.states(model_pb2.ModelSpec(name=base.name))
        return {version.version: version for version in found}

    wait_for(lambda: states(bases[1 - broken])[2].state == State.AVAILABLE)
    if gives_up:
        wait_for(lambda: states(bases[broken])[2].error)
    for base in bases:
        shutil.rmtree(base / "2")
    manager.poll()
    assert [states(base)[1].state for base in bases] == [State.AVAILABLE] * 2
    wait_for(lambda: all(states(base)[2].state == State.END for base in bases))
    assert versions_of(manager) == {1}


def test_models_stay_where_the_version_that_is_asked_for_goes(saved, pair):
    """As a server with an index of its own asks for one version."""
    manager, *bases = pair
    for base in bases:
        put(saved, base, 2)
    configs = [model_config(base.name, base) for base in bases]
    for config in configs:
        config.model_version_policy.specific.versions.append(2)
    manager.apply(server_config(*configs), wait=False)
    wait_for(lambda: versions_of(manager) == {2})
    for base in bases:
        shutil.rmtree(base / "2")
    for _ in range(3):
        manager.poll()
    assert versions_of(manager) == {2}
