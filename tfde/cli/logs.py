"""What long commands say on stderr while they work."""

from __future__ import annotations

import os

_HANDLER = "tfde commands"


def quiet_libraries() -> None:
    """Keeps C++ from stderr, before anything of it is imported: its errors reach us as exceptions.

    What its log says besides is about GPUs that are not there, and once more about taken ports.
    It calls that errors, so level 2, which many set to have quiet, is none; 0 and 1 stay.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "2":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def limit_logs() -> None:
    """Lets a server repeat a warning once a minute at most, with how often it would have.

    Whoever sends nonsense, or takes all descriptors, must not fill the disk.
    """
    import logging

    from tfde.serving.server.log_limit import RepeatFilter

    places: list[logging.Filterer] = [logging.getLogger(n) for n in ("asyncio", "uvicorn.error")]
    # A logger's filters do not see what comes from those below it; its handlers' do. Handlers of
    # others get everything.
    ours = [h for h in logging.getLogger("tfde").handlers if h.get_name() == _HANDLER]
    for place in [*places, *ours]:
        if not any(isinstance(known, RepeatFilter) for known in place.filters):
            place.addFilter(RepeatFilter())


def show_logs() -> None:
    """Shows the log lines of tfde on the current stderr, once each; of TensorFlow only errors."""
    import logging  # here, for `tfde --help` must be instant

    handler = logging.StreamHandler()
    handler.set_name(_HANDLER)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("tfde")
    for earlier in [old for old in logger.handlers if old.get_name() == handler.get_name()]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
