"""The progress bar of `Engine.map`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_batch.types import Completion

if TYPE_CHECKING:
    from llama_batch.errors import LlamaBatchError


class Bar:
    """Completions done, and tokens a second; nothing at all where `rich` is not installed."""

    def __init__(self, total: int | None) -> None:
        self._n_tokens = 0
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            self._bars = None
            return
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._task = self._bars.add_task("", total=total, rate="")
        self._bars.start()

    def advance(self, outcome: Completion | LlamaBatchError) -> None:
        """One more is done."""
        if self._bars is None:
            return
        if isinstance(outcome, Completion):
            self._n_tokens += outcome.usage.generated_tokens
        elapsed = self._bars.tasks[0].elapsed or 0.0
        rate = f"{self._n_tokens / elapsed:.0f} tokens/s" if elapsed > 0.0 else ""
        self._bars.update(self._task, advance=1, rate=rate)

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self._bars is not None:
            self._bars.stop()
