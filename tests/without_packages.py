"""A machine on which packages of an extra are not installed."""

from importlib.metadata import PackageNotFoundError, version

from tfde.environment import require_extra


def without_packages(monkeypatch, *names):
    """Makes tfde find these distributions missing."""

    def known(name):
        if name in names:
            raise PackageNotFoundError(name)
        return version(name)

    require_extra.cache_clear()
    monkeypatch.setattr("tfde.environment.version", known)
