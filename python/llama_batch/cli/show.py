"""Showing answers: side by side and alive in a terminal, plain and in order elsewhere."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from typing import TYPE_CHECKING

from llama_batch.cli.app import tell

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.panel import Panel
    from rich.text import Text

    from llama_batch.cli.answers import Answer, Answers

_PANEL_WIDTH_MIN = 38
_PANEL_HEIGHT_MIN = 5
_COLUMNS_MAX = 4
_FRAMES_PER_SECOND = 12
_CUT = ("max_tokens", "context_full")


async def show_plain(answers: Answers) -> None:
    """Write the answers one after the other, each as it comes; with a label where there are several."""
    out = sys.stdout
    many = len(answers.items) > 1
    for number, answer in enumerate(answers, 1):
        if many:
            out.write(f"{'' if number == 1 else chr(10)}[{number}] {_one_line(answer.prompt)}\n")
        written = 0
        while True:
            done = answer.done
            text = answer.text[written:] if not out.isatty() else _harmless(answer.text[written:])
            written = len(answer.text)
            out.write(text)
            out.flush()
            if done:
                break
            await answers.changed()
        if answer.text and not answer.text.endswith("\n"):
            out.write("\n")
        if answer.error is not None:
            out.flush()
            tell(f"prompt {number}: {answer.error}" if many else str(answer.error))
        elif answer.completion is not None and answer.completion.finish_reason in _CUT and sys.stderr.isatty():
            tell(f"{f'prompt {number}: ' if many else ''}the answer was cut off ({answer.completion.finish_reason})")
    out.flush()


class SideBySide:
    """Panels in columns: their ends while they grow, all of them once they have ended."""

    def __init__(self, console: Console) -> None:
        self.console = console

    async def __call__(self, answers: Answers) -> None:
        """Show the answers until all have ended; then, or when interrupted, leave them whole on the screen."""
        from rich.live import Live

        try:
            with Live(
                console=self.console,
                get_renderable=lambda: self.frame(answers),
                refresh_per_second=_FRAMES_PER_SECOND,
                transient=True,
                vertical_overflow="crop",
            ):
                while answers.n_done < len(answers.items):
                    await answers.changed()
                    await asyncio.sleep(0.5 / _FRAMES_PER_SECOND)
        finally:
            self.console.print(self.whole(answers))

    def frame(self, answers: Answers) -> RenderableType:
        """What is on the screen now: as many panels as it holds, those that still grow first."""
        n_columns = self._n_columns(len(answers.items))
        height = self.console.height - 2
        n_rows = -(-len(answers.items) // n_columns)
        n_shown_rows = max(1, min(n_rows, height // _PANEL_HEIGHT_MIN))
        shown = list(enumerate(answers, 1))
        if n_shown_rows < n_rows:
            shown = sorted(shown, key=lambda pair: pair[1].done)[: n_shown_rows * n_columns]
            shown.sort(key=lambda pair: pair[0])
        return self._grid(answers, shown, n_columns, max(1, height // n_shown_rows - 2))

    def whole(self, answers: Answers) -> RenderableType:
        """All answers, from beginning to end."""
        return self._grid(answers, list(enumerate(answers, 1)), self._n_columns(len(answers.items)), None)

    def _n_columns(self, n_answers: int) -> int:
        fit = max(1, min(_COLUMNS_MAX, self.console.width // _PANEL_WIDTH_MIN))
        n_rows = -(-n_answers // fit)
        return -(-n_answers // n_rows)

    def _grid(
        self, answers: Answers, shown: list[tuple[int, Answer]], n_columns: int, n_lines_max: int | None
    ) -> RenderableType:
        """Panels in rows of equal height; with a bound, only their last lines."""
        from rich.console import Group
        from rich.table import Table

        width = self.console.width // n_columns
        grid = Table.grid()
        for start in range(0, len(shown), n_columns):
            row = [
                (number, answer, self._lines(answer, width - 4)) for number, answer in shown[start : start + n_columns]
            ]
            n_lines = max(len(lines) for _, _, lines in row)
            if n_lines_max is not None:
                n_lines = min(n_lines, n_lines_max)
            panels = [_panel(number, answer, lines[-n_lines:], width, n_lines + 2) for number, answer, lines in row]
            grid.add_row(*panels)
        return Group(grid, self._footer(answers))

    def _lines(self, answer: Answer, width: int) -> list[Text]:
        """An answer as it is broken into lines; never none."""
        from rich.text import Text

        body = Text(_harmless(answer.text).strip())
        if answer.error is not None:
            body.append(f"\n{answer.error}" if body else str(answer.error), style="red")
        return list(body.wrap(self.console, max(1, width))) or [Text()]

    @staticmethod
    def _footer(answers: Answers) -> RenderableType:
        from rich.text import Text

        n, seconds = answers.n_tokens, answers.seconds
        failed = f", {answers.n_failed} failed" if answers.n_failed else ""
        return Text(
            f" {answers.n_done - answers.n_failed} of {len(answers.items)} answered{failed}"
            f" · {n} tokens in {seconds:.1f} s · {n / max(seconds, 1e-9):.0f} tokens/s together",
            style="dim",
        )


def _panel(number: int, answer: Answer, lines: list[Text], width: int, height: int) -> Panel:
    """A frame around lines of an answer, with its prompt above and its state below."""
    from rich.panel import Panel
    from rich.text import Text

    title = Text(f"{number} ", style="bold cyan")
    title.append(_one_line(_harmless(answer.prompt)), style="bold")
    title.truncate(max(1, width - 6), overflow="ellipsis")
    if answer.error is not None:
        style, state = "red", str(getattr(answer.error, "code", "error"))
    elif answer.completion is not None:
        style, state = "green", f"{answer.n_tokens} tokens · {answer.completion.finish_reason}"
    else:
        style, state = "cyan", f"{answer.n_tokens} tokens" if answer.n_tokens else "waiting"
    return Panel(
        Text("\n").join(lines), title=title, title_align="left", subtitle=Text(state, style="dim"),
        subtitle_align="right", border_style=style, height=height, width=width,
    )  # fmt: skip


def _harmless(text: str) -> str:
    """Text without the control characters by which an answer could command the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))


def _one_line(text: str) -> str:
    """A prompt as a title."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"
