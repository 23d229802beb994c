"""Threads that yield: tokens per second with the default, over the best fixed number of threads, beside neighbours.

Every number of threads and the default (0: the engine says how many) take turns, beside none, one and two processes
that always want a core. Each run has a new engine, so that finding out what the machine has left is part of it:

    python benches/threads.py --streams 4
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import figures
from llama_batch import LLAMA_CPP_BUILD, Engine
from llama_batch.models import resolve
from throughput import follow, prompt, window

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 0.95


def spin() -> None:
    """Want a core, always."""
    while True:
        pass


@contextlib.contextmanager
def neighbours(n: int) -> Iterator[None]:
    """So many busy processes.

    Args:
        n: how many.
    """
    busy = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(n)]
    try:
        for process in busy:
            process.start()
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def run(model: Path, chosen: argparse.Namespace, n_threads: int) -> float:
    """One run: a new engine, and all streams at once.

    Args:
        model: The file.
        chosen: The sizes.
        n_threads: Threads that compute; 0 leaves it to the engine.

    Returns:
        Tokens per second while all streams decode.
    """

    async def serve() -> float:
        async with Engine(model, n_parallel=chosen.streams, n_ctx=chosen.ctx, n_threads=n_threads) as engine:
            await engine.generate("Once upon a time", max_tokens=4, cache_prompt=False)
            prompts = [prompt(engine.model, stream, chosen.prompt) for stream in range(chosen.streams)]
            streams = await asyncio.gather(*(follow(engine, tokens, chosen.generate) for tokens in prompts))
            return window(streams, chosen.generate)

    return asyncio.run(serve())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI; the default model otherwise")
    parser.add_argument("--streams", type=int, default=4, help="streams at the same time")
    parser.add_argument("--prompt", type=int, default=32, help="prompt tokens of each stream")
    parser.add_argument("--generate", type=int, default=128, help="tokens that each stream generates")
    parser.add_argument("--ctx", type=int, default=4096, help="cells of the KV cache, in tokens")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="processes that want a core")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of all numbers of threads")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    return parser.parse_args()


def main() -> int:
    """Measure, and print a table.

    Returns:
        1 where a ratio is below its budget, beyond its interval.
    """
    chosen = arguments()
    model = resolve(chosen.model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [0, *range(1, cores + 1)]
    print(f"{model.name}, {LLAMA_CPP_BUILD}; {chosen.streams} streams, {cores} cores")
    print(f"| busy processes | {' | '.join(f'{n} threads' if n else 'default' for n in counts)} | default over best |")
    print(f"|---|{'---|' * len(counts)}---|")
    kept, is_short = [], False
    for n_busy in chosen.busy:
        rounds = []
        for turn in range(chosen.repeats):
            with neighbours(n_busy):
                order = counts if turn % 2 == 0 else counts[::-1]
                speeds = {n: run(model, chosen, n) for n in order}
            rounds.append([speeds[n] for n in counts])
        middle = [median(speeds) for speeds in zip(*rounds, strict=True)]
        best = max(range(1, len(counts)), key=middle.__getitem__)
        ratios = [speeds[0] / speeds[best] for speeds in rounds]
        kept.append({"busy": n_busy, "counts": counts, "tokens_per_s": rounds, "ratios": ratios})
        print(f"| {n_busy} | {' | '.join(f'{speed:.1f}' for speed in middle)} | {figures.spread(ratios)} |", flush=True)
        is_short |= figures.interval(ratios)[1] < BUDGET
    if chosen.json:
        chosen.json.write_text(json.dumps({"model": model.name, "streams": chosen.streams, "runs": kept}, indent=1))
    return int(is_short)


if __name__ == "__main__":
    raise SystemExit(main())
