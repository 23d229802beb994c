"""Tokens per second with drafts by prompt lookup (`n_draft`) over those without, in turn, on one engine.

Streams begin together; what counts is the time until the last of them ends. One prompt asks for a text that stands in
it, the other for one of the model's own. Run it on a quiet machine:

    python benches/drafts.py --streams 1 4 16
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import figures
from llama_batch import Engine
from llama_batch.models import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

VERSES = """\
The old lamp of harbour master {n} burns beside the quiet river.
Seven grey herons walk along the shore and wait for silver fish.
A baker in the narrow street has bread and honey in her window.
Nobody knows why the green door of the tower is never closed.
On market days the children count the boats that come from the north.
The clock of the town hall is late, and so is everybody who trusts it.
"""
PROMPTS: dict[str, Callable[[int], str]] = {
    "copied": lambda n: (VERSES * 2 + VERSES[:24]).format(n=n),
    "free": lambda n: f"Letter {n}. Dear friend, you asked me what happened in the year that I left the city. It began",
}


def rate(engine: Engine, prompts: list[str], n_tokens: int, n_draft: int) -> tuple[float, float]:
    """Let all of them be answered at the same time.

    Args:
        engine: Who answers.
        prompts: One for each stream.
        n_tokens: Tokens of each answer.
        n_draft: As the option.

    Returns:
        Tokens per second, and the share of the drafted tokens that were accepted.
    """
    started = time.perf_counter()
    generations = [
        engine.generate(prompt, n_draft=n_draft, max_tokens=n_tokens, temp=0.0, ignore_eos=True, cache_prompt=False)
        for prompt in prompts
    ]
    used = [generation.result().usage for generation in generations]
    took = time.perf_counter() - started
    n_drafted, n_accepted = sum(each.draft_tokens for each in used), sum(each.accepted_tokens for each in used)
    return sum(each.generated_tokens for each in used) / took, n_accepted / max(n_drafted, 1)


def main() -> None:
    """Print a line for each text and number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--n-draft", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    for n_streams in options.streams:
        with Engine(resolve(options.model), n_parallel=n_streams, n_ctx=1024 * n_streams) as engine:
            for name, prompt in PROMPTS.items():
                prompts = [prompt(n) for n in range(n_streams)]
                # The first ones teach what passes cost.
                warm = [rate(engine, prompts, 32, n_draft) for n_draft in (0, options.n_draft)]
                assert len(warm) == 2
                shares: list[float] = []

                def with_drafts(prompts: list[str] = prompts, shares: list[float] = shares) -> float:
                    per_second, share = rate(engine, prompts, options.tokens, options.n_draft)
                    shares.append(share)
                    return per_second

                def without(prompts: list[str] = prompts) -> float:
                    return rate(engine, prompts, options.tokens, 0)[0]

                pairs = figures.interleave(with_drafts, without, options.repeats)
                ratios = [drafted / plain for drafted, plain in pairs]
                print(
                    f"{name:>7}, {n_streams:2} streams: {figures.spread(ratios)} times as many tokens per second, "
                    f"{100 * sum(shares) / len(shares):.0f} % of what was drafted was accepted",
                    flush=True,
                )


if __name__ == "__main__":
    main()
