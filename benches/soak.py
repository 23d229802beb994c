"""A server under clients that come and vanish: does anything stay behind?

Connections to `llama-batch serve` are opened and dropped at random while they connect, in the head or body of a
request, while its prompt waits or is read, and in the middle of its stream, by farewell or reset; some are read to
their end:

    python benches/soak.py --minutes 30

Ends with 1, and says why, if slots, waiting requests, file descriptors, threads or memory are left over, if the next
request is not answered, or if the server's /metrics do not agree with what the clients counted.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import importlib
import json
import random
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_server import HOST, LlamaServer

PATH = "/v1/completions"
TIMEOUT_S = 120.0
SETTLE_S = 60.0
LONGEST = 200
"""Tokens of an answer that lasts."""
N_EXACT = 10
N_EXACT_TOKENS = 7
WAYS = {"connect": 1, "head": 2, "body": 2, "unread": 3, "begun": 4, "whole": 2, "httpx": 2}
"""Where a client leaves, and how often: after connecting; in the head; in the body; before it reads anything, so while
its prompt waits or is read; after some of the answer; at its end; in an answer that httpx reads."""


@dataclass
class Tally:
    """What the clients saw, all of them together.

    Attributes:
        ways: connections, by where they were left.
        statuses: answers that began, by status.
        sent: requests that were sent whole, or may have been.
        answered: answers with status 200 that were read to their end.
        tokens: generated tokens of those, by their `usage`.
        strange: what no client should see.
    """

    ways: collections.Counter[str] = field(default_factory=collections.Counter)
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    sent: int = 0
    answered: int = 0
    tokens: int = 0
    strange: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, head: bytes, rest: bytes, *, whole: bool) -> None:
        """Count an answer, as far as it was read."""
        if not head.startswith(b"HTTP/1.1 ") or len(head) < 12:
            return
        status = int(head[9:12])
        with self.lock:
            self.statuses[status] += 1
            if status not in {200, 429}:
                self.strange.append(f"status {status}: {rest[:200]!r}")
            if status == 200 and whole:
                self.answered += 1
                self.tokens += int(rest.rsplit(b'"completion_tokens":', 1)[1].split(b",")[0].strip(b" }\n"))


def request(rng: random.Random, *, complete: bool = True) -> bytes:
    """A request as its bytes: short and long prompts, short and long answers, streamed or not.

    Args:
        rng: draws it.
        complete: whether the body is as long as the head says.

    Returns:
        Head and body.
    """
    streamed = rng.random() < 0.7
    body: dict[str, Any] = {
        "prompt": " ".join(str(rng.randrange(1000)) for _ in range(rng.choice((3, 3, 50, 400)))),
        "max_tokens": rng.choice((1, 5, 20, LONGEST)),
        "stream": streamed,
        **({"stream_options": {"include_usage": True}} if streamed else {}),
    }
    text = json.dumps(body).encode()
    length = len(text) + (0 if complete else 10)
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    return head.encode() + text


def vanish(port: int, rng: random.Random, tally: Tally) -> None:
    """Open a connection, send some of a request, read some of the answer, and leave in one way or another.

    Args:
        port: of the server.
        rng: draws what is done.
        tally: is told what was seen.
    """
    [way] = rng.choices([*WAYS], [*WAYS.values()])
    with tally.lock:
        tally.ways[way] += 1
    if way == "httpx":
        vanish_by_httpx(port, rng, tally)
        return
    with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as connection:
        sent = request(rng, complete=way != "body")
        if way in {"connect", "head"}:
            sent = sent[: 0 if way == "connect" else rng.randrange(1, sent.index(b"\r\n\r\n"))]
        elif way == "body":
            sent = sent[: rng.randrange(sent.index(b"\r\n\r\n") + 4, len(sent) + 1)]
        else:
            with tally.lock:
                tally.sent += 1
        connection.sendall(sent)
        read_some(connection, rng, tally, way)
        if rng.random() < 0.5:  # a reset instead of a farewell
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_some(connection: socket.socket, rng: random.Random, tally: Tally, way: str) -> None:
    """Read as much of an answer as a way of leaving has it."""
    if way not in {"begun", "whole"}:
        time.sleep(rng.random() * 0.05)
        return
    got, n_parts = b"", rng.randrange(1, 6) if way == "begun" else sys.maxsize
    if way == "begun":
        connection.settimeout(rng.random() * 0.5)
    try:
        while n_parts and (part := connection.recv(rng.choice((1, 200, 4096)) if way == "begun" else 65536)):
            got, n_parts = got + part, n_parts - 1
    except TimeoutError:
        if way == "whole":
            with tally.lock:
                tally.strange.append(f"nothing came for {TIMEOUT_S:g} s")
    else:
        if way == "whole" and not got:
            with tally.lock:
                tally.strange.append("a connection was closed without an answer")
    head, _, rest = got.partition(b"\r\n\r\n")
    tally.note(head, rest, whole=way == "whole")


def vanish_by_httpx(port: int, rng: random.Random, tally: Tally) -> None:
    """The same by a library's client, which closes a stream that it has begun to read."""
    httpx = library()
    if httpx is None:
        return
    body = {"prompt": f"Number {rng.randrange(1000)}", "max_tokens": LONGEST, "stream": True}
    with tally.lock:
        tally.sent += 1
    try:
        with (
            httpx.Client(
                timeout=httpx.Timeout(TIMEOUT_S, read=rng.choice((0.1, TIMEOUT_S))), trust_env=False
            ) as client,
            client.stream("POST", f"http://{HOST}:{port}{PATH}", json=body) as answer,
        ):
            tally.note(f"HTTP/1.1 {answer.status_code}".encode(), b"", whole=False)
            for number, _ in enumerate(answer.iter_raw()):
                if number == rng.randrange(1, 6):
                    break
    except httpx.ReadTimeout:
        pass


def library() -> Any:
    """httpx, by the name under which it is installed; None where it is not."""
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


@dataclass(frozen=True)
class Held:
    """What a server holds at a moment. `rss_mb` is in MiB."""

    slots: int
    waiting: int
    fds: int
    threads: int
    rss_mb: float


def get(port: int, path: str, body: Any = None) -> tuple[int, str]:
    """Ask, or send a body: the status and the text."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(port: int) -> dict[str, float]:
    """The server's figures: those without labels but its own by name, others by name and the last label's value."""
    figures = {}
    for line in get(port, "/metrics")[1].splitlines():
        if not line.startswith("#") and "_bucket{" not in line:
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            last = labels.rstrip("}").rsplit(",", 1)[-1].partition("=")
            figures[name if last[0] == "engine" else f"{name}.{last[2].strip(chr(34))}"] = float(value)
    return figures


def held(pid: int, port: int) -> Held:
    """Look at a server, from outside and by its own account. What is outside is known on Linux alone."""
    told = metrics(port)
    slots, waiting = (int(told[f"llama_batch_num_requests_{name}"]) for name in ("running", "waiting"))
    folder = Path("/proc") / str(pid)
    if not folder.exists():
        return Held(slots, waiting, 0, 0, 0.0)
    lines = (folder / "status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    n_fds = len(list((folder / "fd").iterdir()))
    return Held(slots, waiting, n_fds, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024)


def settled(pid: int, port: int, before: Held | None = None) -> Held:
    """What a server holds once it has noticed that everybody left."""
    end = time.monotonic() + SETTLE_S
    while True:
        now = held(pid, port)
        is_quiet = not now.slots and not now.waiting and (before is None or now.fds <= before.fds)
        if is_quiet or time.monotonic() > end:
            return now
        time.sleep(0.2)


def leaks(before: Held, after: Held, *, n_helpers: int, rss_mb: float) -> list[str]:
    """What is left over.

    Args:
        before: what the server held after its first clients.
        after: what it holds in the end.
        n_helpers: threads that may have come: the event loop starts helpers as they are needed, up to a number.
        rss_mb: memory that may have come. Unit: MiB.

    Returns:
        A sentence for each kind of thing.
    """
    told = [
        (after.slots > 0, f"{after.slots} slots are in use though nobody is there"),
        (after.waiting > 0, f"{after.waiting} requests wait though nobody is there"),
        (after.fds > before.fds, f"{after.fds} file descriptors are open, and {before.fds} were before"),
        (after.threads > before.threads + n_helpers, f"{after.threads} threads, and {before.threads} before"),
        (after.rss_mb > before.rss_mb + rss_mb, f"{after.rss_mb:.0f} MiB, and {before.rss_mb:.0f} MiB before"),
    ]
    return [sentence for is_so, sentence in told if is_so]


ENDS = ("eog", "stop", "max_tokens", "context_full")


def disagreements(tally: Tally, told: dict[str, float]) -> list[str]:
    """Where a server's account cannot be true for what its clients saw.

    Args:
        tally: what clients saw since the server began.
        told: its metrics in the end.

    Returns:
        A sentence for each.
    """
    by_reason = {name.rpartition(".")[2]: n for name, n in told.items() if "requests_finished_total." in name}
    finished, complete = sum(by_reason.values()), sum(by_reason[reason] for reason in ENDS)
    refused = told["llama_batch_request_failures_total.queue_full"]
    tokens = told["llama_batch_generation_tokens_total"]
    checks = [
        (finished + refused > tally.sent, f"{finished + refused:.0f} requests are told of, and {tally.sent} were sent"),
        (finished < tally.statuses[200], f"{finished:.0f} requests ended, and {tally.statuses[200]} answers began"),
        (complete < tally.answered, f"{complete:.0f} requests are complete, and {tally.answered} answers were read"),
        (refused < tally.statuses[429], f"{refused:.0f} were refused, and {tally.statuses[429]} clients saw that"),
        (tokens < tally.tokens, f"{tokens:.0f} tokens were generated, and {tally.tokens} were read"),
    ]
    return [sentence for is_so, sentence in checks if is_so]


def exactly(port: int) -> list[str]:
    """Requests one after the other, which are answered, and counted to the token."""
    before = metrics(port)
    body = {"prompt": "The next one is", "max_tokens": N_EXACT_TOKENS, "ignore_eos": True}
    for _ in range(N_EXACT):
        status, text = get(port, PATH, body)
        if status != 200 or json.loads(text)["usage"]["completion_tokens"] != N_EXACT_TOKENS:
            return [f"the next request is not answered: {status}, {text[:200]}"]
    after = metrics(port)
    counted = [
        ("llama_batch_requests_finished_total.max_tokens", N_EXACT),
        ("llama_batch_generation_tokens_total", N_EXACT * N_EXACT_TOKENS),
    ]
    return [
        f"{name} grew by {after[name] - before[name]:g} instead of {grown}"
        for name, grown in counted
        if after[name] - before[name] != grown
    ]


def crowd(port: int, tally: Tally, n_clients: int, seconds: float, seed: int) -> None:
    """Let clients come and vanish for a time."""
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.monotonic() < end:
            try:
                vanish(port, rng, tally)
            except OSError as error:
                with tally.lock:
                    tally.strange.append(f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(n_clients) as pool:
        list(pool.map(client, range(n_clients)))


def soak(server: LlamaServer, n_clients: int, seconds: float, rss_mb: float) -> list[str]:
    """Let clients come and vanish, and look at what stays behind.

    Args:
        server: `llama-batch serve`, with nothing asked of it yet.
        n_clients: clients at the same time.
        seconds: for how long, a fifth of it to warm up.
        rss_mb: memory that the server may take more. Unit: MiB.

    Returns:
        What is wrong, a sentence each.
    """
    tally = Tally()
    crowd(server.port, tally, n_clients, seconds / 5, seed=1)
    before = settled(server.pid, server.port)
    crowd(server.port, tally, n_clients, seconds * 4 / 5, seed=2)
    after = settled(server.pid, server.port, before)
    print(f"{sum(tally.ways.values())} connections: {dict(tally.ways)}")
    print(f"{tally.sent} requests, statuses {dict(tally.statuses)}, {tally.answered} read whole, {tally.tokens} tokens")
    print(f"before {before}\nafter  {after}")
    wrong = leaks(before, after, n_helpers=32, rss_mb=rss_mb) + disagreements(tally, metrics(server.port))
    return wrong + exactly(server.port) + tally.strange[:10]


def main() -> int:
    """Soak, and print what came of it.

    Returns:
        1 where something is wrong.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI, or sim:; the default model otherwise")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=24, help="at the same time; more than run and wait here")
    parser.add_argument("--rss-mb", type=float, default=64.0, help="memory in MiB that the server may take more")
    parser.add_argument("--threads", type=int, default=0, help="that compute; 1 where others want the cores as well")
    from shaped import source_of  # not where tests import this: it makes models too

    chosen = parser.parse_args()
    model = source_of(chosen.model)
    # What is cached in RAM is no leak, and would look like one.
    flags = {"--model": model, "--n-parallel": 4, "--max-queue": 12, "--n-ctx": 8192, "--prompt-cache-ram-mb": 0,
             "--n-threads": chosen.threads, "--log-level": "warning"}  # fmt: skip
    words = [str(word) for flag in flags.items() for word in flag]
    with LlamaServer(Path(sys.executable), ["-m", "llama_batch.cli", "serve", *words]) as server:
        wrong = soak(server, chosen.clients, chosen.minutes * 60, chosen.rss_mb)
        log = server.log()
    for sentence in [*wrong, *(["the server's log says:", log] if "Traceback" in log or wrong else [])]:
        print(sentence)
    print("FAILED" if wrong or "Traceback" in log else "nothing stayed behind")
    return int(bool(wrong) or "Traceback" in log)


if __name__ == "__main__":
    sys.exit(main())
