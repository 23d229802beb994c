"""Connections: how many there are, how long they take, and what is no HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest
from live_server import Process, post, served_whole
from llama_batch import Engine
from llama_batch.server import ApiKey, KeyRing, Settings
from llama_batch.server.protocol import allow_files

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")

TEXT = "/v1/completions"
AT_MOST = 4


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that takes few connections."""
    with Process("--model", "sim:?pass_ms=5", "--max-connections", str(AT_MOST)) as server:
        yield server.port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def heard(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    told = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            told += part
    return told


def error_in(told: bytes) -> tuple[int, str]:
    head, _, body = told.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def health(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_connections_beyond_the_most_are_told_so_and_the_next_one_finds_room(port: int) -> None:
    with contextlib.ExitStack() as stack:
        idle = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(AT_MOST)]
        for connection in idle:  # each is known to the server once it has answered
            stack.callback(connection.close)
            assert health(connection) == 200
        status, headers, text = post(port, TEXT, {"prompt": "x" * 100, "max_tokens": 2})
        assert (status, json.loads(text)["error"]["code"]) == (503, "too_many_connections")
        assert headers["retry-after"]
        assert health(idle[0]) == 200
    end = time.monotonic() + 20
    while post(port, TEXT, {"prompt": "x", "max_tokens": 2})[0] != 200:
        assert time.monotonic() < end


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FOO /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000,
    ],
    ids=["words", "TLS", "HTTP/2", "a method", "a path", "CONNECT", "two lengths", "a long header"],
)
def test_what_is_no_http_gets_an_error_as_all_others(port: int, sent: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(sent)
        assert error_in(heard(connection)) == (400, "invalid_http")


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"ffffffffffffffff1\r\n", b"2\r\n{}x\r\n"], ids=["words", "huge", "long"])
def test_a_body_in_broken_chunks_gets_an_error_as_all_others(port: int, chunk: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(port) as connection:
        connection.sendall(head + chunk)
        assert error_in(heard(connection)) == (400, "invalid_http")


def test_what_is_no_http_does_not_stand_in_the_answer_before_it(port: int) -> None:
    body = b'{"prompt":"x","max_tokens":5000,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(port) as connection:
        connection.sendall(head + body)
        told = connection.recv(65536)
        connection.sendall(b"nonsense\r\n\r\n")
        told += heard(connection)
    assert b" 200 " in told
    assert b"invalid_http" not in told
    assert b"HTTP/1.1 400" not in told


@contextlib.contextmanager
def hasty(monkeypatch: pytest.MonkeyPatch, **settings: object) -> Iterator[int]:
    """A server that waits for heads for a moment only: its port."""
    made = Settings().changed(**settings)
    with served_whole(monkeypatch, Engine("sim:?pass_ms=1"), made, head_timeout_s=0.3) as (port, _):
        yield port


def test_heads_that_do_not_come_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with hasty(monkeypatch) as port:
        with connect(port) as silent, connect(port) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: local")
            assert heard(silent) == b""
            assert error_in(heard(slow)) == (408, "head_timeout")
        with connect(port) as again:
            again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            told = b""
            while not told.endswith(b'{"status":"ok"}'):
                told += again.recv(65536)
            again.sendall(b"GET /health HT")  # the second head is not free of it
            assert error_in(heard(again)) == (408, "head_timeout")


def test_a_body_that_was_refused_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with hasty(monkeypatch, keys=KeyRing([ApiKey.of("sk-somebody")])) as port, connect(port) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head + b"x" * 10)
        assert error_in(heard(connection)) == (401, "invalid_api_key")


def test_an_answer_is_not_cut_by_the_time_for_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    with hasty(monkeypatch) as port:
        for _ in range(3):
            status, _, text = post(port, TEXT, {"prompt": "x", "max_tokens": 600})
            assert status == 200
            assert json.loads(text)["usage"]["completion_tokens"] == 600


def test_the_process_may_open_what_its_connections_need() -> None:
    import resource  # there is none on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        low = 512
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        assert allow_files(10) == low  # there is enough
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == low
        if hard == resource.RLIM_INFINITY or hard > 1000:
            allowed = allow_files(800)
            assert allowed >= 800
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
