"""What a server holds, by the system's account and by its own, and where that is wrong for what its clients saw."""

from __future__ import annotations

import http.client
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_server import HOST

if TYPE_CHECKING:
    from soak import Tally

PATH = "/v1/completions"
TIMEOUT_S = 120.0
SETTLE_S = 30.0
N_EXACT = 10
N_EXACT_TOKENS = 7


@dataclass(frozen=True)
class Held:
    """What a server holds at a moment. `rss_mb` is in MiB."""

    slots: int
    waiting: int
    fds: int
    threads: int
    rss_mb: float


def get(port: int, path: str, body: Any = None, until: float = math.inf) -> tuple[int, str]:
    """Ask, or send a body: the status and the text. `TimeoutError` comes at the time `until`, at the latest."""
    limit_s = min(TIMEOUT_S, until - time.monotonic())
    if limit_s <= 0:
        raise TimeoutError(f"no time is left for {path}")
    connection = http.client.HTTPConnection(HOST, port, timeout=limit_s)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(port: int, until: float = math.inf) -> dict[str, float]:
    """The server's figures: those without labels but its own by name, others by name and the last label's value."""
    figures = {}
    for line in get(port, "/metrics", until=until)[1].splitlines():
        if not line.startswith("#") and "_bucket{" not in line:
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            last = labels.rstrip("}").rsplit(",", 1)[-1].partition("=")
            figures[name if last[0] == "engine" else f"{name}.{last[2].strip(chr(34))}"] = float(value)
    return figures


def held(pid: int, port: int, until: float = math.inf) -> Held:
    """Look at a server, from outside and by its own account."""
    told = metrics(port, until)
    slots, waiting = (int(told[f"llama_batch_num_requests_{name}"]) for name in ("running", "waiting"))
    return Held(slots, waiting, *outside(pid))


def outside(pid: int) -> tuple[int, int, float]:
    """File descriptors, threads, and memory in MiB of a process, as the system has them; known on Linux alone."""
    folder = Path("/proc") / str(pid)
    if not folder.exists():
        return 0, 0, 0.0
    lines = (folder / "status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return len(list((folder / "fd").iterdir())), int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024


def settled(pid: int, port: int, until: float, before: Held | None = None) -> Held:
    """What a server holds once it has noticed that everybody left, or when it had the time to."""
    end = min(time.monotonic() + SETTLE_S, until)
    while True:
        now = held(pid, port, until)
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


def exactly(port: int, until: float = math.inf) -> list[str]:
    """Requests one after the other, which are answered, and counted to the token."""
    before = metrics(port, until)
    body = {"prompt": "The next one is", "max_tokens": N_EXACT_TOKENS, "ignore_eos": True}
    for _ in range(N_EXACT):
        status, text = get(port, PATH, body, until)
        if status != 200 or json.loads(text)["usage"]["completion_tokens"] != N_EXACT_TOKENS:
            return [f"the next request is not answered: {status}, {text[:200]}"]
    after = metrics(port, until)
    counted = [
        ("llama_batch_requests_finished_total.max_tokens", N_EXACT),
        ("llama_batch_generation_tokens_total", N_EXACT * N_EXACT_TOKENS),
    ]
    return [
        f"{name} grew by {after[name] - before[name]:g} instead of {grown}"
        for name, grown in counted
        if after[name] - before[name] != grown
    ]
