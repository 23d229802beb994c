"""What HTTP costs: tokens per second of many streams over a port, against the same streams in process, in turn.

The server runs in a process of its own, `llama-batch serve` as a user starts it, so that what the clients take is not
on its event loop; in process the engine and its readers share one, as they do in an application:

    python benches/over_http.py --model model.gguf

Ends with 1 where the ratio's interval lies below the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import figures
from llama_batch import Engine
from llama_server import HOST, LlamaServer
from shaped import source_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BUDGET = 0.95
PATH = "/v1/completions"


@dataclass(frozen=True)
class Load:
    """The streams, all begun at once, greedy and as long as each other.

    Attributes:
        model: a path, or sim: and what follows.
        n_streams: how many.
        n_tokens: tokens that each generates.
    """

    model: str
    n_streams: int
    n_tokens: int

    @property
    def options(self) -> dict[str, Any]:
        """Options of the engine, on both sides: room for all at once; otherwise its defaults."""
        return {"n_parallel": self.n_streams, "n_ctx": self.n_streams * (self.n_tokens + 64), "max_queue": 0}

    def prompt(self, number: int) -> str:
        """What a stream asks."""
        return f"Tell me about number {number}, and go on."


async def rate(load: Load, stream: Callable[[str], Awaitable[int]]) -> float:
    """Tokens per second over all streams, from the first request to the last token, after one that warms up.

    Args:
        load: the streams.
        stream: reads one to its end, and gives its tokens.

    Raises:
        SystemExit: a stream has not as many tokens as were asked for.
    """
    await stream("Warm up.")
    began = time.perf_counter()
    counts = await asyncio.gather(*(stream(load.prompt(number)) for number in range(load.n_streams)))
    took = time.perf_counter() - began
    if set(counts) != {load.n_tokens}:
        raise SystemExit(f"streams gave {sorted(set(counts))} tokens instead of {load.n_tokens}")
    return sum(counts) / took


def in_process(load: Load) -> float:
    """Measure a fresh engine in this process."""

    async def main() -> float:
        async with Engine(load.model, **load.options) as engine:

            async def stream(prompt: str) -> int:
                chunks = engine.stream(prompt, max_tokens=load.n_tokens, ignore_eos=True, temp=0)
                return sum([len(chunk.token_ids) async for chunk in chunks])

            return await rate(load, stream)

    return asyncio.run(main())


def over_http(load: Load) -> float:
    """Measure a fresh server."""
    flags = {"--model": load.model, "--log-level": "warning"}
    flags |= {f"--{name.replace('_', '-')}": str(value) for name, value in load.options.items()}
    words = [word for flag in flags.items() for word in flag]
    with LlamaServer(Path(sys.executable), ["-m", "llama_batch.cli", "serve", *words]) as server:
        return asyncio.run(rate(load, lambda prompt: read(server.port, prompt, load.n_tokens)))


async def read(port: int, prompt: str, n_tokens: int) -> int:
    """Read a stream to its end, and take apart only its last words: what a client costs is not what is measured.

    Args:
        port: of the server.
        prompt: what to go on with.
        n_tokens: tokens to generate.

    Returns:
        The tokens, by the server's `usage`.

    Raises:
        SystemExit: it was not answered.
    """
    body = json.dumps({
        "prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    head = f"POST {PATH} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    _, is_told, usage = answer.rpartition(b'"completion_tokens":')
    if not answer.startswith(b"HTTP/1.1 200 ") or not is_told:
        raise SystemExit(f"the server answered {answer[:500]!r}")
    return int(usage.split(b",")[0].strip(b" }\r\n"))


def main() -> int:
    """Measure both in turn, and print the figures.

    Returns:
        1 where HTTP costs more than its budget, beyond the interval.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI, or sim:; the default model otherwise")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each stream")
    parser.add_argument("--repeats", type=int, default=6, help="pairs of runs, in turn")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    chosen = parser.parse_args()
    model = source_of(chosen.model)
    load = Load(model, chosen.streams, chosen.tokens)
    pairs = figures.interleave(lambda: over_http(load), lambda: in_process(load), chosen.repeats)
    ratios = [http / plain for http, plain in pairs]
    print(f"{load.n_streams} streams of {load.n_tokens} tokens, tokens/s, median [95 %] of {len(pairs)} pairs:")
    print(f"  over HTTP            {figures.spread([http for http, _ in pairs], 1)}")
    print(f"  in process           {figures.spread([plain for _, plain in pairs], 1)}")
    print(f"  HTTP over in process {figures.spread(ratios)}, budget {BUDGET}")
    missed = figures.interval(ratios)[1] < BUDGET
    if chosen.json:
        kept = {"pairs": pairs, "ratio": figures.spread(ratios), "budget": BUDGET, "missed": missed}
        chosen.json.write_text(json.dumps(kept, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
