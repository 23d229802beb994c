"""`llama-batch bench`: its flags, and what they ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llama_batch._options import REQUEST_OPTIONS, START_OPTIONS
from llama_batch.cli.options import Command, Flag, Number, flags_in, flags_of, given

if TYPE_CHECKING:
    from llama_batch.cli.bench_run import Plan

_TAKEN = {
    "ignore_eos", "logprobs", "max_tokens", "n", "post_sampling_logprobs", "prompt_logprobs", "queue_timeout", "seed",
    "session", "timeout",
}  # fmt: skip
"""Options of requests that the workload decides, or that change what an answer is made of."""
START = {name: spec for name, spec in START_OPTIONS.items() if name not in _TAKEN}
REQUEST = {name: spec for name, spec in REQUEST_OPTIONS.items() if name not in _TAKEN}

_DEFAULTS = {
    "n_parallel": "one for each client, 64 at most; 8 where arrivals have times",
    "max_queue": 0,
    "kv_unified": True,
}
_EPILOG = (
    "`llama-batch bench compare A.json B.json --html OUT` puts results side by side. docs/benchmarking.md says what "
    "the words mean, and has the formats of traces and results. Exit codes: 1 where a request failed, 130 after "
    "Ctrl-C; what was measured until then is told and written."
)
_SLO_WORD = re.compile(r"\w+:[\d.]+")
CONCURRENCY = 8
N_REQUESTS = 64


class _Bench(Command):
    """Passes `compare` on, and takes the words behind `--slo` as vLLM's `--goodput` does."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        """Read the command line."""
        if args[:1] == ["compare"]:
            from llama_batch.cli.bench_compare import command as compare

            return compare.make_context(f"{info_name} compare", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each word behind --slo a flag of its own."""
        spread: list[str] = []
        is_slo = False
        for word in args:
            if is_slo and _SLO_WORD.fullmatch(word) and spread[-1] not in ("--slo", "--goodput"):
                spread.append("--slo")
            is_slo = word in ("--slo", "--goodput") or (is_slo and bool(_SLO_WORD.fullmatch(word)))
            spread.append(word)
        return super().parse_args(ctx, spread)


_asked = flags_in("What is asked")
_when = flags_in("When")
_server = flags_in("Over HTTP")
_result = flags_in("Result")


def _path(mode: str) -> click.Path:
    if mode == "r":
        return click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.Path(dir_okay=False, path_type=Path)


@flags_of([("Options of the requests", REQUEST), ("Options of the engine", START)], _DEFAULTS)
@click.command(
    "bench",
    cls=_Bench,
    params=[
        click.Argument(["model"], required=False),
        Flag(["--model", "-m", "model_flag"], metavar="MODEL", help="The same as MODEL."),
        _server("--url", metavar="URL", help="Measure this server instead, with or without /v1; MODEL is then its "
                "model's name. [default: the first that it lists]"),
        _server("--api-key", metavar="KEY", envvar=["LLAMA_BATCH_API_KEY", "OPENAI_API_KEY"],
                help="Its key; LLAMA_BATCH_API_KEY or OPENAI_API_KEY hide it from the list of processes."),
        _server("--header", multiple=True, metavar="NAME:VALUE", help="Further header; may be given several times."),
        _server("--body", metavar="JSON", help="Further fields of all requests, as an object."),
        _when("--concurrency", "-c", type=Number(int, 1), metavar="N",
              help=f"Clients that ask again when they are answered; with --rate or --trace, conversations held at the "
              f"same time at most. [default: {CONCURRENCY}; no bound with --rate or --trace]"),
        _when("--rate", type=Number(float, 1e-6), metavar="R",
              help="Conversations begin at random (Poisson), so many per second on average; inf begins all at once."),
        _when("--max-seconds", type=Number(float, 0.001), metavar="SECONDS",
              help="Ask nothing more after this time; what is under way is finished."),
        _when("--warmup", type=Number(int, 0), default=2, metavar="N",
              help="Short requests before, which are not measured. [default: 2]"),
        _asked("--requests", "-n", "n_conversations", type=Number(int, 1), metavar="N",
               help=f"Requests; with --turns or --conversations, conversations. "
               f"[default: {N_REQUESTS}; what a file holds]"),
        _asked("--prompt-tokens", metavar="N|N-M", help="Tokens of each question, or a range. [default: 128]"),
        _asked("--max-tokens", "--output-tokens", "output_tokens", metavar="N|N-M",
               help="Tokens of each answer, or a range. [default: 128; as recorded with --conversations]"),
        _asked("--shared-prefix", type=Number(int, 0), metavar="TOKENS",
               help="A system prompt of so many tokens that all share. [default: 0]"),
        _asked("--turns", type=Number(int, 1), metavar="N", help="Turns of each conversation. [default: 1]"),
        _asked("--prompts", type=_path("r"), metavar="FILE",
               help="Prompts, one in a line; *.jsonl has objects with prompt or messages, and output_tokens."),
        _asked("--trace", type=_path("r"), metavar="FILE",
               help="JSON Lines of requests with the seconds of their arrival: at, and prompt, messages or "
               "prompt_tokens, and output_tokens."),
        _asked("--speed", type=Number(float, 1e-3), metavar="X",
               help="How much faster to play the trace. [default: 1]"),
        _asked("--conversations", type=_path("r"), metavar="FILE",
               help="Recorded conversations, as ShareGPT has them."),
        _asked("--seed", type=Number(int, 0), default=0, metavar="N",
               help="Of words, lengths and arrivals. [default: 0]"),
        _asked("--ignore-eos/--no-ignore-eos", default=None,
               help="Whether answers go on to their full length, past the model's end. [default: yes, but for "
               "--prompts without lengths]"),
        _asked("--endpoint", type=click.Choice(["auto", "completions", "chat"]), default="auto",
               help="Whether to ask for completions of text, or for chat completions. [default: chat where there are "
               "several turns or a system prompt]"),
        _asked("--timeout", type=Number(float, 0.001), default=600.0, metavar="SECONDS",
               help="Give a request up after this time; it has failed then. [default: 600]"),
        _result("--slo", "--goodput", multiple=True, metavar="FIGURE:MS",
                help="What a good request keeps to: ttft:500 itl:100 tpot:50 e2e:10000, one or several."),
        _result("--json", "json_path", type=_path("w"), metavar="FILE", help="Write all figures and requests here."),
        _result("--html", "html_path", type=_path("w"), metavar="FILE", help="Write a report with pictures here."),
        _result("--label", metavar="TEXT", help="What the result is called in reports."),
    ],
    epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Measure a model in this process, or any OpenAI-compatible server (--url), under load.

    MODEL is a path, pypi:PACKAGE, hf:OWNER/REPO[:QUANT], ollama:NAME or sim:; SmolLM2 135M where nothing is given.
    """
    from llama_batch.cli.bench_run import bench

    return bench(_plan(ctx, flags))


def _plan(ctx: click.Context, flags: dict[str, Any]) -> Plan:
    """What the flags ask for, once they are seen to fit each other."""
    from llama_batch.benchmark.slo import Slo
    from llama_batch.cli.bench_run import Plan

    _check_sources(ctx, flags)
    if flags["model"] is not None and flags["model_flag"] is not None:
        raise click.UsageError("MODEL is given twice", ctx)
    start, url = given(ctx, START), flags["url"]
    # What requests have too is theirs: a server knows nothing of the engine's defaults.
    start = {name: value for name, value in start.items() if name not in REQUEST}
    if url is not None and start:
        raise click.UsageError(f"--{min(start).replace('_', '-')} is an option of the engine, which --url has", ctx)
    if url is None and (alone := [name for name in ("header", "body") if flags[name]]):
        raise click.UsageError(f"--{alone[0]} belongs to --url", ctx)
    for name in ("json_path", "html_path"):
        if flags[name] is not None and not flags[name].parent.is_dir():
            raise click.UsageError(f"{flags[name]}: there is no folder {flags[name].parent}", ctx)
    concurrency = flags["concurrency"]
    is_closed = flags["rate"] is None and flags["trace"] is None
    if url is None:
        slots = min(concurrency or CONCURRENCY, 64) if is_closed else 8
        start = {"n_parallel": slots, "max_queue": 0, **start}
    kept = {name: flags[name] for name in Plan.COPIED}
    return Plan(
        **kept,
        model=flags["model"] or flags["model_flag"],
        concurrency=(concurrency or CONCURRENCY) if is_closed else concurrency,
        start=start,
        request=given(ctx, REQUEST),
        headers=_headers(ctx, flags["header"]),
        body=_body(ctx, flags["body"]),
        slo=Slo.parse(flags["slo"]),
    )


def _check_sources(ctx: click.Context, flags: dict[str, Any]) -> None:
    """Flags that contradict each other are refused, before anything is loaded."""
    files = [name for name in ("prompts", "trace", "conversations") if flags[name] is not None]
    if len(files) > 1:
        raise click.UsageError(f"--{files[0]} and --{files[1]} cannot go together", ctx)
    made = [name for name in ("prompt_tokens", "shared_prefix", "turns") if flags[name] is not None]
    if files and made:
        raise click.UsageError(
            f"--{made[0].replace('_', '-')} cannot go with --{files[0]}, which says what is asked", ctx
        )
    if flags["trace"] is not None and flags["rate"] is not None:
        raise click.UsageError("--rate cannot go with --trace, which says when", ctx)
    if flags["speed"] is not None and flags["trace"] is None:
        raise click.UsageError("--speed belongs to --trace", ctx)
    if files and "-" in (flags["output_tokens"] or ""):
        raise click.UsageError(f"--max-tokens is one number with --{files[0]}", ctx)


def _headers(ctx: click.Context, words: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header: {word!r} is not NAME:VALUE", ctx)
        headers[name.strip().lower()] = value.strip()
    return headers


def _body(ctx: click.Context, text: str | None) -> dict[str, Any]:
    import json

    try:
        body = {} if text is None else json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--body: no JSON: {error}", ctx) from None
    if not isinstance(body, dict):
        raise click.UsageError("--body must be a JSON object", ctx)
    if body.get("stream", True) is not True:
        raise click.UsageError("--body: only streams can be measured", ctx)
    return body
