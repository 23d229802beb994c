"""The progress bar of `Engine.map`."""

from __future__ import annotations

import atexit
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_batch.types import Completion

if TYPE_CHECKING:
    from llama_batch.errors import LlamaBatchError

PERIOD_S = 0.1
"""Between two states of the bar on the screen."""


class Bar:
    """Completions done, and tokens a second; nothing at all where `rich` is not installed.

    It is drawn when a completion comes, by no thread of its own, so that nothing draws into what the program prints.
    It gives the terminal back (its cursor, too) when all is done, when it is closed or dropped, or at the very end.
    """

    _bars: Any = None

    def __init__(self, total: int | None) -> None:
        self._n_tokens = self._n_done = 0
        self._total = total
        self._drawn_at = 0.0
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
        console = Console(stderr=True)
        # What the program prints meanwhile is its own: rich would send it to the bar's stream, marked up and wrapped.
        self._bars = Progress(
            *columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._bars.add_task("", total=total, rate="")
        self._bars.start()
        self._at_exit = partial(_stop, self._bars, os.getpid())
        atexit.register(self._at_exit)

    def advance(self, outcome: Completion | LlamaBatchError) -> None:
        """One more is done."""
        if self._bars is None:
            return
        if isinstance(outcome, Completion):
            self._n_tokens += outcome.usage.generated_tokens
        self._n_done += 1
        elapsed = self._bars.tasks[0].elapsed or 0.0
        rate = f"{self._n_tokens / elapsed:.0f} tokens/s" if elapsed > 0.0 else ""
        self._bars.update(self._task, advance=1, rate=rate)
        now = time.monotonic()
        if now - self._drawn_at > PERIOD_S:
            self._drawn_at = now
            self._bars.refresh()
        if self._n_done == self._total:
            self.close()

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        bars, self._bars = self._bars, None
        if bars is not None:
            self._at_exit()
            atexit.unregister(self._at_exit)

    __del__ = close


def _stop(bars: Any, process: int) -> None:
    """Give the terminal back; a forked child has not got it."""
    if os.getpid() == process:
        bars.stop()
