"""What it takes to bring a prefix back from the RAM tier, against reading it again.

Two prompts that do not fit the KV cache together take turns; each drives the other out. The first two rounds read them,
the next two save what they drive out as well, the rest restore alone. Time to the first token, one pass over one token
included:

    python benches/restore.py --model model.gguf --tokens 4096
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from llama_batch import Engine
from llama_batch.models import resolve

BUDGET = 50.0
BLOCK = 64


def main() -> int:
    """Print the figures; 1 where the ratio is under its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    n_tokens = options.tokens // BLOCK * BLOCK + 1  # all but the last are whole blocks
    with Engine(resolve(options.model), n_ctx=n_tokens * 3 // 2, n_parallel=1) as engine:
        prompts = [
            engine.model.tokenize(", ".join(map(str, range(start, start + n_tokens))))[:n_tokens]
            for start in (1000, 50_000)
        ]
        times = []
        for turn in range(options.rounds):
            done = engine.generate(prompts[turn % 2], max_tokens=1, temp=0).result()
            times.append(done.timings.ttft_ms)
            print(
                f"{done.timings.ttft_ms:10.1f} ms, {done.usage.prefix_cache_tokens} tokens from the cache", flush=True
            )
    ratio = median(times[:2]) / median(times[4:])
    print(f"restoring {n_tokens - 1} tokens is {ratio:.0f} times faster than reading them, budget {BUDGET:.0f}")
    return int(ratio < BUDGET)


if __name__ == "__main__":
    sys.exit(main())
