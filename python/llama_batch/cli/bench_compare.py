"""`llama-batch bench compare`: results side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from llama_batch.cli.options import Command, Flag


@click.command(
    "compare",
    cls=Command,
    params=[
        click.Argument(["files"], nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)),
        Flag(["--html", "html_path"], type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
             help="Write a report with pictures here."),
    ],
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, files: tuple[Path, ...], html_path: Path | None, **_: Any) -> int:
    """Compare what `llama-batch bench --json` wrote: figures side by side, with ratios to the first."""
    from llama_batch.benchmark.report import page
    from llama_batch.benchmark.result import Result
    from llama_batch.benchmark.text import compared, notes, table

    if html_path is not None and not html_path.parent.is_dir():
        raise click.UsageError(f"{html_path}: there is no folder {html_path.parent}", ctx)
    results = [Result.load(path) for path in files]
    # Results of the same name are told apart by their files.
    names = Counter(result.label for result in results)
    results = [
        replace(result, label=path.stem) if names[result.label] > 1 or not result.label else result
        for path, result in zip(files, results, strict=True)
    ]
    rendered = page(results)
    print(table(compared(results)))
    print("\n".join(["", *notes(results)]).rstrip())
    if html_path is not None:
        html_path.write_text(rendered, encoding="utf-8")
    return 0
