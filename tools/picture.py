"""The README's picture: `llama-batch run` on the default model, recorded from a real run.

python tools/picture.py            writes docs/run.svg
"""

from __future__ import annotations

import asyncio
import io
import shlex
from pathlib import Path

from llama_batch import Engine
from llama_batch.cli.answers import Answers, answer_all, submitter
from llama_batch.cli.show import SideBySide
from rich.console import Console
from rich.terminal_theme import MONOKAI

TARGET = Path(__file__).resolve().parents[1] / "docs" / "run.svg"
PROMPTS = ["Why is the sky blue?", "Name three prime numbers.", "Write a haiku about rain."]
OPTIONS = {"temp": 0, "penalty_repeat": 1.1, "max_tokens": 80}
# rich's own template, without the web font that it would load.
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: ui-sans-serif, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


async def _wait(answers: Answers) -> None:
    while answers.ended is None:
        await answers.changed()


def main() -> None:
    """Run, record, write."""
    console = Console(record=True, width=138, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in OPTIONS.items())
    command = f"llama-batch run {flags} {' '.join(shlex.quote(prompt) for prompt in PROMPTS)}"
    console.print(f"[bold green]$[/] {command}", highlight=False)
    recorded = SideBySide(console)
    with Engine() as engine:
        answers = asyncio.run(answer_all(PROMPTS, submitter(engine, raw=False), OPTIONS, _wait))
    console.print(recorded.whole(answers))
    console.print()
    TARGET.parent.mkdir(exist_ok=True)
    svg = console.export_svg(title="llama-batch run", theme=MONOKAI, code_format=TEMPLATE, unique_id="run")
    TARGET.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
