"""The command tree, and what an error looks like from outside: one line, and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from llama_batch.errors import LlamaBatchError, ModelLoadError, ModelNotFoundError, OptionError, RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED, USAGE, NO_MODEL, INTERRUPTED, NO_READER = 1, 2, 3, 130, 141

_COMMANDS = {
    "run": ("llama_batch.cli.run", "Answer prompts, or a file of them, all at once."),
    "chat": ("llama_batch.cli.chat", "Talk with a model in the terminal."),
    "serve": ("llama_batch.cli.serve", "Serve a model over HTTP, as OpenAI and llama-server do."),
    "rpc-worker": (
        "llama_batch.cli.rpc_worker",
        "Serve this machine's devices to engines on others, by llama.cpp's RPC.",
    ),
    "bench": ("llama_batch.cli.bench", "Measure a model, or any OpenAI-compatible server, under load."),
    "tune": ("llama_batch.cli.tune", "Measure which settings compute fastest with a model here."),
    "models": ("llama_batch.cli.models", "List, fetch, check and remove the models in the cache."),
    "info": ("llama_batch.cli.info", "Tell what a model is and how much memory it takes."),
}


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what the user should know about it."""


class _Commands(click.Group):
    """Loads a command when it is called, so that each starts as fast as it can."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from llama_batch import LLAMA_CPP_BUILD, __version__

    click.echo(f"llama-batch {__version__}\nllama.cpp: {LLAMA_CPP_BUILD.removeprefix('llama.cpp ')}")
    ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 all went well; 1 a request failed; 2 a mistake in the command or an option; 3 the model was "
    "not found or could not be loaded; 130 interrupted. LLAMA_BATCH_DEBUG=1 shows where an error came from.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the versions."
)
def cli() -> None:
    """Many prompts answered at once by one GGUF model."""


def run(args: Sequence[str]) -> int:
    """Run a command.

    Args:
        args: The words behind `llama-batch`.

    Returns:
        The exit code.
    """
    _prepare_streams()
    debug = os.environ.get("LLAMA_BATCH_DEBUG") == "1"
    if not debug:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # what a second Ctrl-C tears apart is no news
    try:
        if "_LLAMA_BATCH_COMPLETE" in os.environ:
            cli.main(list(args), prog_name="llama-batch")  # a shell asks what could come next
        result = _invoke(args)
        sys.stdout.flush()
        return result
    except BaseException as error:
        if debug and not isinstance(error, BrokenPipeError):
            raise
        code = _explain(error)
        _settle_output()
        return code


def _invoke(args: Sequence[str]) -> int:
    """Run a command without click's own idea of what errors look like."""
    try:
        with cli.make_context("llama-batch", list(args)) as ctx:
            result = cli.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code
    return result if isinstance(result, int) else 0


def _explain(error: BaseException) -> int:
    """Say what went wrong, and which exit code it is."""
    match error:
        case BrokenPipeError():
            return NO_READER
        case click.UsageError() if type(error).__name__ == "NoArgsIsHelpError":  # unknown to older versions of click
            error.show()
            return USAGE
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "llama-batch"
            return _fail(f"{error.format_message().rstrip('.')} ({command} --help shows what there is)", USAGE)
        case click.ClickException():
            return _fail(error.format_message(), USAGE)
        case KeyboardInterrupt() | click.exceptions.Abort():
            return _fail(str(error) or "interrupted", INTERRUPTED)
        case OptionError():
            return _fail(str(error), USAGE)
        case ModelNotFoundError() | ModelLoadError() | RpcError():
            return _fail(str(error), NO_MODEL)
        case LlamaBatchError():
            return _fail(str(error), FAILED)
        case SystemExit() | GeneratorExit():
            raise error
        case OSError():
            where = f": {error.filename}" if error.filename else ""
            return _fail(f"{error.strerror or error}{where}", FAILED)
        case _:
            what = f"{type(error).__name__}: {error}"
            return _fail(f"unexpected {what} (LLAMA_BATCH_DEBUG=1 shows where it came from)", FAILED)


def _fail(message: str, code: int) -> int:
    """One line on standard error."""
    tell(message)
    return code


def tell(message: str) -> None:
    """Say something to the user, in one line on standard error."""
    with contextlib.suppress(OSError, AttributeError):
        print(f"llama-batch: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _prepare_streams() -> None:
    """Never fail to print for the sake of a character, nor for that of a stream that is closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(**({} if stream.isatty() else {"encoding": "utf-8"}), errors="replace")


def _settle_output() -> None:
    """Keep the interpreter from complaining at its exit of what cannot be written: to a full disk, to no reader."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
