"""What benches/versus.py compares: loads, their figures, what these have to be, and the peer's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import figures
import loads
import mixed
from loads import Load, Side, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from outcomes import Outcome

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
        return not self.name.endswith("_s") or self.name.endswith("per_s")

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
    """A load, and the figures that it is for.

    Attributes:
        load: Writes it; a small one where its second argument says so.
        figures: What is compared.
        hold: Sends it, and measures.
        batches: Whether the grid is of batch sizes alone, which trade a prompt's time for that of streams.
    """

    load: Callable[[Writer, bool], Load]
    figures: tuple[Figure, ...]
    hold: Callable[[Side, Load], Coroutine[Any, Any, Outcome]] = loads.hold
    batches: bool = False


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
    "contexts": Scenario(mixed.contexts, (Figure("decode_per_s", None, 0.97), Figure("itl_p50_s", None, None))),
    "arrival": Scenario(
        mixed.arrival, (Figure("worst_itl_s", None, None), Figure("ttft_p50_s", None, None)), mixed.arrive, batches=True
    ),
    "flood": Scenario(
        mixed.flooding, (Figure("ttft_p50_s", None, None), Figure("ttft_p95_s", None, None)), mixed.flood
    ),
    "storm": Scenario(
        mixed.storm,
        (Figure("tokens_per_s", None, None), Figure("ttft_p95_s", None, None), Figure("worst_itl_s", None, None)),
        mixed.arrive,
    ),
}


def grid(load: Load, batches: bool = False) -> Iterator[Point]:
    """The settings of llama-server that are worth a try for a load.

    Slots, layout and flash attention in all combinations that can hold its conversations, since these interact; what is
    left, one at a time on top of the layouts that tend to win, since a full product would take a day.
    """
    yield ()
    if batches:
        for n_batch, n_ubatch in ((2048, 128), (1024, 512), (512, 512), (512, 128), (256, 256), (128, 128), (64, 64)):
            yield ("-np", str(load.n_clients), "-kvu", "-b", str(n_batch), "-ub", str(n_ubatch))
        return
    slots = [n_slots for n_slots in (4, 8, 16) if n_slots <= load.n_clients] or [load.n_clients]
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
