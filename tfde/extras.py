"""The packages that not every installation has: which extra of tfde brings them, and which lack.

The metadata of what is installed is the only list of them; setup.cfg writes it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement

from tfde.errors import MissingExtraError

DISTRIBUTION = "tfde"


@cache  # what is there stays; what is missing is looked for again
def require_extra(name: str, what: str) -> None:
    """Refuses to go on without the packages of an extra; called before they are imported.

    Args:
        name: The extra.
        what: What needs it: the beginning of the message.

    Raises:
        MissingExtraError: one of its packages is not installed.
    """
    missing = missing_packages(DISTRIBUTION, name)
    if missing:
        raise MissingExtraError(
            f"{what} needs the extra '{name}': pip install '{DISTRIBUTION}[{name}]'."
            f" Received: {', '.join(missing)} not installed"
        )


def extra_names(distribution: str) -> list[str]:
    """Returns the extras of a distribution, sorted."""
    return sorted(metadata(distribution).get_all("Provides-Extra") or ())


def requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """Returns what a distribution asks for here.

    Args:
        distribution: Its name.
        extra: What this extra asks for beyond what is always asked for; "" for the latter.
    """
    found = []
    for requirement in map(Requirement, requires(distribution) or ()):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        asked = marker is None or marker.evaluate({"extra": extra})
        if asked and always != bool(extra):
            found.append(requirement)
    return found


def missing_packages(distribution: str, extra: str) -> list[str]:
    """Returns the packages of an extra that are not installed, perhaps as `name[extra]`."""
    missing = []
    for requirement in requirements(distribution, extra):
        try:
            version(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement.name)
            continue
        for inner in sorted(requirement.extras):
            if missing_packages(requirement.name, inner):
                missing.append(f"{requirement.name}[{inner}]")
    return missing
