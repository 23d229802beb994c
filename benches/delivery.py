"""What it costs to bring one token to an asyncio reader: CPU of the whole process, engine, binding and event loop.

Many streams of a simulated model are read token by token, and the same requests are run with nobody reading along, in
turn. The difference is the cost of delivery:

    python benches/delivery.py
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import figures
from llama_batch import Engine, Generation

BUDGET_US = 10.0


async def read(generation: Generation) -> int:
    """Read one stream as a web server would, token by token; returns the tokens."""
    return sum([len(chunk.token_ids) async for chunk in generation])


async def wait(generation: Generation) -> int:
    """Wait for the end alone; returns the tokens."""
    return (await generation).usage.generated_tokens


def cpu_per_token(n_streams: int, n_tokens: int, pass_ms: float, reading: bool) -> float:
    """One run, after a short one that warms up.

    Args:
        n_streams: Streams at the same time.
        n_tokens: Tokens of each.
        pass_ms: Length of a simulated forward pass, in milliseconds.
        reading: Whether the streams are read along.

    Returns:
        CPU time of the process for each token, in microseconds.
    """

    async def serve(engine: Engine, n_each: int) -> float:
        reader = read if reading else wait
        prompts = [f"Stream number {number}" for number in range(n_streams)]
        before = time.process_time()
        counts = await asyncio.gather(*(reader(engine.stream(text, max_tokens=n_each)) for text in prompts))
        spent = time.process_time() - before
        if sum(counts) != n_streams * n_each:
            raise SystemExit(f"{sum(counts)} tokens came instead of {n_streams * n_each}")
        return spent / sum(counts) * 1e6

    async def main() -> float:
        simulated = f"sim:?pass_ms={pass_ms}&row_ms=0&eog_every=0"
        async with Engine(simulated, n_parallel=n_streams, n_ctx=n_streams * (n_tokens + 64)) as engine:
            await serve(engine, 8)
            return await serve(engine, n_tokens)

    return asyncio.run(main())


def main() -> int:
    """Measure, and print the figures.

    Returns:
        1 where delivery costs more than its budget, beyond the interval.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each stream")
    parser.add_argument("--pass-ms", type=float, default=2.0, help="length of a simulated forward pass")
    parser.add_argument("--repeats", type=int, default=10, help="pairs of runs, in turn")
    chosen = parser.parse_args()
    size = (chosen.streams, chosen.tokens, chosen.pass_ms)
    pairs = figures.interleave(lambda: cpu_per_token(*size, True), lambda: cpu_per_token(*size, False), chosen.repeats)
    costs = [reading - waiting for reading, waiting in pairs]
    print(f"{chosen.streams} streams of {chosen.tokens} tokens, passes of {chosen.pass_ms} ms")
    print("CPU of the process per token in µs, median [95 %]:")
    print(f"  read along     {figures.spread([reading for reading, _ in pairs], 2)}")
    print(f"  not read along {figures.spread([waiting for _, waiting in pairs], 2)}")
    print(f"  delivery       {figures.spread(costs, 2)}, budget {BUDGET_US}")
    return int(figures.interval(costs)[0] > BUDGET_US)


if __name__ == "__main__":
    sys.exit(main())
