"""LangChain's classes for OpenAI, as its users set them up for another server."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from reach import AS_IT_IS, KEY, MAX_TOKENS, QUESTION, TOO_LONG, Reach, Report, weather

_WHY = "langchain-openai is not installed: tools/contract.py"
langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai is not installed: tools/contract.py"
)
messages = pytest.importorskip("langchain_core.messages")


def chat(reach: Reach, **more: Any) -> Any:
    given = {"model": "m", "temperature": 0, "seed": 1, "max_tokens": MAX_TOKENS, "max_retries": 0}
    given |= {"extra_body": AS_IT_IS, **more}
    if reach.url is not None:
        return langchain_openai.ChatOpenAI(**{"base_url": reach.url, "api_key": KEY, **given})
    return langchain_openai.ChatOpenAI(
        root_client=reach.client,
        client=reach.client.chat.completions,
        root_async_client=reach.async_client,
        async_client=reach.async_client.chat.completions,
        api_key=KEY,
        **given,
    )


def embeddings(reach: Reach) -> Any:
    # Otherwise it sends OpenAI's tokens, which mean other words to other models.
    given = {"model": "m", "check_embedding_ctx_length": False, "max_retries": 0, "api_key": KEY}
    if reach.url is not None:
        return langchain_openai.OpenAIEmbeddings(base_url=reach.url, **given)
    client, async_client = reach.client.embeddings, reach.async_client.embeddings
    return langchain_openai.OpenAIEmbeddings(client=client, async_client=async_client, **given)


def test_answers_whole_and_streamed(reach: Reach) -> None:
    whole = chat(reach).invoke(QUESTION)
    reach.check_answer(whole.content)
    usage = reach.plain().usage
    assert whole.usage_metadata["input_tokens"] == usage.prompt_tokens
    assert whole.usage_metadata["output_tokens"] <= MAX_TOKENS
    assert whole.response_metadata["finish_reason"] in {"stop", "length"}
    chunks = list(chat(reach, stream_usage=True).stream(QUESTION))
    assert len(chunks) > 2
    summed = chunks[0]
    for chunk in chunks[1:]:
        summed += chunk
    reach.check_answer(summed.content)
    assert summed.usage_metadata["input_tokens"] == usage.prompt_tokens
    assert summed.usage_metadata["output_tokens"] <= MAX_TOKENS


def test_answers_to_asyncio(reach: Reach) -> None:
    async def main() -> tuple[str, str]:
        llm = chat(reach)
        assert all(answer.content for answer in await llm.abatch([QUESTION, "Who are you?"]))
        whole = await llm.ainvoke(QUESTION)
        return whole.content, "".join([chunk.content async for chunk in llm.astream(QUESTION)])

    for text in asyncio.run(main()):
        reach.check_answer(text)


@pytest.mark.parametrize("choice", ["weather", "any"])
def test_tools_are_called_and_their_answers_read(reach: Reach, choice: str) -> None:
    llm = chat(reach, max_tokens=reach.shaped_tokens)
    asked = [messages.HumanMessage("How warm is it in Rome?")]
    called = llm.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False, strict=True).invoke(asked)
    assert not called.invalid_tool_calls
    [call] = called.tool_calls
    assert call["name"] == "weather"
    assert call["args"] in ({"city": "Rome"}, {"city": "Oslo"})
    assert called.response_metadata["finish_reason"] == "tool_calls"
    told = messages.ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    done = chat(reach).bind_tools([weather]).invoke([*asked, called, told])
    assert done.content
    assert done.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_answers_keep_to_a_class(reach: Reach, method: str) -> None:
    llm = chat(reach, max_tokens=reach.shaped_tokens).with_structured_output(Report, method=method, include_raw=True)
    made = llm.invoke("It is 21 degrees in Rome.")
    assert made["parsing_error"] is None
    assert isinstance(made["parsed"], Report)
    parsed = [step["parsed"] for step in llm.stream("It is 21 degrees in Rome.") if "parsed" in step]
    assert isinstance(parsed[-1], Report)


def test_texts_become_vectors(reach: Reach) -> None:
    made = embeddings(reach).embed_documents(["a", "b c d"])
    plain = [each.embedding for each in reach.client.embeddings.create(model="m", input=["a", "b c d"]).data]
    for vector, expected in zip(made, plain, strict=True):
        assert vector == pytest.approx(expected, abs=1e-2)
    assert embeddings(reach).embed_query("a") == pytest.approx(plain[0], abs=1e-2)


def test_errors_are_its_own(reach: Reach) -> None:
    overflow = pytest.importorskip("langchain_core.exceptions").ContextOverflowError
    with pytest.raises(overflow):
        chat(reach).invoke(TOO_LONG)
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'") as wrong:
        chat(reach, extra_body={"tempratur": 1}).invoke(QUESTION)
    assert wrong.value.status_code == 400
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.APIStatusError, match="image_url") as unserved:
        chat(reach).invoke([messages.HumanMessage([picture])])
    assert unserved.value.status_code == 501
    if reach.url is not None:
        with pytest.raises(openai.AuthenticationError):
            chat(reach, api_key="sk-wrong").invoke(QUESTION)
