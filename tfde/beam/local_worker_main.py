"""A worker process of the local runner: Beam's own, but silent.

What it logs and what it fails of goes to the process that gave the job, which tells it. Running as
a module of ours, it also imports `tfde` before anything that could touch `tf.keras`.
"""

from __future__ import annotations

import logging
import os
import sys

# A handler that does nothing keeps Beam, which logs while it is imported, from adding one that
# prints every record here too.
logging.getLogger().addHandler(logging.NullHandler())

from apache_beam.runners.worker import sdk_worker_main  # noqa: E402

if __name__ == "__main__":
    if os.environ.get("TFDE_TRACEBACK") != "1":
        # Beam prints the traceback of each failed step before it sends it.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sdk_worker_main.main(sys.argv)
