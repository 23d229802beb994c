"""What a download reports while it runs."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Stage = Literal["waiting", "downloading", "unpacking", "verifying"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One report.

    Attributes:
        uri: The model that is being fetched.
        stage: `waiting` for another process that fetches the same model, `downloading`, `unpacking` or `verifying`.
        n_bytes: What this stage has done. Unit: bytes.
        n_total: What this stage has to do, where it is known. Unit: bytes.
    """

    uri: str
    stage: Stage
    n_bytes: int
    n_total: int | None


Report = Callable[[Progress], None]


class Reporter:
    """Counts the bytes of one model's stages and tells a callback; without a callback it costs nothing.

    What the callback raises ends the download, and nothing of it stays behind: so a caller gives up.
    """

    def __init__(self, uri: str, callback: Report | None) -> None:
        self.uri = uri
        self._callback = callback

    def __call__(self, stage: Stage, n_bytes: int, n_total: int | None) -> None:
        """Report what a stage has done so far."""
        if self._callback is not None:
            self._callback(Progress(self.uri, stage, n_bytes, n_total))


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A progress bar on standard error, for the time of a `with`; silent where standard error is no terminal.

    Returns:
        The callback to pass as `progress`. The bar appears with the first report, so a cached model shows none.

    Example:
        >>> with progress_bar() as progress:
        ...     path = resolve(None, progress=progress)
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    stages: dict[str, int] = {}
    lock = threading.Lock()

    def report(progress: Progress) -> None:
        with lock:
            if not stages:
                bars.start()
            if progress.stage not in stages:
                label = f"{progress.stage} {progress.uri.rpartition('/')[2]}"
                stages[progress.stage] = int(bars.add_task(label, total=progress.n_total, amount=""))
            task = bars.task_ids[list(stages).index(progress.stage)]
            bars.update(task, completed=progress.n_bytes, total=progress.n_total, amount=_amount(progress))

    try:
        yield report
    finally:
        with lock:
            if stages:
                bars.stop()


def _amount(progress: Progress) -> str:
    """How much of how much, in the unit of people."""
    if progress.n_total is None:
        return f"{progress.n_bytes / 1e6:,.1f} MB" if progress.n_bytes else ""
    return f"{progress.n_bytes / 1e6:,.1f} of {progress.n_total / 1e6:,.1f} MB"
