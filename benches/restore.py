"""What it takes to bring a prefix back from the RAM tier, or from a folder, against reading it again.

Two prompts that do not fit the KV cache together take turns; each drives the other out. The first two rounds read them,
the next two save what they drive out as well, the rest restore alone. Then a new engine, which has nothing but the
folder of the one before, is asked the same. Time to the first token, one pass over one token included:

    python benches/restore.py --model model.gguf --tokens 4096
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from llama_batch import Engine
from llama_batch.models import resolve

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = 50.0
BLOCK = 64


def main() -> int:
    """Print the figures; 1 where the ratio of RAM is under its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    n_tokens = options.tokens // BLOCK * BLOCK + 1  # all but the last are whole blocks
    model, sizes = resolve(options.model), {"n_ctx": n_tokens * 3 // 2, "n_parallel": 1}
    with Engine(model, n_ctx=512) as engine:
        prompts = [
            engine.model.tokenize(", ".join(map(str, range(start, start + n_tokens))))[:n_tokens]
            for start in (1000, 50_000)
        ]
    with Engine(model, **sizes) as engine:
        times = [ask(engine, prompts[turn % 2]) for turn in range(options.rounds)]
    read, from_ram = median(times[:2]), median(times[4:])
    from_disk = median(after_a_restart(model, sizes, prompts[0], options.rounds - 4))
    print(f"{n_tokens - 1} tokens, to the first new one: read {read:.0f} ms, from RAM {from_ram:.0f} ms", end="")
    print(f" ({read / from_ram:.0f} times, budget {BUDGET:.0f}), from disk {from_disk:.0f} ms", end="")
    print(f" ({read / from_disk:.0f} times)")
    return int(read / from_ram < BUDGET)


def ask(engine: Engine, prompt: list[int]) -> float:
    """The time to the first token. Unit: ms."""
    done = engine.generate(prompt, max_tokens=1, temp=0).result()
    print(f"{done.timings.ttft_ms:10.1f} ms, {done.usage.prefix_cache_tokens} tokens from the cache", flush=True)
    return done.timings.ttft_ms


def after_a_restart(model: Path, sizes: dict[str, Any], prompt: list[int], rounds: int) -> list[float]:
    """The same of engines that have nothing but a folder. Unit: ms."""
    times = []
    with TemporaryDirectory() as folder:
        for _ in range(rounds + 1):
            with Engine(model, prompt_cache_dir=folder, **sizes) as engine:
                times.append(ask(engine, prompt))
    return times[1:]


if __name__ == "__main__":
    sys.exit(main())
