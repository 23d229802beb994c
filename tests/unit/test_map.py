"""Many prompts at a time."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from llama_batch import Completion, EmptyPromptError, Engine, OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from llama_batch import Generation


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("sim:?pass_ms=0", n_parallel=4, max_queue=4)


def test_completions_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    prompts = ["p" * (1 + i % 13) for i in range(200)]
    done = list(engine.map(prompts, max_tokens=3))
    assert [d.usage.prompt_tokens for d in done] == [len(p) for p in prompts]


def test_unordered_completions_all_come(engine: Engine) -> None:
    done = list(engine.map(["p" * (i + 1) for i in range(50)], max_tokens=3, ordered=False))
    assert sorted(d.usage.prompt_tokens for d in done) == list(range(1, 51))


def test_prompts_are_taken_as_there_is_room(engine: Engine) -> None:
    n_taken = 0

    def prompts() -> Iterator[str]:
        nonlocal n_taken
        while True:
            n_taken += 1
            yield "endless"

    completions = engine.map(prompts(), max_tokens=2)
    for _ in range(10):
        next(completions)
    completions.close()
    assert n_taken < 10 + 8 * 4
    assert list(completions) == []


def test_an_error_is_raised_in_its_place_and_ends_the_rest(engine: Engine) -> None:
    completions = engine.map(["a", "", "c"], max_tokens=1)
    assert isinstance(next(completions), Completion)
    with pytest.raises(EmptyPromptError):
        next(completions)
    assert list(completions) == []


def test_errors_can_be_returned_in_their_place(engine: Engine) -> None:
    done = list(engine.map(["a", "", "c"], max_tokens=1, on_error="return"))
    assert [type(d) for d in done] == [Completion, EmptyPromptError, Completion]


def test_a_full_queue_is_waited_for() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=1, max_queue=1) as engine:
        others = [engine.generate("x", max_tokens=20) for _ in range(2)]
        assert len(list(engine.map(["a", "b", "c", "d"], max_tokens=2))) == 4
        assert all(g.result().finish_reason == "max_tokens" for g in others)


def test_two_maps_share_one_small_queue() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=1, max_queue=1) as engine:
        maps = [engine.map(list("abcdef"), max_tokens=2) for _ in range(2)]
        assert [len(list(pair)) for pair in zip(*maps, strict=True)] == [2] * 6


def test_chat_prompts_may_be_messages(engine: Engine) -> None:
    done = list(engine.map(["a", [{"role": "user", "content": "a"}]], chat=True, temp=0, max_tokens=3))
    assert done[0].text == done[1].text


def test_wrong_arguments_are_refused_at_once(engine: Engine) -> None:
    with pytest.raises(TypeError, match="iterable"):
        engine.map(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not one str"):
        engine.map("one text")
    with pytest.raises(ValueError, match="on_error"):
        engine.map(["a"], on_error="ignore")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="max_tokens"):
        engine.map(["a"], max_tokns=3)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="temp"):
        engine.map(["a"], temp=-1.0)


def test_the_progress_bar_counts_completions(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    assert len(list(engine.map(["a"] * 7, max_tokens=1, progress=True))) == 7
    assert "7/7" in capsys.readouterr().err


def test_a_completion_is_given_before_the_next_prompt_is_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_done = 0
    behind = []
    generations: list[Generation] = []
    submit = engine._submit

    def watched(*args: Any) -> Generation:
        generations.append(submit(*args))
        return generations[-1]

    def prompts() -> Iterator[str]:
        for n_taken in range(40):
            behind.append(n_taken - n_done)
            yield "x"
            generations[-1].result()  # every answer is there before the next prompt

    monkeypatch.setattr(engine, "_submit", watched)
    for _ in engine.map(prompts(), max_tokens=1):
        n_done += 1
    assert n_done == 40
    assert max(behind) <= 1


def in_asyncio(main: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(main(), 30)

    return asyncio.run(run())


def in_trio(main: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        with trio.fail_after(30):
            return await main()

    return trio.run(run)


both_loops = pytest.mark.parametrize("run", [in_asyncio, in_trio])


async def pause(seconds: float) -> None:
    if trio.lowlevel.in_trio_run():
        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


@both_loops
def test_a_prompt_may_wait_for_the_answer_to_the_one_before(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    async def main() -> list[str]:
        answers: list[str] = []

        async def prompts() -> AsyncIterator[str]:
            for turn in range(5):
                while len(answers) < turn:
                    await pause(0.001)
                yield "".join(answers) or "a"

        async for done in engine.map(prompts(), max_tokens=3):
            answers.append(done.text)  # noqa: PERF401 - the prompts look at it
        return answers

    assert len(run(main)) == 5


@both_loops
def test_async_prompts_that_raise_do_so_after_the_completions_before_them(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    async def prompts() -> AsyncIterator[str]:
        for prompt in "ab":
            yield prompt
            await pause(0)
        raise RuntimeError("boom")

    async def main() -> int:
        completions = engine.map(prompts(), max_tokens=2)
        n_done = len([await anext(completions) for _ in range(2)])
        with pytest.raises(RuntimeError, match="boom"):
            await anext(completions)
        return n_done

    assert run(main) == 2


@both_loops
def test_dropping_it_gives_up_the_prompt_that_is_on_its_way(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    ended: list[str] = []

    async def prompts() -> AsyncIterator[str]:
        yield "a"
        try:
            await pause(3600)
        finally:
            ended.append("given up")

    async def main() -> None:
        completions = engine.map(prompts(), max_tokens=2)
        await anext(completions)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(completions), 0.05)
        del completions
        gc.collect()
        await pause(0.05)

    async def main_in_trio() -> None:
        completions = engine.map(prompts(), max_tokens=2)
        await anext(completions)
        with trio.move_on_after(0.05):
            await anext(completions)
        del completions
        gc.collect()
        await pause(0.05)

    run(main if run is in_asyncio else main_in_trio)
    assert ended == ["given up"]


def test_async_prompts_cannot_be_read_without_a_loop(engine: Engine) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "a"

    with pytest.raises(TypeError, match="async for"):
        next(engine.map(prompts()))


class Broken:
    """An async iterable that fails before it awaits anything."""

    def __aiter__(self) -> Broken:
        return self

    def __anext__(self) -> Awaitable[str]:
        raise RuntimeError("boom")


@both_loops
def test_an_async_iterable_that_breaks_at_once_raises(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="boom"):
            await anext(engine.map(Broken()))

    run(main)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt])
@both_loops
def test_whatever_ends_the_prompts_is_raised_in_its_place(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any], error: type[BaseException]
) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "a"
        await pause(0)
        raise error

    async def main() -> None:
        completions = engine.map(prompts(), max_tokens=2)
        await anext(completions)
        try:
            await anext(completions)
        except BaseException as raised:  # noqa: BLE001 - that is what is looked at
            assert type(raised) is error  # noqa: PT017

    run(main)


@both_loops
def test_what_prompts_enter_they_leave_in_the_same_task(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    async def prompts() -> AsyncIterator[str]:
        token = variable.set(1)
        with anyio.move_on_after(20):
            for prompt in "abc":
                await pause(0.001)
                yield prompt
                assert variable.get() == 1
        variable.reset(token)

    async def main() -> int:
        return len([done async for done in engine.map(prompts(), max_tokens=2)])

    assert run(main) == 3


def test_a_map_over_async_prompts_is_read_in_one_loop(engine: Engine) -> None:
    async def prompts() -> AsyncIterator[str]:
        while True:
            await pause(0)
            yield "a"

    completions = engine.map(prompts(), max_tokens=1)

    async def many() -> None:
        for _ in range(50):
            await anext(completions)

    in_asyncio(many)
    with pytest.raises(RuntimeError, match="one event loop"):
        in_asyncio(many)


def test_closing_wakes_a_reader_that_waits_for_a_prompt(engine: Engine) -> None:
    async def prompts() -> AsyncIterator[str]:
        await pause(3600)
        yield "a"

    async def main() -> None:
        completions = engine.map(prompts())

        async def read() -> list[Completion]:
            return [done async for done in completions]

        async def close() -> None:
            completions.close()

        reader, closer = asyncio.create_task(read()), asyncio.create_task(close())
        assert await reader == []
        await closer

    in_asyncio(main)


@both_loops
def test_aclose_returns_when_nothing_of_the_prompts_runs(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    async def prompts() -> AsyncIterator[str]:
        while True:
            await pause(0.01)
            yield "a"

    async def main() -> None:
        generator: Any = prompts()
        completions = engine.map(generator, max_tokens=2)
        await anext(completions)
        await completions.aclose()
        await generator.aclose()

    run(main)


def test_closing_in_another_thread_gives_up_the_prompts(engine: Engine) -> None:
    given_up = threading.Event()

    async def prompts() -> AsyncIterator[str]:
        yield "a"
        try:
            await pause(3600)
        finally:
            given_up.set()

    async def main() -> None:
        completions = engine.map(prompts(), max_tokens=2)
        await anext(completions)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(completions), 0.05)
        threading.Thread(target=completions.close).start()
        while not given_up.is_set():
            await pause(0.01)

    in_asyncio(main)


def test_a_progress_bar_gives_the_terminal_back_however_it_ends() -> None:
    pytest.importorskip("rich")
    script = """
from llama_batch import Engine
engine = Engine("sim:?pass_ms=0")
for _ in engine.map(["a"] * 20, max_tokens=1, progress=True):
    break
len(dict(zip(range(20), engine.map(["a"] * 20, max_tokens=1, progress=True))))
for _ in engine.map(["a"] * 20, max_tokens=1, progress=True):
    1 / 0
"""
    env = {**os.environ, "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env)
    hidden, shown = done.stderr.count("\x1b[?25l"), done.stderr.count("\x1b[?25h")
    assert (hidden, shown) == (3, 3)
    assert done.stderr.index("Traceback") > done.stderr.rindex("20/20")
