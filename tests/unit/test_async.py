"""The same objects in event loops: asyncio and trio, several at once, cancelled and not."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from llama_batch import EmptyPromptError, Engine, ModelLoadError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("sim:", n_parallel=4, max_queue=0) as engine:
        yield engine


@pytest.fixture
async def slow() -> AsyncIterator[Engine]:
    async with Engine("sim:?pass_ms=20", n_parallel=2, max_queue=0) as engine:
        yield engine
        await engine.aclose()


async def test_await_gives_the_completion_as_often_as_it_is_asked(engine: Engine) -> None:
    generation = engine.generate("x", max_tokens=4)
    first, second = await generation, await generation
    assert first == second == generation.result()


async def test_async_for_gives_the_chunks(engine: Engine) -> None:
    generation = engine.stream("x", max_tokens=40)
    chunks = [chunk async for chunk in generation]
    assert "".join(chunks) == (await generation).text
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


async def test_many_requests_run_beside_each_other(engine: Engine) -> None:
    texts: dict[int, str] = {}

    async def follow(i: int) -> None:
        texts[i] = "".join([chunk async for chunk in engine.stream(f"{i}", max_tokens=20, seed=i)])

    async with anyio.create_task_group() as group:
        for i in range(32):
            group.start_soon(follow, i)
    for i in (0, 13, 31):
        assert texts[i] == (await engine.generate(f"{i}", max_tokens=20, seed=i)).text


async def test_errors_come_from_await_and_from_iteration(engine: Engine) -> None:
    with pytest.raises(EmptyPromptError):
        await engine.generate("")
    with pytest.raises(EmptyPromptError):
        await anext(engine.stream(""))
    chunks = []
    stream = engine.stream("x", max_tokens=100_000, timeout=0.2)
    with pytest.raises(RequestTimeoutError) as caught:  # noqa: PT012
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401 - a comprehension would lose what came before the error
    assert caught.value.completion is not None
    assert "".join(chunks) == caught.value.completion.text
    assert [chunk async for chunk in stream] == []


async def test_cancelling_the_only_waiter_cancels_the_request(slow: Engine) -> None:
    generation = slow.generate("x", max_tokens=10_000)
    with anyio.move_on_after(0.1) as scope:
        await generation
    assert scope.cancelled_caught
    assert generation.result(timeout=10).finish_reason == "cancelled"


async def test_cancelling_the_reader_of_a_stream_cancels_the_request(slow: Engine) -> None:
    generation = slow.stream("x", max_tokens=10_000)
    with anyio.move_on_after(0.1) as scope:
        async for _ in generation:
            pass
    assert scope.cancelled_caught
    assert generation.result(timeout=10).finish_reason == "cancelled"


async def test_a_request_with_another_waiter_goes_on(slow: Engine) -> None:
    generation = slow.generate("x", max_tokens=100)
    done = []

    async def wait() -> None:
        done.append(await generation)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.05)
        with anyio.move_on_after(0.05) as scope:
            await generation
        assert scope.cancelled_caught
    assert done[0].finish_reason == "max_tokens"


async def test_leaving_a_stream_by_break_and_close_cancels(slow: Engine) -> None:
    async with aclosing(slow.stream("x", max_tokens=10_000)) as stream:
        async for _ in stream:
            break
    assert stream.result(timeout=10).finish_reason == "cancelled"


async def test_leaving_the_engine_serves_and_an_exception_cancels() -> None:
    async with Engine("sim:") as engine:
        served = engine.generate("x", max_tokens=50)
    assert served.result(timeout=1).finish_reason == "max_tokens"
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with Engine("sim:?pass_ms=20") as engine:
            cancelled = engine.generate("x", max_tokens=10_000)
            raise ZeroDivisionError
    assert cancelled.result(timeout=10).finish_reason == "cancelled"
    assert engine.state == "closed"


async def test_a_failed_load_raises_from_async_with_and_from_requests() -> None:
    with pytest.raises(ModelLoadError, match="no such tensor"):
        async with Engine("sim:?load_ms=20&load_error=no such tensor"):
            pass
    engine = Engine("sim:?load_ms=20&load_error=no such tensor")
    with pytest.raises(ModelLoadError):
        await engine.generate("x")


async def test_requests_wait_while_the_model_loads() -> None:
    engine = Engine("sim:?load_ms=100")
    generation = engine.generate("x", max_tokens=3)
    await engine.ready()
    assert (await generation).finish_reason == "max_tokens"
    await engine.aclose()


async def test_a_wait_on_loading_can_be_cancelled() -> None:
    engine = Engine("sim:?load_ms=10000")
    with anyio.move_on_after(0.05) as scope:
        await engine.ready()
    assert scope.cancelled_caught
    assert await engine.aclose()


async def test_map_is_an_async_iterator(engine: Engine) -> None:
    done = [d async for d in engine.map(("a", "b", "c"), max_tokens=2)]
    assert [d.usage.prompt_tokens for d in done] == [1, 1, 1]

    async def prompts() -> AsyncIterator[str]:
        for i in range(30):
            await anyio.lowlevel.checkpoint()
            yield "p" * (i + 1)

    lengths = [d.usage.prompt_tokens async for d in engine.map(prompts(), max_tokens=2)]
    assert lengths == list(range(1, 31))


async def test_a_sync_call_works_inside_a_running_loop(engine: Engine) -> None:
    assert engine.generate("x", max_tokens=2).result().finish_reason == "max_tokens"
    assert list(engine.stream("x", max_tokens=2))
    assert list(engine.map(["a", "b"], max_tokens=1))


async def test_events_come_to_async_for(engine: Engine) -> None:
    events = engine.events(events=["request.*"])
    generation = engine.generate("x", max_tokens=2)
    names = []
    async for event in events:
        assert event.metadata["request_id"] == generation.request_id
        names.append(event.name)
        if event.name == "request.done":
            break
    assert names == ["request.queued", "request.start", "request.done"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_tools_take_a_generation(engine: Engine) -> None:
    gathered = await asyncio.gather(*(engine.generate(f"{i}", max_tokens=3) for i in range(8)))
    assert [done.finish_reason for done in gathered] == ["max_tokens"] * 8
    task = asyncio.create_task(engine.generate("x", max_tokens=3))
    assert (await task).finish_reason == "max_tokens"
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate("x", max_tokens=3)) for _ in range(3)]
    assert all(task.result().finish_reason == "max_tokens" for task in tasks)
    assert (await asyncio.wait_for(engine.generate("x", max_tokens=3), 10)).finish_reason == "max_tokens"
    generation = engine.generate("x", max_tokens=3)
    twice = [asyncio.create_task(generation), asyncio.create_task(generation)]
    first, second = await asyncio.gather(*twice)
    assert first == second


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_a_task_cancels_its_generation(slow: Engine) -> None:
    for n_steps in (0, 1, 3):
        generation = slow.generate("x", max_tokens=10_000)
        task = asyncio.create_task(generation)
        for _ in range(n_steps):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert generation.result(timeout=10).finish_reason == "cancelled", n_steps
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.generate("x", max_tokens=10_000), 0.05)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_shielded_generation_goes_on(slow: Engine) -> None:
    generation = slow.generate("x", max_tokens=100)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(generation), 0.02)
    assert generation.result(timeout=10).finish_reason == "max_tokens"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sync_iteration_inside_a_task_is_not_mistaken_for_the_tasks_own_step(engine: Engine) -> None:
    async def read() -> str:
        return "".join(engine.stream("x", max_tokens=4))

    assert await asyncio.create_task(read())


def test_several_loops_share_one_engine() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=8, max_queue=0) as engine:
        shared = engine.generate("shared", max_tokens=50)
        texts: list[str] = []

        async def work() -> None:
            for i in range(5):
                texts.append("".join([c async for c in engine.stream(f"{i}", max_tokens=5, seed=i)]))  # noqa: PERF401
            texts.append((await shared).text)

        threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(texts) == 24
        assert len(set(texts)) == 6


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """Watches no sockets, like the loop that Windows has by default."""

    def add_reader(self, *args: Any) -> None:  # type: ignore[override]  # whatever it is given
        raise NotImplementedError


def test_a_loop_that_watches_no_sockets_is_woken_by_a_thread() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=4, max_queue=0) as engine:

        async def work() -> list[str]:
            streams = (engine.stream(f"{i}", max_tokens=10, seed=i) for i in range(8))
            return ["".join([chunk async for chunk in stream]) for stream in streams]

        with asyncio.Runner(loop_factory=LoopWithoutReaders) as runner:
            texts = runner.run(work())
        assert texts == asyncio.run(work())


def test_loops_come_and_go_without_growth() -> None:
    import resource

    with Engine("sim:?pass_ms=0", max_queue=0) as engine:

        async def work() -> None:
            await engine.generate("x", max_tokens=1)

        for _ in range(20):
            asyncio.run(work())
        gc.collect()
        limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 128), hard))
        try:
            for _ in range(200):
                asyncio.run(work())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def test_without_a_loop_there_is_nothing_to_await_in() -> None:
    with Engine("sim:?pass_ms=20") as engine:
        generation = engine.generate("x", max_tokens=50)
        with pytest.raises(RuntimeError, match="no running event loop"):
            generation.send(None)
        generation.cancel()
