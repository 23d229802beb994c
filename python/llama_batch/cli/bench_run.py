"""Measures what `llama-batch bench` was asked for, and says and writes what came out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from llama_batch.benchmark import (
    BenchmarkError,
    ClosedLoop,
    EngineTarget,
    OpenLoop,
    Result,
    Synthetic,
    measure,
    poisson,
)
from llama_batch.benchmark.files import read_conversations, read_prompts, read_trace
from llama_batch.benchmark.text import summary
from llama_batch.benchmark.workload import Sizes
from llama_batch.cli.app import FAILED, INTERRUPTED, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_batch.benchmark import Arrivals, Conversation, Run, Slo
    from llama_batch.benchmark.url import UrlTarget

N_REQUESTS = 64
N_TOKENS = 128
WARM_UP = Sizes(16, 16)
_OPENAI_NAMES = {"temp": "temperature", "penalty_freq": "frequency_penalty", "penalty_present": "presence_penalty"}
"""Options of requests that other servers know by OpenAI's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line asks for; its flags' help says what each means."""

    COPIED: ClassVar = (
        "url", "api_key", "rate", "max_seconds", "warmup", "n_conversations", "prompt_tokens", "output_tokens",
        "shared_prefix", "turns", "prompts", "trace", "speed", "conversations", "seed", "ignore_eos", "endpoint",
        "timeout", "json_path", "html_path", "label",
    )  # fmt: skip

    model: str | None
    url: str | None
    api_key: str | None
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    concurrency: int | None
    rate: float | None
    max_seconds: float | None
    warmup: int
    n_conversations: int | None
    prompt_tokens: str | None
    output_tokens: str | None
    shared_prefix: int | None
    turns: int | None
    prompts: Path | None
    trace: Path | None
    speed: float | None
    conversations: Path | None
    seed: int
    ignore_eos: bool | None
    endpoint: str
    timeout: float
    start: Mapping[str, Any]
    request: Mapping[str, Any]
    slo: Slo | None
    json_path: Path | None
    html_path: Path | None
    label: str | None

    @property
    def goes_on(self) -> bool:
        """Whether answers go on past the model's end, as those of a given length do."""
        if self.ignore_eos is not None:
            return self.ignore_eos
        return self.prompts is None or self.output_tokens is not None

    @property
    def synthetic(self) -> Synthetic:
        """The workload of random words."""
        return Synthetic(
            self.n_conversations or N_REQUESTS,
            Sizes.parse(self.prompt_tokens or str(N_TOKENS)),
            Sizes.parse(self.output_tokens or str(N_TOKENS)),
            self.turns or 1,
            self.shared_prefix or 0,
            self.seed,
        )

    def describe(self) -> dict[str, Any]:
        """The workload, for a file."""
        for kind in ("prompts", "trace", "conversations"):
            path = getattr(self, kind)
            if path is not None:
                kept = {"kind": kind, "file": path.name, "n_conversations": self.n_conversations, "seed": self.seed}
                return {**kept, "output_tokens": self.output_tokens, "speed": self.speed, "ignore_eos": self.goes_on}
        return {**self.synthetic.describe(), "ignore_eos": self.goes_on}


def bench(plan: Plan) -> int:
    """Measure, print, write.

    Args:
        plan: what to measure.

    Returns:
        The exit code: 1 where a request failed, 130 where the user stopped it.
    """
    _ = plan.synthetic  # a size that is none is told before a model is loaded
    result = _over_http(plan) if plan.url is not None else _in_process(plan)
    print(summary(result), flush=True)
    if plan.json_path is not None:
        kept = json.dumps(result.to_json(), separators=(",", ":"), default=str)
        plan.json_path.write_text(kept + "\n", encoding="utf-8")
    if plan.html_path is not None:
        from llama_batch.benchmark.report import page

        plan.html_path.write_text(page([result]), encoding="utf-8")
    if result.interrupted:
        tell("interrupted; what is told above was measured until then")
        return INTERRUPTED
    return FAILED if result.figures.n_failed else 0


def _in_process(plan: Plan) -> Result:
    from llama_batch import LLAMA_CPP_BUILD, __version__
    from llama_batch.cli.run import opened

    with opened(plan.model, dict(plan.start)) as engine:
        target = EngineTarget(engine, timeout_s=plan.timeout, options=plan.request)
        told = {"kind": "engine", "model": engine.name, "description": engine.model.description,
                "engine_options": dict(plan.start), "request_options": dict(plan.request),
                "llama_batch": __version__, "llama_cpp": LLAMA_CPP_BUILD}  # fmt: skip
        return asyncio.run(_measured(plan, target, told, has_template=bool(engine.model.chat_template)))


def _over_http(plan: Plan) -> Result:
    async def measured() -> Result:
        from llama_batch.benchmark.url import UrlTarget

        assert plan.url is not None
        options = {_OPENAI_NAMES.get(name, name): value for name, value in plan.request.items()}
        body = {**options, **plan.body}
        target = UrlTarget(plan.url, model=plan.model, api_key=plan.api_key, headers=plan.headers,
                           timeout_s=plan.timeout, body=body)  # fmt: skip
        try:
            await target.prepare()
            told = {"kind": "url", "url": target.url, "model": target.model, "body": body}
            return await _measured(plan, target, told, has_template=True)
        finally:
            target.close()

    return asyncio.run(measured())


async def _measured(
    plan: Plan, target: EngineTarget | UrlTarget, told: dict[str, Any], *, has_template: bool
) -> Result:
    """Write the workload, warm up, and measure."""
    conversations = await _conversations(plan, target)
    if plan.endpoint == "auto":
        target.chat = has_template and any(map(_is_chat, conversations))
    else:
        target.chat = plan.endpoint == "chat"
    if plan.warmup:
        await _warm_up(plan, target)
    arrivals = _arrivals(plan, conversations)
    with _progress(sum(len(each.turns) for each in conversations)) as progress:
        run = await measure(
            target, conversations, arrivals, ignore_eos=plan.goes_on, max_s=plan.max_seconds, progress=progress
        )
    if not run.records:
        raise BenchmarkError("nothing was asked")
    notes: tuple[str, ...] = ()
    if not getattr(target, "counts_exactly", True):
        notes = ("The server has no /tokenize: lengths of prompts were counted in words, a little less than tokens.",)
    return Result.of(
        run,
        label=plan.label or _name(str(told["model"])),
        target={**told, "endpoint": "chat" if target.chat else "completions"},
        workload=plan.describe(),
        slo=plan.slo,
        notes=notes,
    )


def _name(model: str) -> str:
    """What a model is called in reports; llama-server names it by its path."""
    return PurePath(model).name if PurePath(model).is_absolute() else model


def _is_chat(conversation: Conversation) -> bool:
    """Whether it is more than one question."""
    return len(conversation.turns) > 1 or len(conversation.turns[0].messages) > 1


async def _conversations(plan: Plan, target: EngineTarget | UrlTarget) -> Sequence[Conversation]:
    """What to ask."""
    n_output = None if plan.output_tokens is None else Sizes.parse(plan.output_tokens).low
    if plan.trace is not None:
        found = await read_trace(plan.trace, n_output or N_TOKENS, plan.seed, target.count, plan.speed or 1.0)
        return found[: plan.n_conversations]
    if plan.prompts is not None:
        found = read_prompts(plan.prompts, n_output or N_TOKENS)
        n = plan.n_conversations or len(found)
        return [found[index % len(found)] for index in range(n)]
    if plan.conversations is not None:
        return await read_conversations(plan.conversations, n_output, plan.n_conversations, plan.seed, target.count)
    return await plan.synthetic.write(target.count)


def _arrivals(plan: Plan, conversations: Sequence[Conversation]) -> Arrivals:
    if plan.trace is not None:
        return OpenLoop([each.arrival or 0.0 for each in conversations], concurrency=plan.concurrency)
    if plan.rate is not None:
        offsets = poisson(plan.rate, len(conversations), plan.seed)
        return OpenLoop(offsets, "poisson", plan.rate, plan.concurrency)
    assert plan.concurrency is not None
    return ClosedLoop(plan.concurrency)


async def _warm_up(plan: Plan, target: EngineTarget | UrlTarget) -> None:
    """Short requests that share nothing with the measured ones. What fails them would fail all."""
    # Words of another seed, so that a prefix cache does not hold what is measured.
    written = await Synthetic(plan.warmup, WARM_UP, Sizes(8, 8), seed=plan.seed + 1_000_003).write(target.count)
    run = await measure(target, written, ClosedLoop(min(plan.warmup, plan.concurrency or plan.warmup)),
                        ignore_eos=plan.goes_on)  # fmt: skip
    if run.interrupted:
        raise asyncio.CancelledError
    for record in run.records:
        if record.failure is not None:
            raise BenchmarkError(f"the first request failed, so nothing was measured: {record.failure}")


@contextlib.contextmanager
def _progress(n_requests: int) -> Iterator[Callable[[Run], None] | None]:
    """A bar on standard error, where somebody sees it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("measuring", total=n_requests)

        def show(run: Run) -> None:
            del run
            bar.advance(task)

        yield show
