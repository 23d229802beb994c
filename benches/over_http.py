"""Tokens per second over HTTP, over those in process: the same engine, the same requests, in turn.

Many clients ask one engine, through its Python API and through `llama-batch`'s server on a port of this machine. The
client over HTTP is `llama_batch.benchmark`'s, in this process, as a worst case: it takes the server's cores. By default
the model is simulated, with passes as long as those of a small model, so that HTTP is what differs:

    python benches/over_http.py --streams 64
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import figures
import uvicorn
from llama_batch import Engine
from llama_batch.benchmark import ClosedLoop, EngineTarget, Result, Synthetic, measure
from llama_batch.benchmark.url import UrlTarget
from llama_batch.benchmark.workload import Sizes
from llama_batch.server import create_app
from shaped import model_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch.benchmark import Target

BUDGET = 0.95
SIMULATED = "sim:?pass_ms=20&eog_every=0"


@contextlib.contextmanager
def served(engine: Engine) -> Iterator[str]:
    """The engine behind a port of this machine; its URL."""
    config = uvicorn.Config(create_app(engine), port=0, log_config=None, access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="bench-server")
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


async def rate(target: Target, n_streams: int, n_tokens: int, seed: int) -> float:
    """Tokens per second of so many clients, one request each.

    Args:
        target: who answers.
        n_streams: clients.
        n_tokens: tokens of each answer.
        seed: of the prompts: others each time, so that none is cached.

    Returns:
        The rate.
    """
    written = await Synthetic(n_streams, Sizes(16, 16), Sizes(n_tokens, n_tokens), seed=seed).write(target.count)
    figures_ = Result.of(await measure(target, written, ClosedLoop(n_streams))).figures
    if figures_.n_failed or figures_.output_tokens_per_s is None:
        raise SystemExit(f"requests failed: {figures_.failures}")
    return figures_.output_tokens_per_s


def main() -> int:
    """Measure, and print the ratio.

    Returns:
        1 where it is below its budget, beyond its interval.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SIMULATED, help=f"path, URI or shaped:1B (default: {SIMULATED})")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (default: 128)")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs, in turn (default: 5)")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    chosen = parser.parse_args()
    model = chosen.model if chosen.model.startswith("sim:") else model_of(chosen.model)
    n_ctx = chosen.streams * (chosen.tokens + 64)
    with Engine(model, n_ctx=n_ctx, n_parallel=chosen.streams, max_queue=0) as engine, served(engine) as url:
        seeds = iter(range(10_000))

        def over_http() -> float:
            async def run() -> float:
                target = UrlTarget(url)
                try:
                    await target.prepare()
                    return await rate(target, chosen.streams, chosen.tokens, next(seeds))
                finally:
                    target.close()

            return asyncio.run(run())

        def in_process() -> float:
            return asyncio.run(rate(EngineTarget(engine), chosen.streams, chosen.tokens, next(seeds)))

        pairs = figures.interleave(over_http, in_process, chosen.repeats)
    ratios = [http / direct for http, direct in pairs]
    low, high = figures.interval(ratios)
    missed = high < BUDGET
    print(f"{chosen.streams} streams of {chosen.tokens} tokens, {chosen.model}")
    for name, side in zip(("over HTTP", "in process"), zip(*pairs, strict=True), strict=True):
        print(f"  {name}: {figures.spread(side, 1)} tokens/s")
    print(f"  ratio: {figures.spread(ratios)}, budget {BUDGET}" + (", missed" if missed else ""))
    if chosen.json:
        kept: dict[str, Any] = {"pairs": pairs, "ratio": figures.spread(ratios), "interval": [low, high]}
        chosen.json.write_text(json.dumps({**kept, "budget": BUDGET, "missed": missed}, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
