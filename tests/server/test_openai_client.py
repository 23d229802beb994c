"""The official client of OpenAI, against a real port."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from live_server import served
from llama_batch import Engine
from llama_batch.server import ApiKey, KeyRing
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with (
        Engine("sim:?eog_every=40", name="simulated", n_parallel=8) as engine,
        served(engine, keys=KeyRing([ApiKey.of("sk-test")])) as (port, _),
    ):
        yield port


@pytest.fixture
def client(port: int) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["simulated"]
    assert client.models.retrieve("simulated").owned_by == "llama-batch"


def test_chats_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="m", messages=HELLO, max_completion_tokens=10, seed=1)
    stream = client.chat.completions.create(
        model="m",
        messages=HELLO,
        max_completion_tokens=10,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole._request_id


def test_its_own_options_and_ours(client: OpenAI) -> None:
    done = client.chat.completions.create(
        model="m",
        messages=HELLO,
        max_tokens=6,
        temperature=0.5,
        top_p=0.9,
        n=2,
        stop=["zzz"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=3,
        user="me",
        extra_body={
            "top_k": 10,
            "session": "s",
            "cache_scope": "inner",
            "timeout": 30.0,
            "priority": 3,
            "ignore_eos": True,
        },
    )
    assert len(done.choices) == 2
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content[0].top_logprobs) == 3


def test_answers_are_parsed(client: OpenAI) -> None:
    class Weather(BaseModel):
        sky: Literal["clear", "grey"]
        is_warm: bool

    done = client.chat.completions.parse(model="m", messages=HELLO, response_format=Weather, max_tokens=200)
    assert isinstance(done.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(model="m", messages=HELLO, response_format=Weather, max_tokens=200) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Weather)


def test_tools_are_called(client: OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    tool["function"]["parameters"]["additionalProperties"] = False
    asked: Any = {"model": "m", "messages": HELLO, "tools": [tool], "tool_choice": "required", "max_tokens": 200}
    tries = ((seed, client.chat.completions.create(**asked, seed=seed)) for seed in range(50))
    seed, whole = next((seed, one) for seed, one in tries if one.choices[0].finish_reason == "tool_calls")
    [call] = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {})
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, seed=seed, stream=True)]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["f"]
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {}


def test_completions_whole_and_streamed(client: OpenAI) -> None:
    whole = client.completions.create(model="m", prompt=["a", "b"], max_tokens=5, seed=1, logprobs=2, echo=True)
    assert [choice.text[0] for choice in whole.choices] == ["a", "b"]
    assert whole.choices[0].logprobs is not None
    stream = client.completions.create(model="m", prompt=["a", "b"], max_tokens=5, seed=1, stream=True)
    texts = {0: "a", 1: "b"}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [texts[0], texts[1]] == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}])
def test_embeddings_come_as_numbers(client: OpenAI, encoding: Any) -> None:
    made = client.embeddings.create(model="m", input=["a", "bcd"], **encoding)
    one, other = ([*each.embedding] for each in made.data)
    assert one != other
    assert sum(number * number for number in one) == pytest.approx(1, abs=1e-4)
    raw = client.embeddings.create(model="m", input=[97], extra_body={"embd_normalize": -1}, **encoding)
    length = math.sqrt(sum(number * number for number in raw.data[0].embedding))
    assert [number / length for number in raw.data[0].embedding] == pytest.approx(one, abs=1e-4)


def test_errors_are_its_own(client: OpenAI, port: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt="x " * 9000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt="x", extra_body={"tempratur": 1})
    assert caught.value.param == "tempratur"
    with pytest.raises(openai.APIError) as later:
        for _ in client.completions.create(
            model="m", prompt="x", stream=True, extra_body={"timeout": 0.3, "ignore_eos": True}, max_tokens=100_000
        ):
            pass
    assert later.value.code in {"timeout", None}
    other = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-wrong", max_retries=0)
    with other, pytest.raises(openai.AuthenticationError):
        other.models.list()


def test_many_at_once(port: int) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-test", max_retries=0) as client:

            async def one(i: int) -> str:
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": f"{i % 4}"}],
                    max_tokens=20,
                    seed=i % 4,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            texts = await asyncio.gather(*(one(i) for i in range(32)))
            assert [texts[i] for i in range(32)] == [texts[i % 4] for i in range(32)]

    asyncio.run(main())
