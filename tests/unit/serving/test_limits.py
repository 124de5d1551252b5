"""The record of limits, what is measured of a request, and what stands between it and memory."""

import asyncio
import gzip
import json
import logging
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import input_pb2
from toy_models import repeated

from tfde.errors import ConfigError
from tfde.serving.application.admin import key_check
from tfde.serving.server.bounded_http import BoundedHttp, _uncompressed
from tfde.serving.server.calls import Call, begin_call, current_call
from tfde.serving.server.inference import _examples
from tfde.serving.server.limits import Limits
from tfde.serving.server.log_limit import RepeatFilter
from tfde.serving.server.request_size import check_protos, check_strings, encoded_texts
from tfde.serving.server.signature_runner import Progress
from tfde.serving.server.status import StatusError

SMALL = Limits(max_request_bytes=1000, max_texts=4, max_text_bytes=10, max_json_lists=5)


def test_limits_that_are_none():
    with pytest.raises(ConfigError, match=r"`--max_connections` must be at least 1. Received: 0"):
        Limits(max_connections=0)
    with pytest.raises(ConfigError, match=r"`--max_text_bytes` must be at least 0. Received: -1"):
        Limits(max_text_bytes=-1)


@pytest.mark.parametrize(
    "proto",
    [
        repeated(["red"], 16_000_000),
        repeated(["red"], 40),  # 24 bytes of a string, and its content
        repeated([1.0], 251),
        repeated([1], 2**40, 2**40),  # no number of 64 bits
        tf.make_tensor_proto(["x" * 990]),
    ],
    ids=["strings", "few strings", "floats", "beyond 64 bits", "one long"],
)
def test_a_few_bytes_do_not_stand_for_many(proto):
    rule = "the inputs must have at most 1000 bytes as tensors"
    with pytest.raises(StatusError, match=rule) as refused:
        check_protos({"x": proto}, SMALL)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


def test_the_inputs_count_together():
    half = repeated([1.0], 125)
    check_protos({"a": half, "b": half}, SMALL)
    with pytest.raises(StatusError, match="Received: 1004"):
        check_protos({"a": half, "b": half, "c": repeated([1.0], 1)}, SMALL)
    check_protos({"a": tensor_pb2.TensorProto(dtype=99)}, SMALL)  # told where it is read


def test_strings_are_counted_and_measured():
    check_strings({"text": np.array([b"x" * 10] * 4, object), "k": np.zeros(1000)}, SMALL)
    with pytest.raises(StatusError, match=r"`text` must have at most 4 strings.*Received: 5"):
        check_strings({"text": np.array([b""] * 5, object)}, SMALL)
    with pytest.raises(StatusError, match=r"`text.1` must have at most 10 bytes.*Received: 11"):
        check_strings({"text": np.array([b"", b"x" * 11], object)}, SMALL)
    check_strings(
        {"image": np.array([b"x" * 99] * 9, object)}, Limits(max_texts=0, max_text_bytes=0)
    )


def test_texts_are_measured_in_bytes_and_must_have_utf8():
    assert encoded_texts("query", ["é" * 5, ""], SMALL).tolist() == ["é".encode() * 5, b""]
    with pytest.raises(StatusError, match=r"`query` must have at most 10 bytes.*Received: 12"):
        encoded_texts("query", ["é" * 6], SMALL)
    wrong = (
        r"`query.1` must be text that UTF-8 can write. Received: one with '\\ud800' at character 2"
    )
    with pytest.raises(StatusError, match=wrong):
        encoded_texts("query", ["", "ab\ud800"], SMALL)


def test_a_context_counts_for_each_example():
    given = input_pb2.Input()
    both = given.example_list_with_context
    both.context.features.feature["x"].bytes_list.value.append(b"x" * 400)
    both.examples.add()
    assert len(_examples(given, SMALL)) == 1
    both.examples.add()
    with pytest.raises(StatusError, match="at most 1000 bytes as tensors"):
        _examples(given, SMALL)


class Port:
    """What a server is to an ASGI application: a client's messages, and what it is sent."""

    def __init__(self, *bodies, headers=(), leaves=False, stays_silent=False):
        self.scope = {
            "type": "http", "method": "POST", "path": "/", "headers": list(headers),
        }  # fmt: skip
        last = len(bodies) - 1
        self._messages = [
            {"type": "http.request", "body": body, "more_body": stays_silent or number < last}
            for number, body in enumerate(bodies)
        ]
        self._leaves = leaves
        self.received = 0
        self.sent = []

    async def receive(self):
        if self._messages:
            self.received += 1
            return self._messages.pop(0)
        if self._leaves:
            return {"type": "http.disconnect"}
        return await asyncio.get_running_loop().create_future()

    async def send(self, message):
        self.sent.append(message)

    @property
    def answer(self):
        body = b"".join(m.get("body", b"") for m in self.sent)
        return self.sent[0]["status"], body.decode()


async def echo(scope, receive, send):
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def write(code, message):
    return f"{code.name}: {message}".encode()


def ask(port, app=echo, *, limits=SMALL, timeout_s=5, **options):
    bounded = BoundedHttp(app, limits, timeout_s=timeout_s, write=write, **options)
    asyncio.run(bounded(port.scope, port.receive, port.send))
    assert bounded._in_hand == 0
    return port.sent and port.answer


GZIP = [(b"content-encoding", b"gzip")]


def test_bodies_pass():
    assert ask(Port(b"a" * 600, b"b" * 400)) == (200, "a" * 600 + "b" * 400)
    assert ask(Port(gzip.compress(b"x" * 1000), headers=GZIP)) == (200, "x" * 1000)
    for name in (b"GZIP", b"x-gzip", b"identity, gzip"):
        port = Port(gzip.compress(b"x" * 1000), headers=[(b"content-encoding", name)])
        assert ask(port) == (200, "x" * 1000)


def test_a_coding_of_others_is_named():
    for name in (b"br", b"deflate", b"gzip, gzip"):
        status, text = ask(Port(b"x", headers=[(b"content-encoding", name)]))
        assert status == 415
        assert f"Content-Encoding must be gzip. Received: {name.decode()}" in text.replace("'", "")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://a.b:80/v1/%69ndex", "/v1/index"),
        (b"HTTPS://a", "/"),
        (b"/http://a/b", "/http://a/b"),
        (b"/healthz", "/healthz"),
    ],
)
def test_a_whole_address_has_a_path(target, path):
    """Also for who decides who is admitted: RFC 9112, 3.2.2."""
    admitted, seen = [], []

    async def app(scope, receive, send):
        seen.append((scope["path"], scope["raw_path"]))
        await echo(scope, receive, send)

    port = Port(b"x")
    port.scope |= {"raw_path": target, "path": urllib.parse.unquote(target.decode())}
    assert ask(port, app, admit=lambda scope: admitted.append(scope["path"]))[0] == 200
    assert admitted == [path]
    assert seen[0][0] == path
    assert urllib.parse.unquote(seen[0][1].decode()) == path


@pytest.mark.parametrize(
    "port",
    [
        Port(b"", headers=[(b"content-length", b"1001")]),
        Port(b"a" * 600, b"b" * 401),
        Port(gzip.compress(b" " * 1001), headers=GZIP),
        Port(gzip.compress(b" " * 600) + gzip.compress(b" " * 401), headers=GZIP),
        Port(gzip.compress(b" " * 10**8), headers=GZIP * 2),
    ],
    ids=["declared", "in chunks", "unpacked", "unpacked from two", "a bomb"],
)
def test_bodies_are_bounded_before_and_after_unpacking(port):
    status, body = ask(port, limits=Limits(max_request_bytes=1000) if port.received else SMALL)
    assert status == 413
    assert body.startswith("INVALID_ARGUMENT: the body must have at most 1000 bytes")


def test_gzip_bombs_take_no_memory():
    packed = gzip.compress(bytes(3 * 10**8), 1)
    tracemalloc.start()
    try:
        with pytest.raises(StatusError, match="at most 1000000 bytes"):
            _uncompressed(packed, 10**6)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_a_body_is_of_a_few_streams():
    assert _uncompressed(gzip.compress(b"a") * 16, 1000) == b"a" * 16
    with pytest.raises(StatusError, match="cannot be uncompressed by gzip: more than 16 streams"):
        _uncompressed(gzip.compress(b"a") * 17, 1000)


def test_brackets_are_bounded():
    within = b"[{}]" + b" " * 100
    assert ask(Port(within))[0] == 200
    status, body = ask(Port(b"[[],[],{},[],[]]"))
    assert (status, body) == (
        400,
        "INVALID_ARGUMENT: the body must have at most 5 brackets [ and { (--max_json_lists)."
        " Received: 6",
    )


def test_names_are_bounded_and_colons_in_texts_are_not():
    assert ask(Port(b'{"a": "' + rb"::\":::\\" * 20 + b'"}'))[0] == 200
    status, body = ask(Port(b'{"a:\\"":1,"b":1,"c" : 1,"d":1,"e":1,"f\\\\":1}'))
    assert (status, body) == (
        400,
        "INVALID_ARGUMENT: the body must have at most 5 names (--max_json_lists). Received: 6",
    )


def test_a_body_must_come_in_time():
    started = time.monotonic()
    limits = Limits(body_timeout_s=1)
    status, body = ask(Port(b"{", stays_silent=True), limits=limits)
    assert status == 408
    assert "the body must come within 1 s (--body_timeout_s)" in body
    assert time.monotonic() - started < 10


def test_a_port_holds_so_many_bytes_and_no_more():
    async def together():
        release = asyncio.Event()

        async def waits(scope, receive, send):
            await release.wait()
            await echo(scope, receive, send)

        limits = Limits(max_request_bytes=1000, max_bytes_in_hand=2500)
        bounded = BoundedHttp(waits, limits, timeout_s=5, write=write)
        ports = [Port(b"x" * 1000) for _ in range(4)]
        tasks = [asyncio.ensure_future(bounded(p.scope, p.receive, p.send)) for p in ports]
        await asyncio.sleep(0.1)
        release.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        return [port.answer[0] for port in ports], bounded._in_hand

    statuses, held = asyncio.run(together())
    assert sorted(statuses) == [200, 200, 503, 503]
    assert held == 0


def test_who_is_not_admitted_is_not_read():
    def admit(scope):
        raise StatusError(StatusCode.UNAUTHENTICATED, "no key")

    port = Port(b"x" * 900, b"x" * 900, b"x" * 900, b"x" * 900)
    answered_after = []
    send = port.send

    async def sends(message):
        answered_after.append(port.received)
        await send(message)

    port.send = sends
    assert ask(port, admit=admit) == (401, "UNAUTHENTICATED: no key")
    assert (b"www-authenticate", b"Bearer") in port.sent[0]["headers"]
    assert answered_after[0] == 0  # then it is let say what it has to say, up to a limit


def test_the_key_of_the_index():
    check = key_check("0123456789abcdef")
    right = (b"Bearer 0123456789abcdef", b"bearer  0123456789abcdef", b"BEARER 0123456789abcdef ")
    for value in right:
        check({"path": "/v1/index/status", "headers": [(b"authorization", value)]})
    wrong = (b"", b"Bearer", b"0123456789abcdef", b"Basic 0123456789abcdef", right[0] + b"0")
    for value in wrong:
        with pytest.raises(StatusError):
            check({"path": "/v1/index/status", "headers": [(b"authorization", value)]})
    check({"path": "/v1/search", "headers": []})


def test_time_is_over_and_clients_that_leave():
    calls = []

    async def never(scope, receive, send):
        calls.append(current_call())
        await asyncio.sleep(60)

    started = time.monotonic()
    assert ask(Port(b""), never, timeout_s=0.2)[0] == 504
    assert calls[0].gone
    with pytest.raises(StatusError, match="the client has left"):
        calls[0].check()
    assert ask(Port(b"", leaves=True), never) == []
    assert calls[1].gone
    assert time.monotonic() - started < 10


def test_a_call_tells_what_is_left():
    assert current_call().left_s() is None
    current_call().check()
    late = Call(0.0)
    with pytest.raises(StatusError) as over:
        late.check()
    assert over.value.code is StatusCode.DEADLINE_EXCEEDED
    found = []
    thread = threading.Thread(target=lambda: (begin_call(late), found.append(current_call())))
    thread.start()
    thread.join()
    assert found == [late]
    assert current_call() is not late  # of this thread


def test_progress():
    progress = Progress()
    assert progress.stalled_s() == 0
    with progress.run():
        time.sleep(0.05)
        assert progress.runs()
        assert 0.04 < progress.stalled_s() < 10
        with progress.run():
            pass
        assert progress.stalled_s() < 0.04  # something ended
    assert not progress.runs()
    assert progress.stalled_s() == 0


def test_warnings_do_not_repeat_themselves():
    logger = logging.Logger("of this test")
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    handler.addFilter(RepeatFilter(seconds=0.3))
    logger.addHandler(handler)

    def again(number):
        logger.warning("number %d", number)

    for number in range(1000):
        again(number)
    logger.info("one")
    logger.info("two")
    time.sleep(0.35)
    logger.warning("another line of code")
    for number in range(2):
        again(number)
    assert records == [
        *("number 0", "one", "two", "another line of code"),
        "number 0 (999 more like it since the last)",
    ]


def test_descriptors():
    code = """
import logging, resource, sys
logging.basicConfig()
from tfde.serving.server.limits import Limits, with_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
print(with_descriptors(Limits()).max_connections, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""

    def run(hard):
        command = [sys.executable, "-c", code, str(hard)]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 5000:
        assert run(5000).stdout.split() == ["1000", "4536", "5000"]
    few = run(2136)
    assert few.stdout.split() == ["200", "2136", "2136"]
    assert few.stderr.count("--max_connections is 200, not 1000") == 1
    assert json.dumps(few.stdout)  # one line


@pytest.mark.parametrize("sizes", [(2**30, 0), (0, 2**30), (2**40, 0)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.string])
def test_rows_without_numbers_are_counted(sizes, dtype):
    """They cost nothing here, and their number decides how much is made for the answer."""
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    with pytest.raises(StatusError, match="inputs must have at most"):
        check_protos({"x": proto}, Limits())
    empty = tf.make_tensor_proto(np.zeros((4, 0), dtype.as_numpy_dtype), dtype)
    check_protos({"x": empty}, Limits())
