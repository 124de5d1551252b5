"""One version of a model, the states it goes through, and which one a request asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from grpc import StatusCode
from tensorflow_serving.apis import get_model_status_pb2, model_pb2

from tfde.serving.server.inference import Servable
from tfde.serving.server.signature_runner import SignatureRunner
from tfde.serving.server.status import StatusError, invalid_argument, not_found

State = get_model_status_pb2.ModelVersionStatus


class VersionState(NamedTuple):
    """What a client may know of a version; `error` is why it is not there."""

    version: int
    state: int
    error: StatusError | None


class ServedVersion:
    """A version on its way from START to END; whoever holds the manager's lock may change it.

    Args:
        name: Of the model.
        number: Of the version.
        path: Directory of the SavedModel.
    """

    def __init__(self, name: str, number: int, path: str) -> None:
        self.name = name
        self.number = number
        self.path = path
        self.state: int = State.START
        self.error: StatusError | None = None
        self.runner: SignatureRunner | None = None
        self.users = 0
        self.aspired = True

    def servable(self) -> Servable:
        """Returns what answers requests."""
        if self.runner is None:
            raise not_found(f"Servable not found for request: Specific({self.name})")
        return Servable(self.name, self.number, self.runner)

    def public_state(self) -> VersionState:
        """Returns what a client may know."""
        return VersionState(self.number, self.state, self.error)

    def reason(self) -> str:
        """Returns why it is not there, as a reload's error says it."""
        error = self.error
        due = f" due to error: {error.code.name}: {error.message}" if error else ""
        return f"{{name: {self.name} version: {self.number}}}{due}"

    def __str__(self) -> str:
        return f"{self.name} version {self.number}"


def available(versions: Mapping[int, ServedVersion]) -> dict[int, ServedVersion]:
    """Returns those versions of a model that answer."""
    return {n: version for n, version in versions.items() if version.state == State.AVAILABLE}


def failed(versions: Mapping[int, ServedVersion]) -> list[ServedVersion]:
    """Returns the wanted versions that nothing more can be hoped from, if that is all of them."""
    wanted = [version for version in versions.values() if version.aspired]
    ended = [version for version in wanted if version.state == State.END]
    return ended if len(ended) == len(wanted) else []


def failure_of(versions: Sequence[ServedVersion]) -> StatusError:
    """Returns why versions did not come, as a reload's error says it."""
    reasons = "".join(f"{{{version.reason()}}}, " for version in versions)
    message = f"{len(versions)} servable(s) did not become available: {{{reasons}}}"
    return StatusError(StatusCode.UNKNOWN, message)


def answered(versions: Mapping[int, ServedVersion]) -> bool:
    """Whether a version that is wanted answers, or none is wanted."""
    wanted = [version for version in versions.values() if version.aspired]
    return not wanted or any(version.state == State.AVAILABLE for version in wanted)


def states(versions: Mapping[int, ServedVersion], spec: model_pb2.ModelSpec) -> list[VersionState]:
    """Returns the state of the version asked for, or of all that there were, latest first.

    Raises:
        StatusError: NOT_FOUND for an unknown model or version.
    """
    if spec.HasField("version"):
        number = spec.version.value
        if number not in versions:
            raise not_found("Could not find version ", number, " of model ", spec.name)
        return [versions[number].public_state()]
    if not versions:
        raise not_found("Could not find any versions of model ", spec.name)
    return [versions[number].public_state() for number in sorted(versions, reverse=True)]


def common(models: Mapping[str, Mapping[int, ServedVersion]], names: Collection[str]) -> set[int]:
    """Returns the versions that are available of all these models."""
    numbers = [set(available(models.get(name, {}))) for name in names]
    return set.intersection(*numbers) if numbers else set()


def latest(
    numbers: set[int],
    models: Mapping[str, Mapping[int, ServedVersion]],
    together: Collection[str],
) -> int:
    """Returns the latest of some versions, one that is whole before others.

    Args:
        numbers: The versions, at least one.
        models: All versions by model and number.
        together: Models that belong together: a version is whole when it is available of all of
            them which have any.
    """
    there = [name for name in together if available(models.get(name, {}))]
    return max(numbers & common(models, there) or numbers)


def version_asked_for(
    spec: model_pb2.ModelSpec,
    labels: Mapping[str, Mapping[str, int]] | None,
    models: Mapping[str, Mapping[int, ServedVersion]],
    together: Collection[str],
) -> ServedVersion:
    """Returns the version that a request names by number or label, or the latest.

    Args:
        spec: What the request says.
        labels: By model and label; `None` before there is a configuration.
        models: All versions by model and number.
        together: As for `latest`.

    Raises:
        StatusError: INVALID_ARGUMENT for no name or an unknown label, UNAVAILABLE for a label
            before there are any, NOT_FOUND where no such version answers.
    """
    if not spec.name:
        raise invalid_argument("ModelSpec has no name specified.")
    number = _number_asked_for(spec, labels)
    there = available(models.get(spec.name, {}))
    if number is None:
        if not there:
            raise not_found("Servable not found for request: Latest(", spec.name, ")")
        return there[latest(set(there), models, together)]
    if number not in there:
        raise not_found("Servable not found for request: Specific(", spec.name, ", ", number, ")")
    return there[number]


def _number_asked_for(
    spec: model_pb2.ModelSpec, labels: Mapping[str, Mapping[str, int]] | None
) -> int | None:
    if not spec.version_label:
        return spec.version.value if spec.HasField("version") else None
    label = spec.version_label
    if labels is None:
        raise StatusError(StatusCode.UNAVAILABLE, f"Model labels does not init yet.{label}")
    if label not in labels.get(spec.name, {}):
        raise invalid_argument("Unrecognized servable version label: ", label)
    return labels[spec.name][label]
