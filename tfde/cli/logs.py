"""What long commands say on stderr while they work."""

from __future__ import annotations

import logging


def show_logs() -> None:
    """Shows the log lines of tfde; of TensorFlow only errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("tfde")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
