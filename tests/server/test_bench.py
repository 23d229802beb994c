"""`llama-batch bench --url`: against our own server, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socketserver
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import served
from llama_batch import Engine
from llama_batch.benchmark import BenchmarkError, ClosedLoop, Record, Result, Synthetic, measure
from llama_batch.benchmark.url import UrlTarget, plain_url
from llama_batch.benchmark.wire import Sse
from llama_batch.benchmark.workload import Sizes
from llama_batch.cli.app import run
from llama_batch.server import ApiKey, KeyRing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORT = ["--prompt-tokens", "8-40", "--max-tokens", "4-12", "-n", "6", "-c", "3"]
LIST = b'{"data": [{"id": "m"}]}'


def answer(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def events(*messages: str, chunked: bool = False, ends: bool = True) -> bytes:
    """A stream of events, by its length or in chunks."""
    body = "".join(f"data: {message}\n\n" for message in messages).encode()
    if not chunked:
        length = len(body) if ends else len(body) + 100
        return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {length}\r\n\r\n".encode() + body
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + f"{len(body):x}\r\n".encode() + body + b"\r\n" + (b"0\r\n\r\n" if ends else b"")


@contextlib.contextmanager
def scripted(post: bytes, get: bytes = answer(LIST), close: bool = True) -> Iterator[str]:
    """A server that gives the same bytes to everybody; its URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                length = 0
                while (header := self.rfile.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                self.rfile.read(length)
                is_post = line.startswith(b"POST") and b"tokenize" not in line
                self.wfile.write(post if is_post else get)
                if is_post and close:
                    return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


def asked(url: str, n: int = 2, chat: bool = False, **settings: Any) -> list[Record]:
    """How requests to a server went."""

    async def ask() -> list[Record]:
        target = UrlTarget(url, chat=chat, **settings)
        try:
            await target.prepare()
            conversations = await Synthetic(n, Sizes(8, 8), Sizes(4, 4)).write(target.count)
            return (await measure(target, conversations, ClosedLoop(1))).records
        finally:
            target.close()

    return asyncio.run(ask())


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with served(engine) as (port, _):
        yield f"http://127.0.0.1:{port}"


def test_our_server_is_measured_as_the_engine_is(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = []
    for words in (["--url", url], ["sim:?eog_every=0", "--n-ctx", "4096"]):
        path = tmp_path / "out.json"
        assert run(["bench", *words, *SHORT, "--json", str(path)]) == 0
        kept.append(Result.load(path))
    over_http, in_process = (
        sorted((record.conversation, record.n_prompt, record.n_output) for record in result.records) for result in kept
    )
    assert over_http == in_process  # the same prompts, the same lengths
    figures = kept[0].figures
    assert (figures.n_without_usage, figures.n_failed) == (0, 0)
    assert figures.queue_ms is not None
    assert figures.cached_tokens is not None
    assert kept[0].cpu_share is not None
    assert kept[0].target["url"] == url
    assert "6 of 6 requests complete" in capsys.readouterr().out


def test_options_of_requests_and_further_fields_reach_the_server(url: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ["bench", "--url", f"{url}/v1", *SHORT, "--temp", "0", "--body", '{"priority": 3}', "--json", str(path)]
    assert run(words) == 0
    assert Result.load(path).target["body"] == {"temperature": 0, "priority": 3}
    assert run(["bench", "--url", url, *SHORT, "--body", '{"prioritee": 3}']) == 1


def test_turns_over_text_find_the_history_in_the_cache(url: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ["bench", "--url", url, "-n", "2", "-c", "1", "--turns", "3", "--endpoint", "completions"]
    assert run([*words, "--max-tokens", "8", "--prompt-tokens", "64", "--json", str(path)]) == 0
    later = [record for record in Result.load(path).records if record.turn > 0]
    assert len(later) == 4
    assert all(record.n_cached is not None and record.n_cached >= 50 * record.turn for record in later)


def test_a_server_that_wants_a_key_gets_one_or_says_so(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with served(engine, keys=KeyRing([ApiKey.of("sk-right")])) as (port, _):
        words = ["bench", "--url", f"http://127.0.0.1:{port}", *SHORT]
        assert run([*words, "--api-key", "sk-right"]) == 0
        capsys.readouterr()
        for wrong in ([], ["--api-key", "sk-wrong"]):
            assert run([*words, *wrong]) == 1
            told = capsys.readouterr()
            assert told.out == ""
            assert "valid API key" in told.err


def test_a_key_is_in_no_result(engine: Engine, tmp_path: Path) -> None:
    path, page = tmp_path / "out.json", tmp_path / "out.html"
    with served(engine, keys=KeyRing([ApiKey.of("sk-secret")])) as (port, _):
        words = [
            "bench",
            "--url",
            f"http://user:sk-secret@127.0.0.1:{port}",
            *SHORT,
            "--header",
            "x-api-key: sk-secret",
        ]
        assert run([*words, "--json", str(path), "--html", str(page)]) == 0
    assert "sk-secret" not in path.read_text() + page.read_text()


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--url", "http://127.0.0.1:9", *SHORT]) == 1
    told = capsys.readouterr()
    assert "http://127.0.0.1:9 cannot be asked" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("post", "reason"),
    [
        (answer(b"<html>oh</html>", "text/html"), "not a stream of events but text/html"),
        (answer(b'{"choices": [{"text": "all at once"}]}'), "not a stream of events but application/json"),
        (answer(b'{"error": {"message": "too long"}}', status="400 Bad"), "HTTP 400: too long"),
        (answer(b"", status="500 Oh"), "HTTP 500: status 500, and nothing said"),
        (events('{"choices": [{"text": "a"}]}'), "the stream ended before its last message"),
        (events('{"choices": [{"text": "a"}]}', ends=False), "broken off in mid-stream"),
        (events('{"choices": [{"text": "a"}]}', chunked=True, ends=False), "broken off in mid-stream"),
        (events('{"error": {"message": "no room"}}'), "error event: no room"),
        (events("{", chunked=True), "broken off before any text: no HTTP, or no stream of events"),
        (events("[1]"), "an event of another shape"),
        (events('{"choices": 7}'), "an event of another shape"),
        (b"nonsense\r\n\r\n", "no HTTP"),
        (b"", "closed the connection"),
    ],
)
def test_a_server_that_misbehaves_is_a_failure_with_a_reason(post: bytes, reason: str) -> None:
    with scripted(post) as url:
        records = asked(url)
    assert len(records) == 2  # the second one was asked, whatever became of the first
    for record in records:
        assert record.failure is not None
        assert reason in record.failure
        assert record.ended >= record.sent > 0


def test_what_came_before_a_break_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    with scripted(events('{"choices": [{"text": "a"}]}', ends=False)) as url:
        assert run(["bench", "--url", url, "-n", "3", "--warmup", "0", "--json", str(path)]) == 1
    result = Result.load(path)
    assert result.figures.n_failed == 3
    assert [len(record.deliveries) for record in result.records] == [1, 1, 1]
    assert "0 of 3 requests complete" in capsys.readouterr().out


def test_the_first_request_fails_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(answer(b"oh", "text/html")) as url:
        assert run(["bench", "--url", url, "-n", "3"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing was measured: not a stream of events but text/html" in told.err


@pytest.mark.parametrize("chunked", [False, True])
def test_a_server_of_another_kind_is_understood(chunked: bool) -> None:
    """As vLLM answers: empty first pieces, usage in a message of its own, no tokenizer."""
    messages = [
        '{"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        '{"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": null}',
        '{"choices": [{"delta": {"content": "a"}}]}',
        '{"choices": [{"delta": {}, "finish_reason": "length"}]}',
        '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": null}}',
        "[DONE]",
    ]
    with scripted(events(*messages, chunked=chunked), close=False) as url:
        first, second = asked(url, chat=True)
    for record in (first, second):
        assert record.failure is None
        assert (record.n_prompt, record.n_output, record.n_cached) == (9, 5, None)
        assert len(record.deliveries) == 2
        assert record.finish_reason == "length"


def test_a_server_that_names_no_model_wants_one_named() -> None:
    done = events('{"choices": [{"text": "a", "finish_reason": "stop"}]}', "[DONE]")
    with scripted(done, get=answer(b"gone", status="404 No")) as url:
        with pytest.raises(BenchmarkError, match="--model"):
            asked(url)
        assert [record.failure for record in asked(url, model="mine")] == [None, None]


def test_a_server_that_loads_its_model_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    loading = answer(b'{"error": {"message": "Loading model"}}', status="503 Wait")
    with scripted(loading, get=loading) as url:
        assert run(["bench", "--url", url, "--model", "m"]) == 1
    assert "is not ready: Loading model" in capsys.readouterr().err


def test_a_server_that_never_ends_is_given_up() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n"
    with scripted(endless, close=False) as url:
        (record,) = asked(url, n=1, timeout_s=0.1)
    assert record.failure == "timeout: no whole answer in 0.1 s"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    body = b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"choices": [{"text": "a"}]}\r\n\r\n'
    with scripted(body + b"data: [DONE]\r\n\r\n") as url:
        assert [record.failure for record in asked(url)] == [None, None]


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    done = events('{"choices": [{"text": "a", "finish_reason": "stop"}]}', "[DONE]")
    with scripted(done) as url:  # it says nothing of closing, and closes
        assert [record.failure for record in asked(url, n=20)] == [None] * 20


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab:\n "), max_size=8), max_size=6),
    st.lists(st.integers(1, 7), max_size=40),
    st.booleans(),
)
def test_events_are_the_same_however_their_bytes_are_cut(data: list[str], cuts: list[int], crlf: bool) -> None:
    def lines(text: str) -> str:
        return "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"

    stream = (": a comment\n\n" + "".join(map(lines, data))).replace("\n", "\r\n" if crlf else "\n").encode()
    found: list[str] = []
    sse = Sse(lambda _at, _name, piece: found.append(piece.decode()))
    at = 0
    for cut in [*cuts, len(stream)]:
        sse.feed(0.0, stream[at : at + cut])
        at += cut
    assert found == data


@pytest.mark.parametrize(
    "given_", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1", "http://user:pass@h:1/v1?x#y"]
)
def test_a_url_is_known_with_and_without_its_version(given_: str) -> None:
    assert plain_url(given_) == "http://h:1"
    assert plain_url("https://h/llm/v1") == "https://h/llm"


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with Engine("sim:?pass_ms=1&eog_every=0", n_parallel=4, n_ctx=4096) as engine, served(engine) as (port, service):
        words = [sys.executable, "-m", "llama_batch.cli", "bench", "--url", f"http://127.0.0.1:{port}", "-n", "3000"]
        words += ["-c", "4", "--max-tokens", "4", "--prompt-tokens", "4", "--json", str(path)]
        del service
        done: list[object] = []
        with (
            engine.subscribe(done.append, events=["request.done"]),
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        ):
            end = time.monotonic() + 60
            while len(done) < 20:
                assert time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = Result.load(path)
    assert result.interrupted
    assert 0 < result.figures.n_completed < 3000
    assert json.loads(path.read_text())["notes"]
    assert b"requests complete" in out
    assert len(err.splitlines()) == 1
