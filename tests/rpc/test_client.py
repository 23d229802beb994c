"""Servers are proved before anything depends on them: whatever is at the other end, this process lives."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine, LlamaBatchError, OptionError, RpcError, RpcUnavailableError, rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def stand_in(answer: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """Something that accepts connections; without an answer it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def serve() -> None:
            try:
                while True:
                    client, _ = listener.accept()
                    kept.append(client)
                    if answer is not None:
                        answer(client)
                        client.close()
            except OSError:
                pass  # closed

        threading.Thread(target=serve, daemon=True).start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        for client in kept:
            client.close()


def speak_http(client: socket.socket) -> None:
    client.recv(100)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def speak_version(*version: int) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        client.recv(100)
        client.sendall((28).to_bytes(8, "little") + bytes(version) + bytes(25))

    return answer


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return f"{host}:{port}"


BAD: list[tuple[str, Callable[[socket.socket], None] | None, type[RpcError]]] = [
    ("busy", None, RpcUnavailableError),
    ("protocol_mismatch", speak_http, RpcError),
    ("protocol_mismatch", speak_version(6, 0, 0), RpcError),
    ("protocol_mismatch", speak_version(7, 9, 0), RpcError),
    ("protocol_mismatch", lambda _: None, RpcError),
]


@pytest.mark.parametrize(("reason", "answer", "kind"), BAD)
def test_a_server_that_is_none_is_a_typed_error_that_names_it(
    reason: str, answer: Callable[[socket.socket], None] | None, kind: type[RpcError], tmp_path: Path
) -> None:
    with stand_in(answer) as endpoint:
        with pytest.raises(kind, match=endpoint) as of_ping:
            rpc.ping(endpoint, timeout=0.3)
        # The model is not there either: servers are looked at first.
        engine = Engine(write(tmp_path / "no-model.gguf"), rpc_servers=[endpoint], rpc_timeout=0.3)
        with pytest.raises(kind, match=endpoint) as of_engine:
            engine.wait_ready(60)
        engine.close()
    for error in (of_ping.value, of_engine.value):
        assert (type(error), error.reason, error.endpoint) == (kind, reason, endpoint)


def write(path: Path) -> Path:
    path.write_bytes(b"GGUF")
    return path


def test_a_closed_port_is_unreachable_for_ping_devices_and_engine(tmp_path: Path) -> None:
    endpoint = closed_port()
    for ask in (rpc.ping, rpc.devices):
        with pytest.raises(RpcUnavailableError, match="connection refused") as told:
            ask(endpoint)
        assert (told.value.reason, told.value.retryable) == ("unreachable", True)
    engine = Engine(write(tmp_path / "x.gguf"), rpc_servers=endpoint)
    with pytest.raises(RpcUnavailableError, match=endpoint):
        engine.generate("Hello").result(60)
    engine.close()


@pytest.mark.parametrize(
    "servers", ["", "host", "host:0", "[::1]:1", "a:1,a:1", ["a:1", "a:1"], ["a:99999"], [1], 5, {"a": 1}]
)
def test_what_names_no_server_is_refused_at_once(servers: object) -> None:
    with pytest.raises(OptionError, match="rpc_servers"):
        Engine("sim:", rpc_servers=servers)  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["", "x", "x:y", "[::1]:5", "a:1:2"])
def test_ping_refuses_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(OptionError, match="endpoint must be"):
        rpc.ping(endpoint)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_ping_refuses_a_time_limit_that_is_none(timeout: float) -> None:
    with pytest.raises(OptionError, match="timeout"):
        rpc.ping("127.0.0.1:1", timeout=timeout)


def test_a_name_that_leads_nowhere_is_unreachable() -> None:
    with pytest.raises(LlamaBatchError, match=r"no-such-host\.invalid:1.*IPv4"):
        rpc.ping("no-such-host.invalid:1")


def test_the_command_line_tells_of_a_server_in_one_line(tmp_path: Path) -> None:
    words = ["run", "-m", str(write(tmp_path / "x.gguf")), "--rpc-servers", closed_port(), "Hello"]
    done = subprocess.run([sys.executable, "-m", "llama_batch.cli", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "nobody listens there" in done.stderr
