"""A server under clients that come and vanish: does anything stay behind?

Connections to `llama-batch serve` are opened and dropped at random while they connect, in the head or body of a
request, while its prompt waits or is read, and in the middle of its stream, by farewell or reset; some are read to
their end:

    python benches/soak.py --minutes 30

Tells on standard error every ten seconds how far it is. Ends within its minutes and two more, the loading of the model
apart, whatever the server does: with 1, and why, if slots, waiting requests, file descriptors, threads or memory are
left over, if the next request is not answered, or if the server's /metrics do not agree with what the clients counted.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import itertools
import json
import math
import random
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from left_over import PATH, TIMEOUT_S, disagreements, exactly, leaks, metrics, outside, settled
from llama_server import HOST, LlamaServer

GRACE_S = 120.0
"""For all that comes behind the clients' time: what is late then is wrong."""
PROGRESS_S = 10.0
PAUSE_S = 0.5
"""Between two connections of a client, on average: without, the clients alone want all of a small machine."""
LONGEST = 200
"""Tokens of an answer that lasts."""
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

    def summary(self) -> str:
        """All of it in a line."""
        with self.lock:
            n_ways, statuses = sum(self.ways.values()), dict(self.statuses)
        read = f"{self.answered} read whole, {self.tokens} tokens, {len(self.strange)} strange"
        return f"{n_ways} connections, {self.sent} requests, statuses {statuses}, {read}"

    def tell(self, strange: str) -> None:
        """Note what no client should see."""
        with self.lock:
            self.strange.append(strange)

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


def vanish(port: int, rng: random.Random, tally: Tally, until: float = math.inf) -> None:
    """Open a connection, send some of a request, read some of the answer, and leave in one way or another.

    Args:
        port: of the server.
        rng: draws what is done.
        tally: is told what was seen.
        until: when to leave in any case, by `time.monotonic`. Unit: seconds.
    """
    [way] = rng.choices([*WAYS], [*WAYS.values()])
    with tally.lock:
        tally.ways[way] += 1
    if way == "httpx":
        vanish_by_httpx(port, rng, tally, until)
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
        read_some(connection, rng, tally, way, until)
        if rng.random() < 0.5:  # a reset instead of a farewell
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_some(connection: socket.socket, rng: random.Random, tally: Tally, way: str, until: float) -> None:
    """Read as much of an answer as a way of leaving has it."""
    if way not in {"begun", "whole"}:
        time.sleep(rng.random() * 0.05)
        return
    got, n_parts, is_whole = b"", rng.randrange(1, 6) if way == "begun" else sys.maxsize, False
    longest_s = rng.random() * 0.5 if way == "begun" else TIMEOUT_S
    try:
        while n_parts and not is_whole and (left_s := until - time.monotonic()) > 0:
            connection.settimeout(min(longest_s, left_s))
            part = connection.recv(rng.choice((1, 200, 4096)) if way == "begun" else 65536)
            got, n_parts, is_whole = got + part, n_parts - 1, not part
    except TimeoutError:
        if way == "whole" and time.monotonic() < until:
            tally.tell(f"nothing came for {TIMEOUT_S:g} s")
    if way == "whole" and is_whole and not got:
        tally.tell("a connection was closed without an answer")
    head, _, rest = got.partition(b"\r\n\r\n")
    tally.note(head, rest, whole=way == "whole" and is_whole)


def vanish_by_httpx(port: int, rng: random.Random, tally: Tally, until: float) -> None:
    """The same by a library's client, which closes a stream that it has begun to read."""
    httpx = library()
    if httpx is None:
        return
    body = {"prompt": f"Number {rng.randrange(1000)}", "max_tokens": LONGEST, "stream": True}
    n_parts, read_s = rng.randrange(1, 6), min(rng.choice((0.1, TIMEOUT_S)), max(0.1, until - time.monotonic()))
    with tally.lock:
        tally.sent += 1
    try:
        with (
            httpx.Client(timeout=httpx.Timeout(TIMEOUT_S, read=read_s), trust_env=False) as client,
            client.stream("POST", f"http://{HOST}:{port}{PATH}", json=body) as answer,
        ):
            tally.note(f"HTTP/1.1 {answer.status_code}".encode(), b"", whole=False)
            for _ in itertools.islice(answer.iter_raw(), n_parts):
                pass
    except httpx.ReadTimeout:
        pass
    except httpx.TransportError as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def library() -> Any:
    """httpx, by the name under which it is installed; None where it is not."""
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def crowd(server: LlamaServer, tally: Tally, n_clients: int, seconds: float, seed: int) -> None:
    """Let clients come and vanish for a time, and tell how far they are."""
    began = time.monotonic()
    end = began + seconds

    def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.monotonic() < end:
            try:
                vanish(server.port, rng, tally, end)
            except OSError as error:
                tally.tell(f"{type(error).__name__}: {error}")
                if server.exit_code is not None:
                    return
            time.sleep(rng.random() * 2 * PAUSE_S)

    with ThreadPoolExecutor(n_clients) as pool:
        clients = [pool.submit(client, number) for number in range(n_clients)]
        while wait(clients, PROGRESS_S).not_done and server.exit_code is None:
            fds, threads, rss_mb = outside(server.pid)
            holds = f"the server has {fds} files, {threads} threads, {rss_mb:.0f} MiB"
            say(f"{time.monotonic() - began:.0f} of {seconds:.0f} s: {tally.summary()}; {holds}")
        for each in clients:
            each.result()


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


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
    tally, until = Tally(), time.monotonic() + seconds + GRACE_S
    wrong: list[str] = []
    try:
        crowd(server, tally, n_clients, seconds / 5, seed=1)
        say("warm; it settles")
        before = settled(server.pid, server.port, until)
        crowd(server, tally, n_clients, seconds * 4 / 5, seed=2)
        say("all have left; it settles")
        after = settled(server.pid, server.port, until, before)
        print(f"before {before}\nafter  {after}")
        wrong += leaks(before, after, n_helpers=32, rss_mb=rss_mb)
        wrong += disagreements(tally, metrics(server.port, until))
        wrong += exactly(server.port, until)
    except OSError as error:
        ended = "" if server.exit_code is None else f" (it has ended with {server.exit_code})"
        wrong.append(f"the server does not answer{ended}: {type(error).__name__}: {error}")
    print(f"{tally.summary()}\nleft: {dict(tally.ways)}")
    return wrong + tally.strange[:10]


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
        say(f"{model} is loaded")
        wrong = soak(server, chosen.clients, chosen.minutes * 60, chosen.rss_mb)
        log = server.log()
    for sentence in [*wrong, *(["the server's log says:", log] if "Traceback" in log or wrong else [])]:
        print(sentence)
    print("FAILED" if wrong or "Traceback" in log else "nothing stayed behind")
    return int(bool(wrong) or "Traceback" in log)


if __name__ == "__main__":
    sys.exit(main())
