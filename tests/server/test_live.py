"""The server on a real port: its beginning, its end, and clients that come and go."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import random
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import left_over
import pytest
import soak
from live_server import Process, post, served, wait_for_slots
from llama_batch import Engine
from llama_batch.cli.app import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")

TEXT = "/v1/completions"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_signal_lets_requests_finish(pool: ThreadPoolExecutor) -> None:
    with Process("--model", "sim:?pass_ms=10") as server:
        port = server.port
        stream = pool.submit(post, port, TEXT, {"prompt": "x", "max_tokens": 150, "stream": True})
        whole = pool.submit(post, port, TEXT, {"prompt": "y", "max_tokens": 150})
        wait_for_slots(port, 2)
        server.signal(signal.SIGTERM)
        server.told("draining")
        status, headers, text = post(port, TEXT, {"prompt": "z", "max_tokens": 1})
        assert (status, json.loads(text)["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in headers
        assert post(port, "/health", None)[0] == 503
        assert stream.result()[2].endswith("data: [DONE]\n\n")
        assert json.loads(whole.result()[2])["usage"]["completion_tokens"] == 150
        assert server.wait() == 0
        assert server.told("closed")


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cancels_what_is_left(pool: ThreadPoolExecutor, first: int) -> None:
    with Process("--model", "sim:?pass_ms=10") as server:
        port = server.port
        stream = pool.submit(post, port, TEXT, {"prompt": "x", "max_tokens": 5000, "stream": True})
        whole = pool.submit(post, port, TEXT, {"prompt": "y", "max_tokens": 5000})
        wait_for_slots(port, 2)
        server.signal(first)
        server.told("draining")
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0
        assert '"finish_reason":"abort"' in stream.result()[2]
        assert json.loads(whole.result()[2])["choices"][0]["finish_reason"] == "abort"


def test_the_time_to_finish_is_limited(pool: ThreadPoolExecutor) -> None:
    with Process("--model", "sim:?pass_ms=10", "--drain-timeout", "0.3") as server:
        port = server.port
        stream = pool.submit(post, port, TEXT, {"prompt": "x", "max_tokens": 5000, "stream": True})
        wait_for_slots(port, 1)
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0
        assert '"finish_reason":"abort"' in stream.result()[2]
        assert server.told("cancelling")["level"] == "warning"


def test_a_server_without_requests_ends_at_once() -> None:
    with Process("--model", "sim:") as server:
        _ = server.port
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0


def test_other_addresses_are_open_to_keys_from_file_and_environment(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-file name=ours\n")
    flags = ("--model", "sim:", "--host", "0.0.0.0", "--api-key-file", str(keys))
    with Process(*flags, env={"LLAMA_BATCH_API_KEY": "sk-env"}) as server:
        port = server.port
        for key, status in (("sk-file", 200), ("sk-env", 200), ("sk-other", 401)):
            assert post(port, "/v1/models", None, {"authorization": f"Bearer {key}"})[0] == status
        assert server.told("request")["key"] == "ours"
        assert not [line for line in server.lines if "sk-" in line]


@pytest.mark.usefixtures("quiet_again")
@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--model", "missing.gguf"), 3),
        (("--model", "sim:?load_error=broken"), 3),
        (("--model", "sim:", "--api-key", "x"), 2),
        (("--model", "sim:", "--api-key-file", os.devnull), 2),
        (("--model", "sim:", "--port", "99999"), 2),
        (("--model", "sim:", "--max-tokens", "0"), 2),
        (("--model", "sim:", "--n-parallel", "0"), 2),
        (("--model", "sim:", "--write-timeout", "nan"), 2),
        (("--model", "sim:", "--write-timeout", "-1"), 2),
        (("--model", "sim:", "--drain-timeout", "inf"), 2),
        (("--model", "sim:", "--host", "203.0.113.7", "--insecure"), 1),
        (("--model", "sim:", "--ssl-key-file", __file__), 2),
        (("--model", "sim:", "--host", "0.0.0.0"), 2),
        (("--model", "sim:", "--host", "::"), 2),
        (("--model", "sim:", "--host", "example.org"), 2),
    ],
)
def test_what_is_wrong_at_the_start_is_one_line_and_a_code(
    flags: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", *flags]) == code
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("llama-batch: ")
    assert not [line for line in told if "Traceback" in line]


@pytest.mark.usefixtures("quiet_again")
def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--model", "sim:", "--port", str(taken.getsockname()[1])]) == 1
    assert "in use" in capsys.readouterr().err.splitlines()[-1]


def test_hosts_are_checked_at_loopback() -> None:
    with Process("--model", "sim:") as server:
        port = server.port
        assert server.told("listening")["url"] == f"http://127.0.0.1:{port}"
        assert post(port, "/health", None, {"Host": "evil.example"})[0] == 403
        assert post(port, "/health", None, {"Host": f"localhost:{port}"})[0] == 200


@pytest.mark.parametrize("flood", [b"x" * 10_000, b"a: b\r\n" * 2000], ids=["a path", "headers"])
def test_what_stands_before_a_body_is_limited(flood: bytes) -> None:
    with Process("--model", "sim:") as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(10)
        connection.sendall(b"GET /" if flood[:1] == b"x" else b"GET / HTTP/1.1\r\n")
        n_sent, told = 0, b""
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(flood)
                n_sent += 1
        with contextlib.suppress(ConnectionError):
            told = connection.recv(100)
        assert n_sent < 1000 or b" 400 " in told
        assert post(server.port, "/health", None)[0] == 200


def test_a_long_body_is_no_long_head() -> None:
    with Process("--model", "sim:") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for _ in range(3):
            connection.request("POST", TEXT, json.dumps({"prompt": "x" * 100_000, "max_tokens": 1}))
            answer = connection.getresponse()
            assert answer.status == 400
            assert b"context_length_exceeded" in answer.read()
        connection.close()


# --- clients that go away ---

N_CONNECTIONS = 1000 if os.environ.get("LLAMA_BATCH_FULL") else 300


def n_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def test_clients_that_vanish_leave_nothing_behind() -> None:
    with (
        Engine("sim:?pass_ms=2", n_parallel=8, max_queue=64) as engine,
        served(engine) as (port, service),
        ThreadPoolExecutor(32) as pool,
    ):
        post(port, TEXT, {"prompt": "x", "max_tokens": 1})
        gc.collect()
        before = n_fds()
        tally = soak.Tally(sent=1)
        list(pool.map(lambda number: soak.vanish(port, random.Random(number), tally), range(N_CONNECTIONS)))
        end = time.monotonic() + 20
        while (engine.stats().in_flight or service.n_active or n_fds() > before) and time.monotonic() < end:
            time.sleep(0.02)
        stats = engine.stats()
        assert (stats.in_flight, service.n_active, len(service.running)) == (0, 0, 0)
        assert stats.n_submitted > N_CONNECTIONS / 4
        assert stats.n_cancelled > 0
        assert stats.n_generated_tokens < stats.n_submitted * 250
        assert n_fds() <= before
        assert not tally.strange
        assert not left_over.disagreements(tally, left_over.metrics(port))
        assert not left_over.exactly(port)
        engine.close()


def test_a_served_model_survives_a_soak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["soak.py", "--model", "sim:?pass_ms=1", "--minutes", "0.05"])
    assert soak.main() == 0, capsys.readouterr().out


def test_a_soak_tells_what_stays_behind() -> None:
    before = left_over.Held(slots=0, waiting=0, fds=17, threads=3, rss_mb=100)
    assert not left_over.leaks(before, before, n_helpers=4, rss_mb=10)
    after = left_over.Held(slots=1, waiting=2, fds=18, threads=8, rss_mb=111)
    assert len(left_over.leaks(before, after, n_helpers=4, rss_mb=10)) == 5
    told = dict.fromkeys((f"llama_batch_requests_finished_total.{reason}" for reason in left_over.ENDS), 1.0)
    told |= {"llama_batch_request_failures_total.queue_full": 1.0, "llama_batch_generation_tokens_total": 40.0}
    tally = soak.Tally(sent=6, answered=4, tokens=40)
    tally.statuses.update({200: 4, 429: 1})
    assert not left_over.disagreements(tally, told)
    tally.answered, tally.tokens = 5, 41
    tally.statuses.update({200: 1, 429: 1})
    assert len(left_over.disagreements(tally, told)) == 4
    tally.sent = 4
    assert len(left_over.disagreements(tally, told)) == 5
