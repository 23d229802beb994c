"""Prompts of async iterables, in asyncio and trio."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from llama_batch import Completion, Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("sim:?pass_ms=0", n_parallel=4, max_queue=4)


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


async def comes_soon(something: Awaitable[object]) -> bool:
    """Whether it comes before one gives up waiting for it."""
    if trio.lowlevel.in_trio_run():
        with trio.move_on_after(0.05) as scope:
            await something
        return not scope.cancelled_caught
    try:
        await asyncio.wait_for(something, 0.05)
    except TimeoutError:
        return False
    return True


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
        assert not await comes_soon(anext(completions))
        del completions
        gc.collect()
        await pause(0.05)

    run(main)
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
        assert not await comes_soon(anext(completions))
        threading.Thread(target=completions.close).start()
        while not given_up.is_set():
            await pause(0.01)

    in_asyncio(main)


@both_loops
def test_an_iterable_that_answers_its_cancellation_with_a_prompt_ends_all_the_same(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], Any]
) -> None:
    ended: list[bool] = []

    async def prompts() -> AsyncIterator[str]:
        try:
            yield "a"
            try:
                await pause(3600)
            except BaseException:  # noqa: BLE001 - that is the point
                yield "last"
        finally:
            ended.append(True)

    async def main() -> None:
        completions = engine.map(prompts(), max_tokens=2)
        await anext(completions)
        assert not await comes_soon(anext(completions))
        await completions.aclose()

    run(main)
    gc.collect()
    assert ended == [True]
