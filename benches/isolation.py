"""What a process of its own costs: tokens per second of an isolated engine, over one in this process, in turn.

Both have the same model, context and threads, and decode the same streams at the same time; figures are of the window
in which all of them decode. Run it on a quiet machine:

    python benches/isolation.py --streams 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from statistics import median

import figures
from llama_batch import LLAMA_CPP_BUILD, Engine
from llama_batch.models import resolve
from throughput import follow, prompt, window

BUDGET = 0.97


def run(model: Path, chosen: argparse.Namespace, *, isolate: bool) -> float:
    """One run: a new engine, a short request to warm it up, then all streams at once.

    Args:
        model: The file.
        chosen: The sizes.
        isolate: Whether llama.cpp has a process of its own.

    Returns:
        Tokens per second while all streams decode.
    """

    async def serve() -> float:
        sizes = {"n_parallel": chosen.streams, "n_ctx": chosen.ctx, "n_threads": chosen.threads}
        async with Engine(model, isolate=isolate, **sizes) as engine:
            await engine.generate("Once upon a time", max_tokens=4, cache_prompt=False)
            prompts = [prompt(engine.model, stream, chosen.prompt) for stream in range(chosen.streams)]
            streams = await asyncio.gather(*(follow(engine, tokens, chosen.generate) for tokens in prompts))
            return window(streams, chosen.generate)

    return asyncio.run(serve())


def arguments() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI; the default model otherwise")
    parser.add_argument("--streams", type=int, default=16, help="streams at the same time")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens of each stream")
    parser.add_argument("--generate", type=int, default=96, help="tokens that each stream generates")
    parser.add_argument("--ctx", type=int, default=8192, help="cells of the KV cache, in tokens")
    parser.add_argument("--threads", type=int, default=cores, help="threads that compute")
    parser.add_argument("--repeats", type=int, default=6, help="pairs of runs, in turn")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    return parser.parse_args()


def main() -> int:
    """Measure, and print a table.

    Returns:
        1 where the ratio is below its budget, beyond its interval.
    """
    chosen = arguments()
    model = resolve(chosen.model)
    print(f"{model.name}, {LLAMA_CPP_BUILD}; {chosen.threads} threads, n_ctx {chosen.ctx}")
    pairs = figures.interleave(
        lambda: run(model, chosen, isolate=True), lambda: run(model, chosen, isolate=False), chosen.repeats
    )
    ratios = [apart / here for apart, here in pairs]
    apart, here = (median(side) for side in zip(*pairs, strict=True))
    print("| streams | isolated, tokens/s | in this process | ratio of the pairs, median [95 %] |")
    print("|---|---|---|---|")
    print(f"| {chosen.streams} | {apart:.1f} | {here:.1f} | {figures.spread(ratios)} |")
    if chosen.json:
        chosen.json.write_text(json.dumps({"model": model.name, "streams": chosen.streams, "pairs": pairs}, indent=1))
    return int(figures.interval(ratios)[1] < BUDGET)


if __name__ == "__main__":
    raise SystemExit(main())
