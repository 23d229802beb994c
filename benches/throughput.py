"""Tokens per second through the Python API, over llama-batched-bench at the same settings.

Both sides decode as many streams at the same time, on the same model, context, threads and KV layout, in turn. Ours are
asyncio streams with the default sampling, from the moment when all of them decode to the moment when the first one
ends; theirs is S_TG, which neither samples nor delivers. Ours keep no prefixes, since cells that only wait for a later
prompt slow every pass and the peer has none. Run it on a quiet machine:

    python benches/throughput.py --streams 1 4 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import figures
import peer
from llama_batch import LLAMA_CPP_BUILD, Engine
from llama_batch.models import resolve

if TYPE_CHECKING:
    from llama_batch import Completion, Model

BUDGET = 0.97
Arrivals = list[tuple[float, int]]
"""When tokens reached their reader, and how many."""


def prompt(model: Model, stream: int, n_tokens: int) -> list[int]:
    """A prompt that no other stream shares and that models go on with for long: a count.

    Args:
        model: Whose tokens.
        stream: Which one.
        n_tokens: Its length.

    Returns:
        The tokens.
    """
    start = 1000 + 389 * stream
    return model.tokenize(", ".join(str(number) for number in range(start, start + n_tokens)))[:n_tokens]


async def follow(engine: Engine, tokens: list[int], n_generate: int) -> tuple[Arrivals, Completion]:
    """Read one stream to its end, noting when tokens come."""
    generation = engine.stream(tokens, max_tokens=n_generate, cache_prompt=False)
    arrivals = [(time.perf_counter(), len(chunk.token_ids)) async for chunk in generation]
    return arrivals, await generation


def window(streams: list[tuple[Arrivals, Completion]], n_generate: int) -> float:
    """Tokens per second in the window in which all streams decode.

    Args:
        streams: What each reader saw, and how its request ended.
        n_generate: Tokens that each was to generate.

    Returns:
        The rate.
    """
    for arrivals, done in streams:
        if sum(count for _, count in arrivals) != done.usage.generated_tokens:
            raise SystemExit(f"request {done.request_id} delivered other tokens than its usage counts")
    start = max(arrivals[0][0] for arrivals, _ in streams)
    end = min(arrivals[-1][0] for arrivals, _ in streams)
    # Tokens of one tick come one after the other: half a tick's tolerance keeps them on the same side of a border.
    gaps = [later - at for arrivals, _ in streams for (at, _), (later, _) in pairwise(arrivals)]
    first, last = start + median(gaps) / 2, end + median(gaps) / 2
    n_tokens = sum(count for arrivals, _ in streams for at, count in arrivals if first < at <= last)
    if n_tokens < len(streams) * n_generate / 2:
        reasons = sorted({done.finish_reason for _, done in streams})
        raise SystemExit(f"all streams decoded together for {n_tokens} tokens only (ended by {reasons})")
    return n_tokens / (end - start)


def run(setting: peer.Setting) -> float:
    """One run through the Python API: a new engine, a short request to warm it up, then all streams at once.

    Args:
        setting: What to run.

    Returns:
        Tokens per second while all streams decode.
    """

    async def serve() -> float:
        engine = Engine(
            setting.model,
            n_parallel=setting.n_streams,
            n_ctx=setting.n_ctx,
            n_threads=setting.n_threads,
            flash_attn=setting.flash_attn,  # type: ignore[arg-type]  # the command line checked the word
            kv_unified=setting.kv_unified,
        )
        async with engine:
            await engine.generate("Once upon a time", max_tokens=4, cache_prompt=False)
            prompts = [prompt(engine.model, stream, setting.n_prompt) for stream in range(setting.n_streams)]
            streams = await asyncio.gather(*(follow(engine, tokens, setting.n_generate) for tokens in prompts))
            return window(streams, setting.n_generate)

    return asyncio.run(serve())


def arguments() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI; the default model otherwise")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], help="streams at the same time")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each stream")
    parser.add_argument("--generate", type=int, default=128, help="tokens that each stream generates")
    parser.add_argument("--ctx", type=int, default=8192, help="cells of the KV cache, in tokens")
    parser.add_argument("--threads", type=int, default=cores, help="threads that compute")
    parser.add_argument("--flash-attn", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--kv-unified", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--repeats", type=int, default=6, help="pairs of runs, in turn")
    parser.add_argument("--openmp", action=argparse.BooleanOptionalAction, default=True, help="in their build")
    parser.add_argument("--bench-binary", type=Path, default=None, help="a llama-batched-bench that is there already")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    return parser.parse_args()


def main() -> int:
    """Measure, and print a table.

    Returns:
        1 where a ratio is below its budget, beyond its interval.
    """
    chosen = arguments()
    binary = chosen.bench_binary or peer.build(openmp=chosen.openmp)
    model = resolve(chosen.model)
    shared = peer.Setting(
        model, 0, chosen.prompt, chosen.generate, chosen.ctx, chosen.threads, chosen.flash_attn, chosen.kv_unified
    )
    print(f"{model.name}, {LLAMA_CPP_BUILD}; theirs: {binary}")
    sizes = f"{chosen.prompt} + {chosen.generate} tokens, n_ctx {chosen.ctx}"
    print(f"{sizes}, {chosen.threads} threads, flash_attn {chosen.flash_attn}, kv_unified {chosen.kv_unified}")
    print("| streams | ours, tokens/s | llama-batched-bench S_TG | ratio of the pairs, median [95 %] |")
    print("|---|---|---|---|")
    kept, failed = [], False
    for n_streams in chosen.streams:
        setting = replace(shared, n_streams=n_streams)
        pairs = figures.interleave(lambda s=setting: run(s), lambda s=setting: peer.run(binary, s), chosen.repeats)  # type: ignore[misc]
        ratios = [ours / theirs for ours, theirs in pairs]
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        print(f"| {n_streams} | {ours:.1f} | {theirs:.1f} | {figures.spread(ratios)} |", flush=True)
        failed |= figures.interval(ratios)[1] < BUDGET
        kept.append({**asdict(setting), "model": model.name, "pairs": pairs})
    if chosen.json:
        chosen.json.write_text(json.dumps(kept, indent=1))
    print(f"budget: {BUDGET}" + (", missed" if failed else ""))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
