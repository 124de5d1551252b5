"""The script that runs TensorFlow Serving's integration test, on a checkout of our own making.

Its one test file asks as upstream's does: it finds server and models by the folder that bazel
would lay out, starts `tensorflow_model_server`, and compares answers over real sockets.
"""

import runpy
import textwrap

import pytest
from benchmark_script import BENCHMARKS
from toy_models import save_toy

CASES = """
    import json, os, socket, subprocess, time, unittest, urllib.error, urllib.request
    from tensorflow.python.platform import flags
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.model_servers.test_util import helper

    class TensorflowModelServerTest(unittest.TestCase):
        def test_answers(self):
            root = os.path.join(os.environ["TEST_SRCDIR"], "tf_serving/tensorflow_serving")
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            models = os.path.join(root, "servables/tensorflow/testdata/toy")
            server = os.path.join(root, "model_servers/tensorflow_model_server")
            process = subprocess.Popen(
                [server, "--port=0", f"--rest_api_port={port}", "--model_base_path=" + models]
            )
            try:
                url = f"http://localhost:{port}/v1/models/default"
                ask = urllib.request.Request(url + ":predict", b'{"inputs": [[2.0], [3.0]]}')
                self.assertEqual(helper.call(ask), {"outputs": [[4.0], [6.0]]})
                status = helper.call(url)["model_version_status"][0]
                self.assertEqual((status["version"], status["state"]), ("123", "AVAILABLE"))
            finally:
                process.kill()
                process.wait()

        def test_fails(self):
            self.assertEqual(os.path.isdir(flags.FLAGS.test_tmpdir), "a folder")

        @unittest.skip("not today")
        def test_waits(self):
            pass

        def test_session(self):
            raise AssertionError("is none of upstream's cases")
"""
HELPER = """
    import json, time, urllib.error, urllib.request

    def call(request):
        for _ in range(600):
            try:
                return json.load(urllib.request.urlopen(request))
            except urllib.error.URLError:
                time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    servers = root / "tensorflow_serving" / "model_servers"
    (servers / "test_util").mkdir(parents=True)
    test = servers / "tensorflow_model_server_test.py"
    test.write_text(textwrap.dedent(CASES), encoding="utf-8")
    (servers / "test_util" / "helper.py").write_text(textwrap.dedent(HELPER), encoding="utf-8")
    save_toy(root / "tensorflow_serving/servables/tensorflow/testdata/toy/00000123", 2.0)
    return root


def test_each_case_is_told(checkout, tmp_path):
    run = runpy.run_path(str(BENCHMARKS / "upstream_server_test.py"))["run"]
    outcomes = run(checkout, [], tmp_path / "log")
    assert [(each["case"], each["outcome"]) for each in outcomes] == [
        ("test_answers", "passed"),
        ("test_fails", "failed"),
        ("test_waits", "skipped"),
    ], (tmp_path / "log").read_text()
    assert outcomes[1]["why"] == "True != 'a folder'"
