"""What a request has to keep to, to count as a good one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_batch.benchmark.record import Record

__all__ = ["Slo"]

FIGURES = ("ttft", "itl", "tpot", "e2e")
_ALIASES = {"e2el": "e2e"}
"""What vLLM's `--goodput` calls them."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: bounds that each request has to keep to, all of them.

    Attributes:
        bounds: by figure, in milliseconds: `ttft` (from when it was due to its first text), `itl` (its longest gap
            between two deliveries), `tpot` (its time per output token), `e2e` (from when it was due to its end).
    """

    bounds: Mapping[str, float]

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self | None:
        """Read words such as `ttft:500`; several may stand in one, separated by commas or spaces.

        Args:
            words: the words.

        Returns:
            The objective; None where there are no words.

        Raises:
            OptionError: a word is none of these, or names a figure twice.

        Example:
            >>> Slo.parse(["ttft:500", "itl:100"])
        """
        bounds: dict[str, float] = {}
        for word in (word for given in words for word in given.replace(",", " ").split()):
            name, _, number = word.partition(":")
            name = _ALIASES.get(name, name)
            if name not in FIGURES:
                raise OptionError(f"slo: {word!r} is not FIGURE:MILLISECONDS with one of {', '.join(FIGURES)}")
            if name in bounds:
                raise OptionError(f"slo: {name} is given twice")
            try:
                bounds[name] = float(number)
            except ValueError:
                raise OptionError(f"slo: {number!r} in {word!r} is not a number of milliseconds") from None
            if not 0 < bounds[name] < math.inf:
                raise OptionError(f"slo: {word!r}: the bound must be more than 0 and finite")
        return cls(bounds) if bounds else None

    def kept_by(self, record: Record) -> bool:
        """Whether a request kept to it; one that failed, or did not tell what is asked, did not.

        Args:
            record: how the request went.
        """
        if not record.complete:
            return False
        measured = {
            "ttft": record.ttft_ms,
            "itl": max(record.itls_ms, default=0.0),
            "tpot": 0.0 if record.n_output == 1 else record.tpot_ms,
            "e2e": record.e2e_ms,
        }
        return all((value := measured[name]) is not None and value <= bound for name, bound in self.bounds.items())
