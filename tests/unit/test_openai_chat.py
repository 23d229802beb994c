"""`Engine.chat_completion` and `Engine.stream_chat_completion`: OpenAI's shapes, for sync and async callers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Engine, LlamaBatchError, OptionError, QueueFullError
from openai.types.chat import ChatCompletion, ChatCompletionChunk

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("sim:?eog_every=0", name="simulated", n_parallel=4) as engine:
        yield engine


@pytest.fixture
def slow() -> Iterator[Engine]:
    with Engine("sim:?pass_ms=20&eog_every=0", n_parallel=1, max_queue=1) as engine:
        yield engine
        engine.close()


def told(made: dict[str, Any]) -> ChatCompletion:
    json.dumps(made, allow_nan=False)
    return ChatCompletion.model_validate(made, strict=True)


def joined(chunks: list[dict[str, Any]], choice: int = 0) -> str:
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"] if each["index"] == choice]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_an_answer_is_a_chat_completion(engine: Engine) -> None:
    done = engine.chat("Hello", max_tokens=6, seed=1).result()
    made = told(engine.chat_completion("Hello", max_tokens=6, seed=1).result())
    assert (made.object, made.model) == ("chat.completion", "simulated")
    assert made.id.startswith("chatcmpl-")
    assert made.choices[0].message.content == done.text
    assert made.choices[0].finish_reason == "length"
    assert made.usage is not None
    assert made.usage.completion_tokens == 6


def test_choices_and_logprobs(engine: Engine) -> None:
    made = told(engine.chat_completion("Hello", max_tokens=4, n=3, logprobs=2).result())
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert made.choices[2].logprobs is not None
    assert made.choices[2].logprobs.content is not None
    assert len(made.choices[2].logprobs.content[0].top_logprobs) == 2


def test_tools_are_called_whole_and_streamed(engine: Engine) -> None:
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    made = told(engine.chat_completion("Weather?", max_tokens=300, **asked).result())
    assert made.choices[0].finish_reason == "tool_calls"
    assert made.choices[0].message.tool_calls is not None
    [call] = made.choices[0].message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    chunks = list(engine.stream_chat_completion("Weather?", max_tokens=300, **asked))
    calls = [each for chunk in chunks for each in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    assert "".join(each["function"]["arguments"] for each in calls) == call.function.arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_begins_with_the_role_and_ends_with_the_reason(engine: Engine, n: int) -> None:
    asked: dict[str, Any] = {"max_tokens": 8, "seed": 1, "n": n}
    chunks = list(engine.stream_chat_completion("Hello", include_usage=True, **asked))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    whole = engine.chat("Hello", **asked).result()
    for choice in range(n):
        mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [each["finish_reason"] for each in mine] == [None] * (len(mine) - 1) + ["length"]
        assert joined(chunks, choice) == whole.choices[choice].text
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8 * n
    without = list(engine.stream_chat_completion("Hello", **asked))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in without)


async def _both(engine: Engine) -> None:
    first = engine.chat_completion("Hello", max_tokens=8, seed=1)
    task = asyncio.create_task(engine.chat_completion("Hello", max_tokens=8, seed=1))
    a, b, c = await first, await task, first.result()
    assert a == c
    assert a["choices"] == b["choices"]
    chunks = [chunk async for chunk in engine.stream_chat_completion("Hello", max_tokens=8, seed=1)]
    assert joined(chunks) == a["choices"][0]["message"]["content"]
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(engine.chat_completion(str(i), max_tokens=2)) for i in range(20)]
    assert all(told(each.result()) for each in made)


def test_async_callers_get_the_same(engine: Engine) -> None:
    asyncio.run(_both(engine))


def test_trio_callers_get_the_same(engine: Engine) -> None:
    import trio

    async def ask() -> None:
        made = await engine.chat_completion("Hello", max_tokens=8, seed=1)
        chunks = [chunk async for chunk in engine.stream_chat_completion("Hello", max_tokens=8, seed=1)]
        assert joined(chunks) == made["choices"][0]["message"]["content"]

    trio.run(ask)


def test_cancelled_answers_say_so(slow: Engine) -> None:
    pending = slow.chat_completion("Hello", max_tokens=2000)
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.05)
    slow.cancel(pending.request_id)
    assert pending.result()["choices"][0]["finish_reason"] == "abort"
    assert (pending.done(), pending.cancelled()) == (True, True)
    stream = slow.stream_chat_completion("Hello", max_tokens=2000)
    next(stream)
    stream.cancel()
    assert list(stream)[-1]["choices"][0]["finish_reason"] == "abort"


def test_cancelling_the_task_or_leaving_the_stream_cancels(slow: Engine) -> None:
    async def ask() -> None:
        task = asyncio.create_task(slow.chat_completion("Hello", max_tokens=2000))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    with slow.stream_chat_completion("Hello", max_tokens=2000) as stream:
        next(stream)
    assert slow.chat("again", max_tokens=1).result().text is not None  # the only slot was given back


def test_errors_are_those_of_chat(slow: Engine) -> None:
    with pytest.raises(OptionError, match="did you mean"):
        slow.chat_completion("Hello", max_tokns=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean"):
        slow.stream_chat_completion("Hello", max_tokns=3)  # type: ignore[arg-type]
    wrong: Any = [{"content": "no role"}]
    with pytest.raises(LlamaBatchError, match="role"):
        slow.chat_completion(wrong).result()
    stream = slow.stream_chat_completion(wrong)
    with pytest.raises(LlamaBatchError, match="role"):
        next(stream)
    assert list(stream) == []
    held = [slow.chat("Hello", max_tokens=2000) for _ in range(2)]
    with pytest.raises(QueueFullError):
        [slow.chat_completion("Hello").result() for _ in range(3)]
    del held
