"""A worker process of the local runner: Beam's own, without its log on stderr.

Running as a module of ours, it also imports `tfde` before anything that could touch `tf.keras`.
"""

from __future__ import annotations

import logging
import sys

# Records go to the process that gave the job. A handler that does nothing keeps Beam, which logs
# while it is imported, from adding one that prints them here too.
logging.getLogger().addHandler(logging.NullHandler())

from apache_beam.runners.worker import sdk_worker_main  # noqa: E402

if __name__ == "__main__":
    sdk_worker_main.main(sys.argv)
