"""Our engine against llama-server: the same model, KV cells, threads and requests, in turn.

Each figure is compared with llama-server as it comes and, with --grid, with the best point of a grid of its settings.
Ours has its default options but for n_ctx, n_parallel (a slot for each client) and the threads, which both sides share.
The points of the grid are first surveyed, the leaders for each figure again, and the best one is measured in pairs with
ours:

    python benches/versus.py shared --model model.gguf --repeats 5 --grid

Two scenarios are ours alone: `sweep`, which holds the load of `oversubscription` in more and less memory, and `idle`,
which asks what cached conversations cost the running ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import figures
import loads
import peer
import pressure
from llama_batch import LLAMA_CPP_BUILD, Engine
from llama_batch.models import resolve
from llama_server import LlamaServer
from loads import Load, Outcome, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 7
N_LEADERS = 3
N_AGAIN = 2
Point = tuple[str, ...]
"""Settings of llama-server; none are its defaults: four slots in a unified KV cache."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of an outcome, and what it has to be.

    Attributes:
        name: The field of `Outcome`.
        defaults: Ours over llama-server's by default, at least; at most, where less is better. None: no budget.
        grid: The same over the best point of the grid.
    """

    name: str
    defaults: float | None
    grid: float | None

    @property
    def rises(self) -> bool:
        """Whether more is better."""
        return not self.name.startswith("ttft")

    def of(self, outcome: Outcome) -> float:
        """Its value."""
        return float(getattr(outcome, self.name))

    def loss(self, outcomes: list[Outcome]) -> float:
        """What the best setting has least of; a setting that fails requests is no candidate."""
        value = median(self.of(outcome) for outcome in outcomes)
        return (-value if self.rises else value) if all(outcome.complete for outcome in outcomes) else math.inf

    def missed(self, ratios: list[float], budget: float | None) -> bool:
        """Whether the interval of the ratio lies beyond the budget."""
        low, high = figures.interval(ratios)
        return budget is not None and (high < budget if self.rises else low > budget)


Budgets = list[tuple[Figure, float | None]]
"""Figures of a comparison, with what their ratio has to be."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and the figures that it is for."""

    load: Callable[[Writer, bool], Load]
    figures: tuple[Figure, ...]


SCENARIOS = {
    "shared": Scenario(
        partial(loads.shared, n_bursts=1),
        (Figure("tokens_per_s", 3, 1.4), Figure("ttft_p50_s", 1 / 5, 1 / 2), Figure("ttft_p95_s", 1 / 5, 1 / 2)),
    ),
    "second": Scenario(partial(loads.shared, n_bursts=2), (Figure("tokens_per_s", None, 1.0),)),
    "chats": Scenario(loads.chats, (Figure("ttft_p50_s", 1 / 5, 1 / 1.5), Figure("ttft_p95_s", 1 / 5, 1 / 1.5))),
    "oversubscription": Scenario(loads.oversubscription, (Figure("tokens_per_s", None, 1.0),)),
    "distinct": Scenario(loads.distinct, (Figure("tokens_per_s", None, 1.0),)),
    "sampled": Scenario(loads.sampled, (Figure("tokens_per_s", 1.08, 1.08),)),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """Pairs of measurements, ours and theirs with the settings of a point."""

    point: Point
    pairs: list[tuple[Outcome, Outcome]]
    missed: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """Both sides, ready to be measured. Each measurement has a fresh engine or server."""

    model: Path
    binary: Path
    n_threads: int

    def ours(self, load: Load) -> Outcome:
        """Measure ours."""

        async def serve() -> Outcome:
            engine = Engine(self.model, n_ctx=load.n_ctx, n_parallel=load.n_clients, n_threads=self.n_threads)
            async with engine:
                return await loads.hold(loads.Ours(engine), load)

        return asyncio.run(serve())

    def arguments(self, load: Load, point: Point) -> list[str]:
        """What llama-server gets."""
        shared = {"-m": self.model, "-c": load.n_ctx, "-t": self.n_threads, "-tb": self.n_threads}
        return [word for name, value in shared.items() for word in (name, str(value))] + list(point)

    def theirs(self, load: Load, point: Point) -> Outcome:
        """Measure llama-server with the settings of a point."""
        with LlamaServer(self.binary, self.arguments(load, point)) as server:
            return asyncio.run(loads.hold(server, load))


def grid(load: Load) -> Iterator[Point]:
    """The settings of llama-server that are worth a try for a load.

    Slots, layout and flash attention in all combinations that can hold its conversations, since these interact; what is
    left, one at a time on top of the layouts that tend to win, since a full product would take a day.
    """
    yield ()
    slots = [n_slots for n_slots in (4, 8, 16) if n_slots <= load.n_clients]
    for n_slots in slots:
        for layout in ("-kvu", "-no-kvu"):
            if layout == "-kvu" or load.n_ctx // n_slots >= load.n_cells:
                yield from (("-np", str(n_slots), layout, "-fa", flash) for flash in ("on", "off"))
    held = [n_slots for n_slots in slots if load.n_ctx // n_slots >= load.n_cells]
    split: Point = ("-np", str(held[-1] if held else slots[0]), "-no-kvu" if held else "-kvu", "-fa", "off")
    # Smaller batches let the first tokens out earlier; -sps 0 hands out slots by least recent use, 0.9 takes a slot
    # only for a prompt that is nearly its own; -bs samples where the logits are.
    for extra in ("-b 512", "-b 256 -ub 256", "-ub 128", "-sps 0", "-sps 0.9", "--cache-ram 0", "-bs"):
        yield (*split, *extra.split())
    # Idle slots of a unified cache are saved to RAM and cleared at each request, unless told otherwise.
    for n_slots in dict.fromkeys((slots[0], slots[-1])):
        for flash in ("on", "off"):
            yield ("-np", str(n_slots), "-kvu", "-fa", flash, "--no-cache-idle-slots")


def title(point: Point) -> str:
    """A point's name."""
    return shlex.join(point) or "defaults"


def survey(bench: Bench, load: Load, scenario: Scenario, points: list[Point]) -> dict[Point, list[Outcome]]:
    """Measure each point of the grid once, then the leaders for each figure again, and print what came out."""
    surveyed = {}
    for number, point in enumerate(points):
        surveyed[point] = [bench.theirs(load, point)]
        n_tokens = surveyed[point][0].tokens_per_s
        print(f"  {number + 1}/{len(points)} {title(point)}: {n_tokens:.1f} tokens/s", flush=True)
    leaders = {
        point
        for figure in scenario.figures
        for point in sorted(points, key=lambda point: figure.loss(surveyed[point]))[:N_LEADERS]
    }
    for _ in range(N_AGAIN):
        for point in points:
            if point in leaders:
                surveyed[point].append(bench.theirs(load, point))
    print(f"\n| grid | runs | {' | '.join(figure.name for figure in scenario.figures)} | completed |")
    print("|" + "---|" * (len(scenario.figures) + 3))
    for point, outcomes in surveyed.items():
        medians = " | ".join(f"{median(map(figure.of, outcomes)):.3f}" for figure in scenario.figures)
        n_completed = min(outcome.n_completed for outcome in outcomes)
        print(f"| `{title(point)}` | {len(outcomes)} | {medians} | {n_completed} of {load.n_requests} |")
    print()
    return surveyed


def compare(bench: Bench, load: Load, point: Point, budgets: Budgets, n_repeats: int) -> Compared:
    """Measure ours and one setting of theirs in turn, and print it.

    Args:
        bench: Measures.
        load: What to send.
        point: Their settings.
        budgets: Figures to print, with what each ratio has to be.
        n_repeats: Pairs.

    Returns:
        What was measured.
    """
    print(f"llama-server {shlex.join(bench.arguments(load, point))}", flush=True)
    pairs = figures.interleave(lambda: bench.ours(load), lambda: bench.theirs(load, point), n_repeats)
    missed = False
    print("\n| figure | ours, median [95 %] | llama-server | ours ÷ theirs | budget |\n|---|---|---|---|---|")
    for figure, budget in budgets:
        ratios = [ratio(figure.of(mine), figure.of(other)) for mine, other in pairs]
        sides = " | ".join(
            figures.spread([figure.of(outcome) for outcome in side], 2) for side in zip(*pairs, strict=True)
        )
        bound = "none" if budget is None else f"{'≥' if figure.rises else '≤'} {budget:.2f}"
        verdict = ", missed" if figure.missed(ratios, budget) else ""
        missed |= bool(verdict)
        print(f"| {figure.name} | {sides} | {figures.spread(ratios, 2)} | {bound}{verdict} |")
    print()
    for name, side in zip(("ours", "theirs"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: {loads.summary(side)}")
    print(flush=True)
    incomplete = not all(mine.complete for mine, _ in pairs)
    return Compared(point, pairs, missed or incomplete)


def ratio(ours: float, theirs: float) -> float:
    """One over the other, where a side may have completed nothing (0) or never begun (infinity)."""
    return math.inf if math.isinf(ours) or not theirs else ours / theirs


def versus(name: str, bench: Bench, load: Load, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run a scenario against llama-server by default, with --peer, and with the best of the grid.

    Args:
        name: The scenario.
        bench: Measures.
        load: What to send.
        chosen: The command line.

    Returns:
        All figures, for a file.
    """
    scenario = SCENARIOS[name]
    defaults = [(figure, figure.defaults) for figure in scenario.figures]
    compared = [compare(bench, load, (), defaults, chosen.repeats)]
    for words in chosen.peer:
        free: Budgets = [(figure, None) for figure in scenario.figures]
        compared.append(compare(bench, load, tuple(shlex.split(words)), free, chosen.repeats))
    surveyed: dict[Point, list[Outcome]] = {}
    if chosen.grid:
        points = list(grid(load))
        surveyed = survey(bench, load, scenario, points[:: len(points) // 2] if chosen.quick else points)
        # Among those that ran more than once: of many single runs the best is the luckiest.
        leaders = [point for point, outcomes in surveyed.items() if len(outcomes) > 1]
        best = {figure: min(leaders, key=lambda point: figure.loss(surveyed[point])) for figure in scenario.figures}
        for point in dict.fromkeys(best.values()):
            led = [(figure, figure.grid) for figure in scenario.figures if best[figure] == point]
            compared.append(compare(bench, load, point, led, chosen.repeats))
    return {
        "missed": any(each.missed for each in compared),
        "compared": [
            {
                "arguments": bench.arguments(load, each.point),
                "pairs": [[asdict(side) for side in pair] for pair in each.pairs],
            }
            for each in compared
        ],
        "grid": [
            {"arguments": bench.arguments(load, point), "outcomes": [asdict(outcome) for outcome in outcomes]}
            for point, outcomes in surveyed.items()
        ],
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=[*SCENARIOS, "sweep", "idle"])
    parser.add_argument("--model", default=None, help="path or URI; the default model otherwise")
    parser.add_argument("--repeats", type=int, default=None, help="pairs of runs, in turn (default: 5; 1 if --quick)")
    parser.add_argument("--grid", action="store_true", help="compare with the best point of a grid too")
    parser.add_argument("--peer", action="append", default=[], help='further settings, as in --peer="-np 16 -kvu"')
    parser.add_argument("--quick", action="store_true", help="tiny loads that only show that everything works")
    parser.add_argument("--threads", type=int, default=cores, help="threads that compute (default: one for each core)")
    parser.add_argument("--openmp", action=argparse.BooleanOptionalAction, default=True, help="in their build")
    parser.add_argument("--server-binary", type=Path, default=None, help="a llama-server that is there already")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    chosen = parser.parse_args()
    chosen.repeats = chosen.repeats or (1 if chosen.quick else 5)
    return chosen


def main() -> int:
    """Measure a scenario and print its tables.

    Returns:
        1 where a ratio is beyond its budget with its whole interval, or ours left a request incomplete.
    """
    chosen = arguments()
    model = resolve(chosen.model)
    print(f"{chosen.scenario}: {model.name}, {LLAMA_CPP_BUILD}, {chosen.threads} threads", flush=True)
    if chosen.scenario == "idle":
        kept = pressure.idle(model, chosen.threads, chosen.repeats, chosen.quick)
    else:
        alone = chosen.scenario == "sweep"
        binary = Path() if alone else chosen.server_binary or peer.build(openmp=chosen.openmp, target=peer.SERVER)
        bench = Bench(model, binary, chosen.threads)
        scenario = SCENARIOS["oversubscription" if alone else chosen.scenario]
        with Engine(model, n_ctx=512, n_parallel=1) as engine:  # only for its vocabulary
            load = scenario.load(Writer(engine.model, SEED), chosen.quick)
        print(load.describe(), flush=True)
        if alone:
            kept = pressure.sweep(bench.ours, load, chosen.repeats)
        else:
            kept = versus(chosen.scenario, bench, load, chosen)
    if chosen.json:
        kept = {"scenario": chosen.scenario, "model": model.name, "build": LLAMA_CPP_BUILD, **kept}
        chosen.json.write_text(json.dumps(kept, indent=1))
    return int(kept["missed"])


if __name__ == "__main__":
    sys.exit(main())
