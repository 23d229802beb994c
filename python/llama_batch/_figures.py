"""An engine's figures: of this moment, and since its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_batch.calibration import Calibration
from llama_batch.metrics import Metrics
from llama_batch.types import Stats

if TYPE_CHECKING:
    from llama_batch import _core


class FiguresApi:
    """What an engine tells in numbers."""

    native: _core.Engine

    @property
    def calibration(self) -> Calibration | None:
        """What was measured of the model before it was ready; None where nothing was (`calibrate="off"`, or no choice).

        Example:
            >>> engine.calibration.chosen.flash_attn
            False
        """
        told = self.native.calibration
        return None if told is None else Calibration.of_json(told)

    def stats(self) -> Stats:
        """Figures of this moment, and sums since the start. Never waits for the engine.

        Returns:
            The figures.

        Example:
            >>> engine.stats().active_slots
            0
        """
        return Stats.from_native(self.native.stats())

    def metrics(self) -> Metrics:
        """All that is measured since the start: histograms of times and tokens, and counts. Never waits for the engine.

        `llama_batch.prometheus.render` makes a Prometheus scrape of it.

        Returns:
            The metrics; a request whose result is there is counted in them.

        Raises:
            EngineForkedError: the engine lives in the process that this one was forked from.

        Example:
            >>> engine.metrics().time_to_first_token.quantile(0.95)
            0.0625
        """
        return Metrics.from_native(self.native.metrics())
