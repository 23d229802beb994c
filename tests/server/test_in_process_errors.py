"""What OpenAI's clients over an engine in the same process are told goes wrong, and what they ask again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import llama_batch
import openai
import pytest
from asgi_client import until

if TYPE_CHECKING:
    from llama_batch import Engine

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
LONG: dict[str, Any] = {"model": "m", "messages": HELLO, "max_tokens": 2000}

pytestmark = pytest.mark.anyio


async def test_errors_are_openais(slow: Engine) -> None:
    async with llama_batch.openai(slow, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(**LONG, extra_body={"tempratur": 1})
        assert wrong.value.param == "tempratur"
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(model="m", prompt="x " * 9000, stream=True)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            await client.get("/nowhere", cast_to=object)
        busy = [asyncio.create_task(client.chat.completions.create(**LONG)) for _ in range(4)]
        await until(lambda: slow.stats().active_slots == 2 and slow.stats().queue_depth == 2)
        for streamed in (False, True):
            with pytest.raises(openai.RateLimitError) as full:
                await client.chat.completions.create(**LONG, stream=streamed)
            assert full.value.code == "queue_full"
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
    assert slow.state == "ready"


async def test_what_no_patience_helps_is_asked_once(slow: Engine) -> None:
    def n_retries(error: openai.APIStatusError) -> int:
        return int(error.response.request.headers["x-stainless-retry-count"])

    async with llama_batch.openai(slow, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as field:
            await client.chat.completions.create(model="m", messages=HELLO, store=True)
        assert (field.value.status_code, n_retries(field.value)) == (501, 0)
        with pytest.raises(openai.InternalServerError) as path:
            await client.responses.create(model="m", input="Hello")
        assert (path.value.status_code, n_retries(path.value)) == (501, 0)
        with pytest.raises(openai.APIStatusError) as late:
            await client.chat.completions.create(**LONG, extra_body={"timeout": 0.1})
        assert (late.value.status_code, n_retries(late.value)) == (408, 0)


async def test_too_long_is_said_in_the_words_that_clients_look_for(engine: Engine) -> None:
    # OpenAI's newer clients leave the code out of the text of an error, and frameworks look into the text.
    async with llama_batch.openai(engine, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(model="m", prompt="x " * 9000)
    assert "prompt is too long" in str(long.value)
    assert "maximum context length" in str(long.value)


async def test_a_full_queue_is_asked_again(slow: Engine) -> None:
    async with llama_batch.openai(slow) as client:
        asked = (client.chat.completions.create(model="m", messages=HELLO, max_tokens=3) for _ in range(6))
        assert len(await asyncio.gather(*asked)) == 6


async def test_an_error_in_a_stream_is_raised_after_the_chunks_before_it(slow: Engine) -> None:
    async with llama_batch.openai(slow, max_retries=0) as client:
        stream = await client.chat.completions.create(**LONG, stream=True, extra_body={"timeout": 0.3})
        texts: list[str | None] = []

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(openai.APIError):
            await read()
        assert len(texts) > 1
