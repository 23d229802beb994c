"""OpenAI's clients over an engine in the same process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import llama_batch
import openai
import pytest
from asgi_client import until
from llama_batch import Engine, OptionError
from llama_batch._transports import _LoopThread
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
LONG: dict[str, Any] = {"model": "m", "messages": HELLO, "max_tokens": 2000}

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with llama_batch.openai_sync(engine, max_retries=0) as client:
        yield client


async def test_many_at_once_are_batched(engine: Engine) -> None:
    async with llama_batch.openai(engine) as client:

        async def one(i: int) -> str | None:
            messages: list[Any] = [{"role": "user", "content": f"{i % 4}"}]
            done = await client.chat.completions.create(model="m", messages=messages, max_tokens=20, seed=i % 4)
            return done.choices[0].message.content

        texts = await asyncio.gather(*(one(i) for i in range(32)))
    assert texts == [texts[i % 4] for i in range(32)]
    assert engine.state == "ready"


async def test_chunks_come_one_by_one(slow: Engine) -> None:
    async with llama_batch.openai(slow) as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=12, seed=1, stream=True)
        running = [slow.stats().active_slots async for chunk in stream if chunk.choices[0].delta.content]
    # Most chunks were there while the engine still wrote: a body that came whole would come after that.
    assert running.count(1) >= 4
    assert running.count(1) >= len(running) - 2


def test_chunks_come_one_by_one_to_threads_too(slow: Engine) -> None:
    with llama_batch.openai_sync(slow) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, max_tokens=12, seed=1, stream=True)
        running = [slow.stats().active_slots for chunk in stream if chunk.choices[0].delta.content]
    assert running.count(1) >= 4
    assert running.count(1) >= len(running) - 2


async def test_closing_a_stream_cancels_its_request(slow: Engine) -> None:
    async with llama_batch.openai(slow) as client:
        stream = await client.chat.completions.create(**LONG, stream=True)
        await anext(aiter(stream))
        assert slow.stats().active_slots == 1
        await stream.close()
        await until(lambda: slow.stats().active_slots == 0)


async def test_dropping_a_stream_cancels_its_request(slow: Engine) -> None:
    async with llama_batch.openai(slow) as client:
        stream = await client.chat.completions.create(**LONG, stream=True)
        assert slow.stats().active_slots == 1
        del stream
        gc.collect()
        await until(lambda: slow.stats().active_slots == 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_a_task_cancels_its_request(slow: Engine, streamed: bool) -> None:
    async with llama_batch.openai(slow) as client:

        async def ask() -> None:
            made: Any = await client.chat.completions.create(**LONG, stream=streamed)
            async for _ in made:
                pass

        task = asyncio.create_task(ask())
        await until(lambda: slow.stats().active_slots == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: slow.stats().active_slots == 0)


async def test_closing_the_client_ends_what_runs_and_leaves_the_engine(slow: Engine) -> None:
    client = llama_batch.openai(slow, max_retries=0)
    task = asyncio.create_task(client.chat.completions.create(**LONG))
    await until(lambda: slow.stats().active_slots == 1)
    await client.close()
    with pytest.raises(openai.APIConnectionError):
        await task
    await until(lambda: slow.stats().active_slots == 0)
    assert slow.state == "ready"


async def test_a_timeout_is_the_clients_and_cancels(slow: Engine) -> None:
    async with llama_batch.openai(slow, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(**LONG, timeout=0.2)
        await until(lambda: slow.stats().active_slots == 0)


async def test_callers_in_process_choose_scopes_and_priorities(engine: Engine) -> None:
    prompt = "Once upon a time there was a king who had three daughters, and each of them had a castle"
    async with llama_batch.openai(engine) as client:

        async def cached(**more: Any) -> int:
            done = await client.completions.create(model="m", prompt=prompt, max_tokens=2, extra_body=more)
            assert done.usage is not None
            assert done.usage.prompt_tokens_details is not None
            return done.usage.prompt_tokens_details.cached_tokens or 0

        engine.generate(prompt, max_tokens=2).result()
        assert await cached(priority=-5, session="mine") > 0  # the scope is the engine's own
        assert await cached(cache_scope="other") == 0
        assert await cached(cache_scope="other") > 0


def test_answers_are_parsed(client: openai.OpenAI) -> None:
    class Weather(BaseModel):
        sky: Literal["clear", "grey"]
        is_warm: bool

    done = client.chat.completions.parse(model="m", messages=HELLO, response_format=Weather, max_tokens=300)
    assert isinstance(done.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(model="m", messages=HELLO, response_format=Weather, max_tokens=300) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Weather)


def test_tools_are_called(client: openai.OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    asked: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": [tool], "max_tokens": 300}
    done = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
    assert done.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in done.choices[0].message.tool_calls or ()] == ["weather"]


def test_models_completions_and_raw_answers(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["simulated"]
    assert client.completions.create(model="m", prompt=["a", "b"], max_tokens=3).choices[1].index == 1
    raw = client.chat.completions.with_raw_response.create(model="m", messages=HELLO, max_tokens=3)
    assert raw.status_code == 200
    assert raw.headers["x-request-id"]


def test_threads_share_a_client(client: openai.OpenAI) -> None:
    def one(i: int) -> str | None:
        made = client.chat.completions.create(model="m", messages=HELLO, max_tokens=10, seed=i % 3)
        return made.choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(one, range(24)))
    assert texts == [texts[i % 3] for i in range(24)]


def test_closing_or_dropping_a_sync_stream_cancels_its_request(slow: Engine) -> None:
    with llama_batch.openai_sync(slow) as client:
        for end in ("close", "drop"):
            stream = client.chat.completions.create(**LONG, stream=True)
            next(iter(stream))
            assert slow.stats().active_slots == 1
            if end == "close":
                stream.close()
            del stream
            gc.collect()
            asyncio.run(until(lambda: slow.stats().active_slots == 0))


def test_a_sync_clients_thread_ends_with_it(slow: Engine) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "llama-batch-openai"]

    client = llama_batch.openai_sync(slow, max_retries=0)
    assert not threads()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            client.chat.completions.create(**LONG)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    asyncio.run(until(lambda: slow.stats().active_slots == 1))
    assert threads()
    client.close()
    asking.join(20)
    assert len(failures) == 1
    assert not threads()
    asyncio.run(until(lambda: slow.stats().active_slots == 0))
    with pytest.raises((openai.APIConnectionError, RuntimeError)):
        client.chat.completions.create(**LONG)


def test_a_client_that_is_closed_leaves_nothing_unbegun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _LoopThread.run
    steps: list[Any] = []

    def run_or_stop(self: _LoopThread, step: Any) -> Any:
        steps.append(step)
        if len(steps) == 2:  # the request is sent, and its answer not waited for yet
            self.stop()
        return run(self, step)

    monkeypatch.setattr(_LoopThread, "run", run_or_stop)
    client = llama_batch.openai_sync(engine, max_retries=0)
    with pytest.raises((openai.APIConnectionError, RuntimeError)):
        client.chat.completions.create(**LONG)
    steps.clear()
    gc.collect()  # a coroutine that nobody awaited is a warning, which is an error here
    asyncio.run(until(lambda: engine.stats().in_flight == 0))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_an_engine_that_is_at_its_end_is_told_once_and_not_asked_again() -> None:
    program = """
import os, sys
import llama_batch, openai
engine = llama_batch.Engine("sim:")
client = llama_batch.openai_sync(engine)
ask = lambda: client.chat.completions.create(model="", messages=[{"role": "user", "content": "Hello"}], max_tokens=2)
ask()
client._sleep_for_retry = lambda **_: print("asks again")
if (child := os.fork()) == 0:
    try:
        ask()
    except openai.APIStatusError as error:
        print(error.status_code, error.code)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
engine.close()
try:
    ask()
except openai.APIStatusError as error:
    print(error.status_code, error.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["503 forked", "503 shutting_down"]
    assert done.stderr == ""


def test_a_client_serves_several_event_loops(engine: Engine) -> None:
    client = llama_batch.openai(engine)

    async def ask() -> str | None:
        asked: Any = {"model": "m", "messages": HELLO, "max_tokens": 10, "seed": 1}
        stream = await client.chat.completions.create(**asked, stream=True, extra_body={"return_progress": True})
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        whole: str | None = (await client.chat.completions.create(**asked)).choices[0].message.content
        assert streamed == whole
        return whole

    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: asyncio.run(ask()), range(8)))
    assert len(texts) == 1
    asyncio.run(client.close())


async def test_settings_are_the_servers(engine: Engine) -> None:
    async with llama_batch.openai(engine, model_name="mine", strict_model=True, max_tokens=4) as client:
        assert [model.id async for model in client.models.list()] == ["mine"]
        done = await client.chat.completions.create(model="mine", messages=HELLO)
        assert done.usage is not None
        assert done.usage.completion_tokens == 4
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(OptionError, match="did you mean 'max_tokens'"):
        llama_batch.openai(engine, max_token=3)
    with pytest.raises(OptionError, match="in process nobody does"):
        llama_batch.openai_sync(engine, keys=[])


async def test_a_closed_engine_is_a_status(engine: Engine) -> None:
    client = llama_batch.openai(engine, max_retries=0)
    engine.close()
    with pytest.raises(openai.InternalServerError) as closed:
        await client.chat.completions.create(model="m", messages=HELLO)
    assert closed.value.status_code == 503
    await client.close()


@pytest.mark.parametrize(("missing", "said"), [("openai", "[server]' openai"), ("starlette", "'llama-batch[server]'")])
def test_without_what_it_takes_the_message_says_what_to_install(missing: str, said: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; import llama_batch; engine = llama_batch.Engine('sim:')\n"
        "try:\n    llama_batch.openai(engine)\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said in done.stdout


def test_an_interpreter_ends_though_a_client_was_left_open() -> None:
    code = (
        "import llama_batch; client = llama_batch.openai_sync(llama_batch.Engine('sim:'))\n"
        "print(client.models.list().data[0].object)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("model\n", "")


async def test_it_says_that_trio_is_not_served(engine: Engine) -> None:
    import trio

    client = llama_batch.openai(engine, max_retries=0)

    async def ask() -> None:
        with pytest.raises((RuntimeError, openai.APIConnectionError)) as wrong:  # older clients wrap it
            await client.models.retrieve("m")
        assert "an event loop of asyncio" in str(wrong.value.__cause__ or wrong.value)

    await asyncio.to_thread(trio.run, ask)
    await client.close()
