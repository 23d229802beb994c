"""Clients by how they read: those that know no chunks, and those that do not read at all."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient, until
from live_server import post, served_whole
from llama_batch import Engine
from llama_batch.server import Settings, create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with served_whole(monkeypatch, Engine("sim:?eog_every=0"), Settings()) as (port, _):
        yield port


def send(port: int, path: str, body: Any, *, version: str = "1.0", more: str = "", buffer: int = 0) -> socket.socket:
    """Send a request; a buffer is that of what comes. Unit: bytes."""
    connection = socket.socket()
    connection.settimeout(30)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", port))
    text = json.dumps(body)
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n{more}\r\n"
    connection.sendall((head + text).encode())
    return connection


def heard(connection: socket.socket) -> tuple[dict[str, str], str]:
    """All that comes until the other side closes: its headers, and the rest as it is."""
    told = b""
    with connection:
        while part := connection.recv(65536):
            told += part
    head, _, rest = told.decode().partition("\r\n\r\n")
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in lines}, rest


# --- clients that know no chunks ---


@pytest.mark.parametrize("more", ["", "Connection: keep-alive\r\n", "Expect: 100-continue\r\n"])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (TEXT, {"prompt": "x"}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        ("/completion", {"prompt": "x"}),
    ],
)
def test_a_stream_to_http_1_0_ends_with_its_connection(port: int, path: str, asked: dict[str, Any], more: str) -> None:
    headers, rest = heard(send(port, path, {**asked, "max_tokens": 20, "stream": True}, more=more))
    assert not {"transfer-encoding", "content-length"} & set(headers)
    assert headers["connection"] == "close"
    events = rest.removesuffix("data: [DONE]\n\n").removesuffix("\n\n").split("\n\n")
    assert len(events) > 1  # of text; what comes at once stands in one
    for event in events:
        json.loads(event.removeprefix("data: "))


def test_other_answers_to_http_1_0_tell_their_length(port: int) -> None:
    for body, status in (({"prompt": "x", "max_tokens": 3}, 200), ({"prompt": "x", "max_tokens": "3"}, 400)):
        headers, rest = heard(send(port, TEXT, body))
        assert int(headers["content-length"]) == len(rest.encode())
        assert ("error" in json.loads(rest)) == (status == 400)


def test_a_stream_to_http_1_1_comes_in_chunks(port: int) -> None:
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    headers, rest = heard(send(port, TEXT, body, version="1.1", more="Connection: close\r\n"))
    assert headers["transfer-encoding"] == "chunked"
    assert rest.endswith("0\r\n\r\n")


def test_an_old_request_may_follow_a_new_one(port: int) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True})
    head = f"Host: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"POST {TEXT} HTTP/1.1\r\n{head}POST {TEXT} HTTP/1.0\r\n{head}".encode())
        told = b""
        while part := connection.recv(65536):
            told += part
    first, second = told.split(b"0\r\n\r\n", 1)
    assert b"transfer-encoding: chunked" in first
    assert b"transfer-encoding" not in second
    assert second.endswith(b"\n\ndata: [DONE]\n\n")


# --- clients that do not read ---

SMALL = 4096
MUCH: dict[str, Any] = {"prompt": ["x"] * 8, "max_tokens": 2000, "logprobs": 20, "stream": True}
"""More than the system's buffers hold."""


@contextlib.contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> Iterator[tuple[int, Engine, Any]]:
    """A server that waits only for so long for its readers: its port, its engine, and itself."""
    engine = Engine("sim:?eog_every=0", n_parallel=8, n_ctx=20_000)
    with served_whole(monkeypatch, engine, Settings(), write_timeout_s=limit_s) as (port, server):
        yield port, engine, server


def ends(is_so: Any) -> bool:
    """Whether something comes to be so."""
    end = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("path", "body"),
    [(TEXT, MUCH), ("/tokenize", {"content": "many words " * 100_000, "with_pieces": True})],
    ids=["stream", "whole"],
)
def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch, path: str, body: Any) -> None:
    with impatient(monkeypatch, 0.5) as (port, engine, server):
        before = len(server.server_state.connections)
        with send(port, path, body, version="1.1", buffer=SMALL) as connection:
            assert ends(lambda: len(server.server_state.connections) > before)
            assert ends(lambda: len(server.server_state.connections) == before)
            assert ends(lambda: not engine.stats().in_flight and not server._service.n_active)
            with pytest.raises(ConnectionError):  # nor does the system keep anything for it
                heard(connection)
        assert post(port, TEXT, {"prompt": "x", "max_tokens": 2})[0] == 200


def test_a_client_that_leaves_leaves_all_that_it_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine("sim:?eog_every=0&pass_ms=5", n_parallel=2, n_ctx=20_000)
    text = json.dumps({"prompt": "x", "max_tokens": 10_000, "stream": True})
    asked = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
    with served_whole(monkeypatch, engine, Settings()) as (port, server):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(asked * 3)  # one behind the other: the first is answered while the last is read
            assert connection.recv(65536)
        assert ends(lambda: not engine.stats().in_flight and not server._service.n_active)
    assert engine.stats().n_generated_tokens < 5000
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.anyio
async def test_nothing_more_is_made_of_an_answer_whose_client_left(engine: Engine) -> None:
    made: list[int] = []
    app = create_app(engine)
    client = AsgiClient(app)
    body = {"prompt": ["x"] * 8, "max_tokens": 100, "stream": True}

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            made.append(len(message.get("body", b"")))
            if len(made) == 3:
                await until(lambda: not engine.stats().in_flight)  # all of the answers is there
            await send(message)

        await app(scope, receive, counted)

    client._app = counting
    await client.post(TEXT, body, leave_after_parts=2)
    assert not app.state.service.n_active
    assert len(made) < 8


def test_what_is_held_for_a_client_that_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient(monkeypatch, 30) as (port, _, server), send(port, TEXT, MUCH, version="1.1", buffer=SMALL):
        assert ends(lambda: any(each.flow.write_paused for each in list(server.server_state.connections)))
        [stuck] = [each for each in server.server_state.connections if each.flow.write_paused]
        time.sleep(0.2)
        assert stuck.transport.get_write_buffer_size() < 256 << 10
        server._service.engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell what it holds")
def test_a_client_that_reads_slowly_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        impatient(monkeypatch, 1) as (port, _, server),
        send(port, TEXT, MUCH, version="1.1", more="Connection: close\r\n", buffer=SMALL) as connection,
    ):
        assert ends(lambda: any(each.flow.write_paused for each in list(server.server_state.connections)))
        told, began = b"", time.monotonic()
        while time.monotonic() - began < 3:  # three times the limit
            told = connection.recv(65536)
            assert told
            time.sleep(0.02)
        tail = told
        while part := connection.recv(1 << 20):
            tail = (tail + part)[-100:]
        assert tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
