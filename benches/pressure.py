"""What memory does to ours: more requests than fit the KV cache, and cached conversations that only wait.

`python benches/versus.py sweep` and `python benches/versus.py idle` run these.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import figures
import loads
from llama_batch import Engine
from throughput import follow, prompt, window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outcomes import Outcome

SWEEP_PERCENT = (50, 100, 200, 300, 400)


def sweep(measure: Callable[[loads.Load], Outcome], load: loads.Load, n_repeats: int) -> dict[str, Any]:
    """The same requests in ever less memory, so that only the pressure differs.

    Args:
        measure: Measures ours.
        load: Requests that need twice its n_ctx.
        n_repeats: Rounds over all sizes.

    Returns:
        All figures, for a file.
    """
    sizes = {percent: load.n_ctx * 200 // percent for percent in SWEEP_PERCENT}
    measured: dict[int, list[Outcome]] = {percent: [] for percent in sizes}
    for turn in range(n_repeats):
        for percent in sizes if turn % 2 == 0 else reversed(sizes):
            measured[percent].append(measure(replace(load, n_ctx=sizes[percent])))
    print(
        "\n| cells needed | n_ctx | completed | goodput, tokens/s, median [95 %] | TTFT p95, s |\n|---|---|---|---|---|"
    )
    for percent, outcomes in measured.items():
        completed = f"{min(outcome.n_completed for outcome in outcomes)} of {load.n_requests}"
        goodput = figures.spread([outcome.tokens_per_s for outcome in outcomes], 1)
        late = figures.spread([outcome.ttft_p95_s for outcome in outcomes], 2)
        print(f"| {percent} % | {sizes[percent]} | {completed} | {goodput} | {late} |")
    print("\nbudget: all complete at 200 %")
    kept = {percent: [asdict(outcome) for outcome in outcomes] for percent, outcomes in measured.items()}
    return {"missed": not all(outcome.complete for outcome in measured[200]), "n_ctx": sizes, "outcomes": kept}


def idle(model: Path, n_threads: int, n_repeats: int, quick: bool) -> dict[str, Any]:
    """How much slower streams decode beside cached conversations that nobody continues.

    Two engines take turns, alike but for what the one holds; an engine with nothing to do takes no time. The streams
    keep nothing themselves, so that each measurement finds what the one before found.

    Args:
        model: The GGUF file.
        n_threads: Threads that compute.
        n_repeats: Pairs.
        quick: Tiny sizes.

    Returns:
        All figures, for a file.
    """
    n_ctx, n_idle, n_each, n_streams, n_generate = (4096, 2, 100, 2, 16) if quick else (32768, 14, 1000, 4, 96)
    with (
        Engine(model, n_ctx=n_ctx, n_parallel=n_streams, n_threads=n_threads) as quiet,
        Engine(model, n_ctx=n_ctx, n_parallel=n_streams, n_threads=n_threads) as laden,
        asyncio.Runner() as runner,
    ):
        writer = loads.Writer(quiet.model, seed=7)
        prompts = [prompt(quiet.model, stream, 128 if not quick else 16) for stream in range(n_streams)]

        async def fill() -> None:
            kept = [laden.generate(writer.exactly(n_each), max_tokens=1, temp=0) for _ in range(n_idle)]
            await asyncio.gather(*kept)

        async def decode(engine: Engine) -> float:
            streams = await asyncio.gather(*(follow(engine, tokens, n_generate) for tokens in prompts))
            return window(streams, n_generate)

        def rate(engine: Engine) -> float:
            return runner.run(decode(engine))

        runner.run(fill())
        before = laden.stats()
        # Both get warm, and the laden one makes room as long as it likes: what that costs is told apart.
        settling = [(rate(quiet), rate(laden))]
        while laden.stats().n_evicted and laden.stats().cached_sequences and len(settling) < 8:
            settling.append((rate(quiet), rate(laden)))
        pairs = figures.interleave(lambda: rate(quiet), lambda: rate(laden), n_repeats)
        after = laden.stats()
    slower = [100 * (alone / beside - 1) for alone, beside in pairs]
    alone, beside = (figures.spread(side, 1) for side in zip(*pairs, strict=True))
    print(f"{n_streams} streams, n_ctx {n_ctx}, with and without {n_idle} idle conversations of {n_each} tokens\n")
    print("| alone, tokens/s, median [95 %] | beside idle ones | slower by, % | budget |\n|---|---|---|---|")
    print(f"| {alone} | {beside} | {figures.spread(slower, 1)} | at most 5 |\n")
    lost = ", ".join(f"{100 * (alone / beside - 1):.0f} %" for alone, beside in settling)
    print(f"while it settled, {n_generate} tokens of each stream at a time, it was slower by {lost}")
    for when, stats in (("filled", before), ("measured", after)):
        held = f"{stats.cached_sequences} cached sequences, {stats.kv_cells_used} cells"
        print(f"once {when}: {held}, {stats.ram_cache_bytes / 2**20:.0f} MiB in RAM, {stats.n_evicted} evicted")
    return {"missed": False, "pairs": pairs, "slower_percent": slower}
