"""Servers are proved before anything depends on them: whatever is at the other end, this process lives."""

from __future__ import annotations

import copy
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine, LlamaBatchError, OptionError, RpcError, RpcUnavailableError, prometheus, rpc

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


def test_a_closed_port_is_unreachable_whoever_asks(tmp_path: Path) -> None:
    endpoint = closed_port()
    for ask in (rpc.ping, rpc.devices, rpc.add_server):
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


@pytest.mark.parametrize("ask", [rpc.ping, rpc.devices, rpc.add_server])
@pytest.mark.parametrize("endpoint", ["", "x", "x:y", "[::1]:5", "a:1:2", "a:1\0", None, 5, b"a:1", ["a:1"]])
def test_what_is_no_endpoint_is_refused(ask: Callable[..., object], endpoint: object) -> None:
    with pytest.raises(OptionError, match="endpoint must be"):
        ask(endpoint)


@pytest.mark.parametrize("ask", [rpc.ping, rpc.devices, rpc.add_server])
@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), None, True, "5"])
def test_a_time_limit_that_is_none_is_refused(ask: Callable[..., object], timeout: object) -> None:
    with pytest.raises(OptionError, match="timeout"):
        ask("127.0.0.1:1", timeout=timeout)


def speak_rpc(n_devices: int) -> Callable[[socket.socket], None]:
    """A server of the right version whose devices have 3 bytes free of 4."""

    def answer(client: socket.socket) -> None:
        for length, answered in [
            (9 + 24, bytes([7, 0, 0]) + bytes(25)),
            (9, n_devices.to_bytes(4, "little")),
            *[(9 + 4, (3).to_bytes(8, "little") + (4).to_bytes(8, "little"))] * n_devices,
        ]:
            client.recv(length, socket.MSG_WAITALL)
            client.sendall(len(answered).to_bytes(8, "little") + answered)

    return answer


def test_a_server_that_was_added_is_text_with_devices_that_have_names() -> None:
    with stand_in(speak_rpc(2)) as endpoint:
        server = rpc.add_server(endpoint)
    assert server == endpoint
    assert server.version == "7.0.0"
    assert [device.name for device in server.devices] == [f"{endpoint}/0", f"{endpoint}/1"]
    assert {(device.memory_free, device.memory_total) for device in server.devices} == {(3, 4)}
    for copied in (copy.deepcopy(server), pickle.loads(pickle.dumps(server))):
        assert (copied, copied.devices, copied.version) == (server, server.devices, server.version)


def test_the_health_of_a_server_is_unknown_before_and_bad_after_a_load_that_failed(tmp_path: Path) -> None:
    with stand_in(None) as silent:
        gone = closed_port()
        engine = Engine(write(tmp_path / "x.gguf"), rpc_servers=[silent, gone], rpc_timeout=0.3)
        with pytest.raises(RpcUnavailableError):
            engine.wait_ready(60)
        first, second = engine.stats().rpc_servers
        assert (first.endpoint, first.is_reachable, second.endpoint) == (silent, False, gone)
        assert "did not answer" in str(first.trouble)
        assert first.age_s is not None
        assert (second.is_reachable, second.trouble, second.age_s) == (None, None, None)
        scrape = prometheus.render(engine)
        assert f'endpoint="{silent}"}} 0' in scrape
        assert gone not in scrape
        engine.close()


def test_a_name_that_leads_nowhere_is_unreachable() -> None:
    with pytest.raises(LlamaBatchError, match=r"no-such-host\.invalid:1.*IPv4"):
        rpc.ping("no-such-host.invalid:1")


def test_the_command_line_tells_of_a_server_in_one_line(tmp_path: Path) -> None:
    words = ["run", "-m", str(write(tmp_path / "x.gguf")), "--rpc-servers", closed_port(), "Hello"]
    done = subprocess.run([sys.executable, "-m", "llama_batch.cli", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "nobody listens there" in done.stderr
