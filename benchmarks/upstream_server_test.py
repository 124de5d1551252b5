"""Does the model server pass the integration test of TensorFlow Serving itself?

Runs `tensorflow_model_server_test.py` out of a checkout of tensorflow/serving, with its models
and over real sockets, against `tfde-model-server`: what bazel would lay out is put together in a
temporary folder, and the compiled protos are those of the package tensorflow-serving-api.

    git clone -b r2.20 https://github.com/tensorflow/serving
    python benchmarks/upstream_server_test.py --checkout serving
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = "tensorflow_serving/model_servers/tensorflow_model_server"
# Runs in a process of its own: the test wants TensorFlow's flags, and ends its servers at exit.
CHILD = """
import json, os, sys, unittest
checkout, temp, results, *names = sys.argv[1:]
sys.argv = ["test", "--test_tmpdir=" + temp]
import tensorflow as tf
import tensorflow_serving
tensorflow_serving.__path__.append(checkout + "/tensorflow_serving")
from absl import flags
from tensorflow_serving.model_servers import tensorflow_model_server_test as upstream
from tensorflow.python.platform import googletest  # defines --test_tmpdir
upstream.flags.os = os  # one case looks for it there
flags.FLAGS(sys.argv)

class Result(unittest.TextTestResult):
    def _tell(self, test, outcome, why=""):
        with open(results, "a") as file:
            name = test.id().rpartition(".")[2]
            print(json.dumps({"case": name, "outcome": outcome, "why": why}), file=file)
    def addSuccess(self, test):
        super().addSuccess(test)
        self._tell(test, "passed")
    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._tell(test, "failed", str(err[1]))
    def addError(self, test, err):
        super().addError(test, err)
        self._tell(test, "failed", str(err[1]))
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._tell(test, "skipped", reason)

case = upstream.TensorflowModelServerTest
loader = unittest.TestLoader()
names = names or loader.getTestCaseNames(case)
# test_session is a helper of TensorFlow's TestCase that unittest takes for a case.
suite = unittest.TestSuite(case(name) for name in names if name != "test_session")
unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
"""


def lay_out(checkout: Path, root: Path) -> None:
    """Puts together what the test looks for: a server by its name, and the models beside it."""
    tree = root / "tf_serving"
    server = tree / SERVER
    server.parent.mkdir(parents=True)
    ours = Path(sys.executable).with_name("tfde-model-server")
    server.write_text(f'#!/bin/sh\nexec "{ours}" "$@"\n', encoding="utf-8")
    server.chmod(0o755)
    servables = tree / "tensorflow_serving" / "servables"
    servables.symlink_to(checkout.resolve() / "tensorflow_serving" / "servables")


def run(checkout: Path, names: list[str], log: Path) -> list[dict[str, str]]:
    """Returns what came of each case, in their order.

    Args:
        checkout: A checkout of tensorflow/serving.
        names: The cases to run; none named means all.
        log: Where the output of the test and of its servers goes.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        lay_out(checkout, root)
        results = root / "results"
        results.touch()
        # The test and its models are of Keras 2; a grandchild's colours would end up in the log.
        environment = os.environ | {"TEST_SRCDIR": folder, "TF_USE_LEGACY_KERAS": "1"}
        arguments = [str(checkout.resolve()), folder, str(results), *names]
        with log.open("wb") as output:
            command = [sys.executable, "-c", CHILD, *arguments]
            subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=True
            )
        return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Runs the cases and prints a table of them; fails if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="of tensorflow/serving")
    parser.add_argument("--log", type=Path, default=Path("upstream_server_test.log"))
    parser.add_argument("case", nargs="*", help="names of cases; all if none is given")
    args = parser.parse_args()
    outcomes = run(args.checkout, args.case, args.log)
    for outcome in outcomes:
        print(f"{outcome['outcome']:8}{outcome['case']:52}{outcome['why'].strip()[:160]!r}")
    passed = sum(outcome["outcome"] == "passed" for outcome in outcomes)
    print(f"{passed} of {len(outcomes)} cases passed; all output is in {args.log}")
    sys.exit(any(outcome["outcome"] == "failed" for outcome in outcomes))


if __name__ == "__main__":
    main()
