"""Which models are served, in which versions, and what state each version is in.

A new version loads beside the old one, which is unloaded once the new one answers and its own
last request has ended (TensorFlow Serving's availability-preserving policy). Models that belong
together can be served so that all are of one version at any moment (`one_version`).
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from grpc import StatusCode
from tensorflow_serving.apis import model_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tfde.serving.server.config_changes import check_platforms, checked_labels, models_of
from tfde.serving.server.inference import Servable
from tfde.serving.server.load_order import LoadOrder
from tfde.serving.server.loader import Loader
from tfde.serving.server.memory import give_back_memory
from tfde.serving.server.served_version import (
    ServedVersion,
    State,
    VersionState,
    answered,
    available,
    common,
    failed,
    failure_of,
    latest,
    states,
    version_asked_for,
)
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError, not_found
from tfde.serving.server.versions import WantedVersions

_LOOK_S = 0.5  # between looks whether a configuration is still wanted
_log = logging.getLogger(__name__)


class ModelManager:
    """Loads and unloads versions as configuration and file system ask; finds them for requests.

    Args:
        loader: Loads a version.
        num_load_threads: Versions that load at a time.
        max_num_load_retries: How often a failed load is tried again.
        load_retry_interval_s: Seconds before it is.
        allow_labels_for_unavailable: Whether a label that is new, or stays where it is, may
            name a version that is not available yet.
        one_version: Whether the models belong together, as those of a bundle: a version is loaded
            once all of them have it, is the latest once it is available of all of them, and the
            one before goes then.
        first: Models that load before all others, which begin when none of these loads any more.
    """

    def __init__(
        self,
        loader: Loader | None = None,
        *,
        num_load_threads: int = 4,
        max_num_load_retries: int = 5,
        load_retry_interval_s: float = 60.0,
        allow_labels_for_unavailable: bool = False,
        one_version: bool = False,
        first: Collection[str] = (),
    ) -> None:
        self._loader = loader or Loader()
        self._max_num_load_retries = max_num_load_retries
        self._load_retry_interval_s = load_retry_interval_s
        self._allow_labels_for_unavailable = allow_labels_for_unavailable
        self._one_version = one_version
        self._wanted = WantedVersions(one_version=one_version)
        self._pool = ThreadPoolExecutor(num_load_threads, "load")
        # Guards what follows; waited on for any change of a state.
        self._changed = threading.Condition()
        self._configs: dict[str, ModelConfig] = {}
        self._labels: dict[str, dict[str, int]] | None = None
        self._models: dict[str, dict[int, ServedVersion]] = {}
        self._awaited: set[str] = set()  # new models that have not come yet
        self._waiter: object = None  # the configuration that is waited for
        self._timers: set[threading.Timer] = set()
        self._order = LoadOrder(first)
        self._closed = False

    def apply(
        self,
        config: ModelServerConfig,
        *,
        wait: bool | Collection[str] = True,
        timeout_s: float | None = None,
        still_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Replaces the configuration and waits until every model that is new is available.

        Only one waits at a time: however many ask, no more than one thread is held.

        Args:
            config: Lists all models; those that are served and not in it are unloaded.
            wait: Whether to wait, or for which models.
            timeout_s: Seconds to wait for the new models; they go on loading after.
            still_wanted: Asked again and again while waiting; on a no it ends.

        Raises:
            StatusError: INVALID_ARGUMENT or FAILED_PRECONDITION, the configuration is impossible
                and the old one stays; UNKNOWN, a new model cannot be loaded; ABORTED, another
                configuration came while new models were waited for; DEADLINE_EXCEEDED; CANCELLED,
                it is wanted no more.
        """
        configs = models_of(config)
        if configs is None:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            check_platforms(self._configs, configs)
            labels = checked_labels(
                configs,
                self._labels or {},
                lambda name, number: number in self._available(name),
                allow_unavailable=self._allow_labels_for_unavailable,
            )
            new = {model.name: model for model in configs if self._is_new(model)}
            self._configs = {model.name: model for model in configs}
            self._labels = labels
            if wait:
                self._awaited |= set(new)
                waiter = self._waiter = object()
                if not isinstance(wait, bool):
                    new = {name: new[name] for name in wait if name in new}
            self._changed.notify_all()  # who waits for what is gone
        self.poll()
        if wait:
            self._await_models(new, waiter, deadline, still_wanted)

    def poll(self) -> None:
        """Looks at the file system once and starts the loads and unloads that follow."""
        with self._changed:
            configs = dict(self._configs)
        wanted = self._wanted.find(configs)
        with self._changed:
            names = sorted(set(self._models) | set(configs))
            for name in names:
                if name not in self._configs:
                    self._want(name, {})
                elif self._configs[name] is configs.get(name) and name in wanted:
                    self._want(name, wanted[name])
            self._act(names)  # when it is known of all models: some go together

    @contextmanager
    def use(self, spec: model_pb2.ModelSpec) -> Iterator[Servable]:
        """Holds the version that a request asks for; without a version or label, the latest.

        It is not unloaded before the block has ended.

        Raises:
            StatusError: INVALID_ARGUMENT for no name or an unknown label, NOT_FOUND for an
                unknown model or version.
        """
        with self._changed:
            version = version_asked_for(spec, self._labels, self._models, self._together())
            version.users += 1
        try:
            yield version.servable()
        finally:
            self._release([version])

    @contextmanager
    def use_all(self, names: Sequence[str]) -> Iterator[dict[str, Servable]]:
        """Holds one version of several models: the latest that is available of all of them.

        Args:
            names: The models; those that are not of the configuration are left out.

        Raises:
            StatusError: NOT_FOUND, the first is not of the configuration, or no version is there.
        """
        with self._changed:
            known = [name for name in names if name in self._configs]
            numbers = common(self._models, known) if names[0] in known else set()
            if not numbers:
                raise not_found("Servable not found for request: Latest(", names[0], ")")
            number = latest(numbers, self._models, self._together())
            versions = [self._models[name][number] for name in known]
            for version in versions:
                version.users += 1
        try:
            yield {version.name: version.servable() for version in versions}
        finally:
            self._release(versions)

    def states(self, spec: model_pb2.ModelSpec) -> list[VersionState]:
        """Returns the state of the version asked for, or of all that there were, latest first.

        A version label is ignored, as TensorFlow Serving does.

        Raises:
            StatusError: NOT_FOUND for an unknown model or version.
        """
        with self._changed:
            return states(self._models.get(spec.name, {}), spec)

    def knows(self, name: str) -> bool:
        """Whether there is or was a model of this name."""
        return name in self._configs or name in self._models

    def ready(self) -> bool:
        """Whether every model of the configuration has an available version."""
        return bool(self._configs) and not self.missing()

    def missing(self) -> list[str]:
        """Returns the models of the configuration that have no available version, sorted."""
        with self._changed:
            return sorted(name for name in self._configs if not self._available(name))

    def stalled_s(self) -> float:
        """Returns for how many seconds runs of some version have not got on."""
        return max((runner.progress.stalled_s() for runner in self._runners()), default=0.0)

    def loads(self) -> bool:
        """Whether a version loads just now."""
        with self._changed:
            return any(version.state == State.LOADING for version in self._versions())

    def runs(self) -> bool:
        """Whether a model runs just now."""
        return any(runner.progress.runs() for runner in self._runners())

    def close(self) -> None:
        """Unloads everything and loads nothing more; what still runs or loads is not waited for."""
        with self._changed:
            self._closed = True
            for timer in self._timers:
                timer.cancel()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for version in self._versions():
            runner, version.runner = version.runner, None
            if runner is not None:
                runner.close()

    def _release(self, versions: Iterable[ServedVersion]) -> None:
        with self._changed:
            for version in versions:
                version.users -= 1
                last = not version.users and version.state == State.UNLOADING
                if last and not self._closed:
                    self._pool.submit(self._unload, version)

    def _runners(self) -> list[SignatureRunner]:
        with self._changed:
            return [version.runner for version in self._versions() if version.runner is not None]

    def _versions(self) -> Iterable[ServedVersion]:
        return (version for versions in self._models.values() for version in versions.values())

    def _available(self, name: str) -> dict[int, ServedVersion]:
        return available(self._models.get(name, {}))

    def _together(self) -> Collection[str]:
        return self._configs if self._one_version else ()

    def _is_new(self, config: ModelConfig) -> bool:
        """Whether a model is new, has not come yet, or lies elsewhere than where none loaded."""
        old = self._configs.get(config.name)
        if old is None or config.name in self._awaited:
            return True
        return old.base_path != config.base_path and not self._available(config.name)

    def _await_models(
        self,
        new: dict[str, ModelConfig],
        waiter: object,
        deadline: float | None,
        still_wanted: Callable[[], bool],
    ) -> None:
        with self._changed:
            while not self._closed:
                missing = [name for name in sorted(new) if not self._available(name)]
                self._awaited -= set(new) - set(missing)
                lost = [
                    version for name in missing for version in failed(self._models.get(name, {}))
                ]
                if lost:
                    self._awaited -= {version.name for version in lost}
                    raise failure_of(lost)
                gone = [name for name, config in new.items() if self._configs.get(name) != config]
                if gone or (missing and self._waiter is not waiter):
                    raise StatusError(
                        StatusCode.ABORTED,
                        "Another configuration came while"
                        f" {', '.join(sorted(gone or missing))} was loading.",
                    )
                if not missing:
                    return
                if not still_wanted():
                    raise StatusError(StatusCode.CANCELLED, "The client has gone.")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise StatusError(StatusCode.DEADLINE_EXCEEDED, "Models are still loading.")
                self._changed.wait(_LOOK_S if left is None else min(left, _LOOK_S))

    def _want(self, name: str, paths: Mapping[int, str]) -> None:
        """Takes these as the versions to serve, by number (the lock is held)."""
        if self._closed:
            return
        versions = self._models.setdefault(name, {}) if paths else self._models.get(name, {})
        for number, path in sorted(paths.items()):
            version = versions.get(number)
            ended = version is not None and version.state == State.END
            if version is None or (ended and (not version.aspired or version.path != path)):
                versions[number] = ServedVersion(name, number, path)
                self._order.add(versions[number])
            elif version.state != State.AVAILABLE:
                version.path = path  # of its next load
        for number, version in versions.items():
            version.aspired = number in paths

    def _act(self, names: Iterable[str]) -> None:
        """Loads and unloads what follows from what is wanted of these (the lock is held)."""
        if self._closed:
            return
        self._begin()
        for name in names:
            self._quiesce(name)

    def _begin(self) -> None:
        """Loads what has its turn (the lock is held)."""
        for version in self._order.take_due(self._configs, self._models):
            self._pool.submit(self._load, version, self._max_num_load_retries)

    def _quiesce(self, name: str) -> None:
        """Unloads what is wanted no more, once what is wanted answers (the lock is held)."""
        names = sorted(self._together()) if name in self._together() else [name]
        if not all(answered(self._models.get(each, {})) for each in names):
            return
        for version in [v for each in names for v in self._models.get(each, {}).values()]:
            if version.state == State.AVAILABLE and not version.aspired:
                version.state = State.UNLOADING
                self._changed.notify_all()
                if not version.users:
                    self._pool.submit(self._unload, version)

    def _load(self, version: ServedVersion, retries: int) -> None:
        with self._changed:
            if self._closed or not version.aspired:
                version.state = State.END
                self._changed.notify_all()
                return
            version.state = State.LOADING
        started, path = time.monotonic(), version.path
        runner, failure = None, None
        try:
            runner = self._loader.load(version.name, version.number, path)
        except StatusError as error:
            # Without its traceback, whose frames hold the model that was begun.
            failure = StatusError(error.code, error.message)
        with self._changed:
            if version.path != path and version.aspired and not self._closed:
                self._pool.submit(self._load, version, self._max_num_load_retries)
            elif runner is not None and version.aspired and not self._closed:
                version.runner, version.state, version.error = runner, State.AVAILABLE, None
                _log.info("loaded %s in %.1f s", version, time.monotonic() - started)
                self._quiesce(version.name)
                runner = None
            elif failure is not None and retries and version.aspired and not self._closed:
                _log.error("%s cannot be loaded, trying again: %s", version, failure.message)
                self._later(version, retries - 1)
            else:
                version.state, version.error = State.END, failure
                if failure is not None:
                    _log.error("%s cannot be loaded: %s", version, failure.message)
            if not self._closed:
                self._begin()
            self._changed.notify_all()
        if runner is not None:  # wanted no more when it was there
            runner.close()

    def _later(self, version: ServedVersion, retries: int) -> None:
        def submit() -> None:
            with self._changed:
                self._timers.discard(timer)
                if not self._closed:
                    self._pool.submit(self._load, version, retries)

        timer = threading.Timer(max(0.0, self._load_retry_interval_s), submit)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def _unload(self, version: ServedVersion) -> None:
        runner, version.runner = version.runner, None
        if runner is not None:
            runner.close()
            del runner
            # A TensorFlow graph refers to itself: its constants would stay until Python looks
            # for such circles, which it does the more seldom the more memory there is.
            gc.collect()
            give_back_memory()
        with self._changed:
            version.state = State.END
            _log.info("unloaded %s", version)
            if version.aspired:  # again, since it began to go
                version.aspired = False
                versions = self._models[version.name].values()
                wanted = {each.number: each.path for each in versions if each.aspired}
                self._want(version.name, wanted | {version.number: version.path})
                self._act([version.name])
            self._changed.notify_all()
