"""What the host takes for a tick beside the forward pass: what a device would wait for, were it as fast as simulated.

Streams of a simulated model are read along by asyncio readers. A tick's length is the time from one `tick` event to the
next, of those in which all streams decode; what is more than the pass is the host's. A sleep that ends late is counted
against it:

    python benches/host.py --streams 64 --pass-ms 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from itertools import pairwise
from pathlib import Path

import figures
from llama_batch import Engine, Event, Generation

BUDGET_US = 300.0


async def _read(generation: Generation) -> int:
    return sum([len(chunk.token_ids) async for chunk in generation])


def overheads(n_streams: int, n_tokens: int, pass_ms: float) -> list[float]:
    """One run.

    Args:
        n_streams: streams at the same time.
        n_tokens: tokens of each.
        pass_ms: length of a simulated forward pass, in milliseconds.

    Returns:
        What each tick took beside its pass, in microseconds.
    """
    ticks: list[tuple[float, bool]] = []

    def note(event: Event) -> None:
        m = event.measurements
        ticks.append((event.at_s, m["decode_tokens"] == n_streams == m["batch_size"]))

    async def read_all(engine: Engine) -> None:
        prompts = ([1 + stream % 200, 3, 5] for stream in range(n_streams))
        await asyncio.gather(*(_read(engine.stream(prompt, max_tokens=n_tokens)) for prompt in prompts))

    options = {"n_parallel": n_streams, "n_ctx": n_streams * (n_tokens + 16), "max_queue": 0}
    simulated = f"sim:?pass_ms={pass_ms}&eog_every=0"
    with Engine(simulated, **options) as engine, engine.subscribe(note, events=["tick"]):  # type: ignore[arg-type]  # all whole numbers
        asyncio.run(read_all(engine))
        engine.close(drain=True)
    gaps = [later - at for (at, was_full), (later, is_full) in pairwise(ticks) if was_full and is_full]
    return [1e6 * gap - 1e3 * pass_ms for gap in gaps]


def main() -> int:
    """Measure, and print the figures.

    Returns:
        1 where the median is over its budget, beyond its interval.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each stream (default: 512)")
    parser.add_argument("--pass-ms", type=float, default=2.0, help="length of a simulated forward pass (default: 2)")
    parser.add_argument("--json", type=Path, default=None, help="write the figure here")
    chosen = parser.parse_args()
    found = overheads(chosen.streams, chosen.tokens, chosen.pass_ms)
    if not found:
        raise SystemExit("there was no tick in which all streams decoded: give them more --tokens")
    missed = figures.interval(found)[0] > BUDGET_US
    value = figures.spread(found, 0)
    print(f"{len(found)} ticks of {chosen.streams} rows, passes of {chosen.pass_ms} ms: the host takes {value} µs more")
    print(f"budget: {BUDGET_US:.0f} µs" + (", missed" if missed else ""))
    if chosen.json:
        chosen.json.write_text(json.dumps({"value": value, "budget": BUDGET_US, "missed": missed}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
