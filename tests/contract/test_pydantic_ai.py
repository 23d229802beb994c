"""Pydantic AI's model for OpenAI's chats."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from reach import AS_IT_IS, KEY, MAX_TOKENS, QUESTION, TOO_LONG, Reach, Report, weather

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed: tools/contract.py")
messages = pytest.importorskip("pydantic_ai.messages")
exceptions = pytest.importorskip("pydantic_ai.exceptions")
OpenAIChatModel = pytest.importorskip("pydantic_ai.models.openai").OpenAIChatModel
OpenAIProvider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider


def agent(reach: Reach, *, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    client = reach.async_client
    if reach.url is not None:  # such a client keeps connections, which belong to one event loop
        client = openai.AsyncOpenAI(base_url=reach.url, api_key=KEY, max_retries=0)
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    given = {"temperature": 0, "seed": 1, "max_tokens": MAX_TOKENS, "extra_body": AS_IT_IS, **(settings or {})}
    return pydantic_ai.Agent(model, model_settings=given, **more)


def test_answers_whole_and_streamed(reach: Reach) -> None:
    async def main() -> tuple[Any, str, Any]:
        whole = await agent(reach).run(QUESTION)
        async with agent(reach).run_stream(QUESTION) as stream:
            text = "".join([delta async for delta in stream.stream_text(delta=True, debounce_by=None)])
            return whole, text, stream.usage

    whole, streamed, usage = asyncio.run(main())
    reach.check_answer(whole.output)
    reach.check_answer(streamed)
    expected = reach.plain().usage
    for told in (whole.usage, usage):
        assert (told.requests, told.input_tokens) == (1, expected.prompt_tokens)
        assert 0 < told.output_tokens <= MAX_TOKENS


@pytest.mark.parametrize("output", ["ToolOutput", "NativeOutput"])
def test_answers_keep_to_a_class(reach: Reach, output: str) -> None:
    settings = {"max_tokens": reach.shaped_tokens}
    wanted = getattr(pydantic_ai, output)(Report)

    async def main() -> tuple[Any, Any]:
        whole = await agent(reach, output_type=wanted, settings=settings).run("It is 21 degrees in Rome.")
        async with agent(reach, output_type=wanted, settings=settings).run_stream("It is 21 degrees in Rome.") as made:
            return whole.output, await made.get_output()

    for report in asyncio.run(main()):
        assert isinstance(report, Report)


def test_tools_are_run_and_their_answers_read(reach: Reach) -> None:
    ran: list[str] = []

    def noted(city: str) -> str:
        """Tells the weather in a city."""
        ran.append(city)
        return weather(city)  # type: ignore[arg-type]

    history = [
        messages.ModelRequest(parts=[messages.UserPromptPart("How warm is it in Rome?")]),
        messages.ModelResponse(parts=[messages.ToolCallPart("noted", {"city": "Rome"}, tool_call_id="call_1")]),
    ]
    done = asyncio.run(agent(reach, tools=[noted]).run(message_history=history))
    assert ran == ["Rome"]
    assert done.output
    told = [part for message in done.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert [part.content for part in told] == ["It is 21 degrees in Rome."]


def test_errors_are_its_own(reach: Reach) -> None:
    with pytest.raises(exceptions.ModelHTTPError, match="did you mean 'temperature'") as wrong:
        asyncio.run(agent(reach, settings={"extra_body": {"tempratur": 1}}).run(QUESTION))
    assert (wrong.value.status_code, wrong.value.body["code"]) == (400, "unknown_field")
    with pytest.raises(exceptions.ModelHTTPError, match="maximum context length") as long:
        asyncio.run(agent(reach).run(TOO_LONG))
    assert (long.value.status_code, long.value.body["code"]) == (400, "context_length_exceeded")
    picture = pydantic_ai.ImageUrl("data:image/png;base64,AAAA")
    with pytest.raises(exceptions.ModelHTTPError, match="image_url") as unserved:
        asyncio.run(agent(reach).run(["What is this?", picture]))
    assert unserved.value.status_code == 501
