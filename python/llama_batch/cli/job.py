"""`llama-batch run --input`: a batch job that can be interrupted at any moment and goes on where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import textwrap
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from llama_batch.cli.answers import submitter
from llama_batch.cli.app import FAILED, Stopped, tell
from llama_batch.cli.job_batch import BatchAnswers, is_batch, read_batch_lines
from llama_batch.cli.job_files import Answered, AnyLine, Line, Output, read_lines
from llama_batch.errors import (
    ChatTemplateError,
    EngineClosedError,
    EngineCrashedError,
    LlamaBatchError,
    ModelLoadError,
    ModelNotFoundError,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from llama_batch import Completion, Engine
    from llama_batch.cli.job_batch import BatchLine

_SYNC_INTERVAL_S = 1.0
_REASON_LENGTH = 100
_ENDS_THE_JOB = (EngineCrashedError, EngineClosedError, ModelLoadError, ModelNotFoundError, RpcError)


@dataclass(slots=True)
class _Tally:
    """How far the job is."""

    n_total: int
    n_before: int = 0
    n_answered: int = 0
    n_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    failed: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)

    def fail(self, code: str, message: str) -> None:
        """Count a failure; of those with one code, the first message is kept."""
        self.failed[code] += 1
        self.messages.setdefault(code, message)

    @property
    def n_failed(self) -> int:
        return self.failed.total()

    @property
    def n_done(self) -> int:
        return self.n_before + self.n_answered + self.n_failed

    def summary(self, where: str) -> str:
        """What was done, in words.

        Args:
            where: What holds the answers.
        """
        seconds = time.monotonic() - self.started
        before = f", {self.n_before} were answered before" if self.n_before else ""
        rate = f"; {self.n_tokens} tokens in {seconds:.1f} s, {self.n_tokens / max(seconds, 1e-9):.0f} tokens/s"
        failed = see = ""
        if self.failed:
            code = self.failed.most_common(1)[0][0]
            most = "most often " if len(self.failed) > 1 else ""
            reason = textwrap.shorten(self.messages[code], _REASON_LENGTH, placeholder="…")
            failed, see = f", {self.n_failed} failed ({most}{code}: {reason})", f'; see the "error" lines of {where}'
        return f"{self.n_answered} answered{failed}{before}{rate if self.n_tokens else ''}{see}"


def run_job(
    source: str,
    target: str | None,
    *,
    overwrite: bool,
    options: dict[str, Any],
    n_parallel: int,
    open_engine: Callable[[], AbstractContextManager[Engine]],
    raw: bool,
) -> int:
    """Answer the lines of a file.

    Args:
        source: The input; `-` is standard input.
        target: The output; None or `-` is standard output.
        overwrite: Forget earlier answers.
        options: Request options for lines that do not say.
        n_parallel: Requests that the engine runs at once.
        open_engine: Makes the engine; not called when nothing is left to answer.
        raw: Take prompts as they are.

    Returns:
        The exit code.

    Raises:
        Stopped: The user interrupted it.
        click.UsageError: A file is not there, or cannot be.
    """
    _refuse_same_file(source, target)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_input(source))
        batch = is_batch(file)
        make_app = _app_maker(options, raw=raw) if batch else None
        output = Output(target, overwrite=overwrite)
        stack.callback(output.close)
        where = output.path.name if output.path else "the output"
        tally = _Tally(sum(1 for line in file if line.strip()))
        file.seek(0)
        lines = _open_lines(read_batch_lines(file) if batch else read_lines(file), output, tally)
        first = next(lines, None)
        try:
            if first is not None:
                with open_engine() as engine:
                    answers = _Answers(engine, raw, options) if make_app is None else make_app(engine)
                    asyncio.run(_Job(answers, output, tally).run(first, lines, 2 * n_parallel))
        except KeyboardInterrupt:
            again = "the same command goes on from here" if output.path else "nothing of it can be resumed"
            raise Stopped(f"stopped: {tally.summary(where)}; {again}") from None
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    tell(tally.summary(where))
    return FAILED if tally.n_failed else 0


def _open_input(source: str) -> IO[bytes]:
    """The input; a pipe is read to its end, as waiting for a slow line would hold up the answers to earlier ones."""
    if source == "-":
        return io.BytesIO(sys.stdin.buffer.read())
    path = Path(source)
    if path.is_dir():
        raise click.UsageError(f"--input: {path} is a folder")
    if not path.exists():
        raise click.UsageError(f"--input: there is no file {path}")
    return path.open("rb") if path.is_file() else io.BytesIO(path.read_bytes())


def _refuse_same_file(source: str, target: str | None) -> None:
    """The answers must not end up among the prompts."""
    if source == "-" or target in (None, "-"):
        return
    with contextlib.suppress(FileNotFoundError):
        if Path(source).samefile(str(target)):
            raise click.UsageError("--input and --output are the same file")


def _app_maker(options: dict[str, Any], *, raw: bool) -> Callable[[Engine], BatchAnswers]:
    """What answers the lines of a batch file by an engine.

    Raises:
        click.UsageError: the command cannot be meant for such a file.
        click.ClickException: the extra that it takes is not installed.
    """
    if raw:
        raise click.UsageError("--raw: the url of each line of a batch file says whether there is a template")
    try:
        import llama_batch.server.app  # noqa: F401 - before the model is loaded: it may not be installed
    except ImportError as error:
        raise click.ClickException(f"OpenAI's batch format: {error}") from None
    from llama_batch.in_process import app_maker

    return lambda engine: BatchAnswers(engine, options, app_maker(engine))


def _open_lines(
    read: Iterable[Line] | Iterable[BatchLine], output: Output, tally: _Tally
) -> Iterator[Line | BatchLine]:
    """The lines that need an answer; wrong ones get theirs at once."""
    for line in read:
        if output.answered[line.key] > 0:
            output.answered[line.key] -= 1
            tally.n_before += 1
        elif line.error is not None:
            tally.fail("invalid_line", line.error)
            output.write(line, {"error": {"code": "invalid_line", "message": line.error}})
        else:
            yield line


class _Job:
    """Keeps a window of requests in flight and writes each answer when it comes."""

    def __init__(self, answers: Any, output: Output, tally: _Tally) -> None:
        """Hold what a job is made of.

        Args:
            answers: has `answer`, a coroutine function from a line to what became of it.
            output: where answers go.
            tally: counts them.
        """
        self.answers, self.output, self.tally = answers, output, tally

    async def run(self, first: AnyLine, rest: Iterator[AnyLine], window: int) -> None:
        """Answer all lines; input is read only as fast as answers come."""
        room = asyncio.Semaphore(window)
        synced = time.monotonic()
        with _bar(self.tally) as show:
            async with asyncio.TaskGroup() as tasks:
                line: AnyLine | None = first
                while line is not None:
                    await room.acquire()
                    task = tasks.create_task(self._answer(line, show))
                    task.add_done_callback(lambda _: room.release())
                    if time.monotonic() - synced > _SYNC_INTERVAL_S:
                        self.output.sync()
                        synced = time.monotonic()
                    line = next(rest, None)
        self.output.sync()

    async def _answer(self, line: AnyLine, show: Callable[[], None]) -> None:
        answered: Answered = await self.answers.answer(line)
        if answered.failure is not None:
            self.tally.fail(*answered.failure)
        else:
            self.tally.n_answered += 1
            self.tally.n_tokens += answered.n_tokens
        self.output.write(line, answered.answer)
        show()


class _Answers:
    """Answers lines of our own format."""

    def __init__(self, engine: Engine, raw: bool, options: dict[str, Any]) -> None:
        self.engine, self.raw, self.options = engine, raw, options
        self.submit = submitter(engine, raw)

    async def answer(self, line: Line) -> Answered:
        """One line's answer, or why there is none."""
        try:
            done = await self._submit(line)
        except _ENDS_THE_JOB:
            raise
        except LlamaBatchError as error:
            told: dict[str, Any] = {"code": error.code, "message": str(error)}
            if isinstance(error, RequestTimeoutError) and error.completion is not None:
                told["text"] = error.completion.text
            return Answered({"error": told}, failure=(error.code, str(error)))
        usage = asdict(done.usage)
        answer = {"text": done.text, "finish_reason": done.finish_reason, "usage": usage, "seed": done.seed}
        if done.stop_reason is not None:
            answer["stop_reason"] = done.stop_reason
        return Answered({**answer, **_asked_for(done)}, n_tokens=done.usage.generated_tokens)

    def _submit(self, line: Line) -> Any:
        """Text as the user expects, token ids as they are, messages through the template that they need."""
        submit: Callable[..., Any] = self.submit
        if line.chat and self.raw:
            raise ChatTemplateError("--raw takes prompts as they are, not messages")
        if line.chat:
            submit = self.engine.chat
        elif not isinstance(line.prompt, str):
            submit = self.engine.generate
        return submit(line.prompt, **{**self.options, **line.options})


@contextlib.contextmanager
def _bar(tally: _Tally) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("answers"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("answers", total=tally.n_total, completed=tally.n_done, rate="")

        def show() -> None:
            rate = tally.n_tokens / max(time.monotonic() - tally.started, 1e-9)
            failed = f", {tally.n_failed} failed" if tally.n_failed else ""
            bars.update(task, completed=tally.n_done, rate=f"{rate:.0f} tokens/s{failed}")

        yield show


def _asked_for(done: Completion) -> dict[str, Any]:
    """What stands in an answer only where a line asks for it: the other answers, and how likely tokens were."""
    found: dict[str, Any] = {}
    if done.others:
        found["choices"] = [
            {"text": choice.text, "finish_reason": choice.finish_reason, "seed": choice.seed} for choice in done.choices
        ]
    if done.logprobs is not None:
        found["logprobs"] = [[told.as_openai() for told in choice.logprobs or ()] for choice in done.choices]
        found["logprobs"] = found["logprobs"] if done.others else found["logprobs"][0]
    if done.prompt_logprobs is not None:
        found["prompt_logprobs"] = [told and told.as_openai() for told in done.prompt_logprobs]
    return found
