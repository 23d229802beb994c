"""LlamaIndex's OpenAI-like classes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from reach import AS_IT_IS, KEY, MAX_TOKENS, QUESTION, TOO_LONG, Reach, Report, weather

_WHY = "llama-index-llms-openai-like is not installed: tools/contract.py"
OpenAILike = pytest.importorskip("llama_index.llms.openai_like", reason=_WHY).OpenAILike
embeddings = pytest.importorskip("llama_index.embeddings.openai_like", reason="its embeddings are not installed")
llms = pytest.importorskip("llama_index.core.llms")
tools = pytest.importorskip("llama_index.core.tools")
prompts = pytest.importorskip("llama_index.core.prompts")


def made(reach: Reach, *, is_chat: bool = True, extra: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {
        "model": "m",
        "is_chat_model": is_chat,
        "is_function_calling_model": is_chat,
        "context_window": 8192,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "max_retries": 0,
        "additional_kwargs": {"seed": 1, "extra_body": AS_IT_IS, **(extra or {})},
        **more,
    }
    if reach.url is not None:
        return OpenAILike(**{"api_base": reach.url, "api_key": KEY, **given})
    return OpenAILike(openai_client=reach.client, async_openai_client=reach.async_client, api_key=KEY, **given)


def asked(text: str = QUESTION) -> list[Any]:
    return [llms.ChatMessage(role="user", content=text)]


def test_completes_whole_and_streamed(reach: Reach) -> None:
    llm = made(reach, is_chat=False)
    whole = llm.complete("The capital of France is")
    assert whole.text
    assert whole.raw.usage.completion_tokens <= MAX_TOKENS
    *_, last = pieces = list(llm.stream_complete("The capital of France is"))
    assert last.text == "".join(piece.delta for piece in pieces)
    given: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0, "seed": 1, "extra_body": AS_IT_IS}
    plain = reach.client.completions.create(model="m", prompt="The capital of France is", **given)
    assert whole.text == last.text == plain.choices[0].text


def test_chats_whole_and_streamed(reach: Reach) -> None:
    llm = made(reach)
    whole = llm.chat(asked())
    reach.check_answer(whole.message.content)
    assert whole.additional_kwargs["prompt_tokens"] == reach.plain().usage.prompt_tokens
    *_, last = pieces = list(llm.stream_chat(asked()))
    assert len(pieces) > 2
    reach.check_answer(last.message.content)


def test_chats_to_asyncio(reach: Reach) -> None:
    async def main() -> list[str]:
        llm = made(reach)
        for answer in await asyncio.gather(llm.achat(asked()), llm.achat(asked("Who are you?"))):
            assert answer.message.content
        whole = await llm.achat(asked())
        async for piece in await llm.astream_chat(asked()):
            last = piece.message.content
        return [whole.message.content, last]

    for text in asyncio.run(main()):
        reach.check_answer(text)


def test_tools_are_called_and_their_answers_read(reach: Reach) -> None:
    llm, tool = made(reach, max_tokens=reach.shaped_tokens), tools.FunctionTool.from_defaults(weather)
    question = "How warm is it in Rome?"
    called = llm.chat_with_tools([tool], user_msg=question, tool_required=True)
    [call] = llm.get_tool_calls_from_response(called)
    assert (call.tool_name, call.tool_kwargs["city"] in {"Rome", "Oslo"}) == ("weather", True)
    told = llms.ChatMessage(role="tool", content=str(tool(**call.tool_kwargs)))
    told.additional_kwargs["tool_call_id"] = call.tool_id
    done = made(reach).chat_with_tools([tool], chat_history=[*asked(question), called.message, told])
    assert done.message.content
    assert done.raw.usage.prompt_tokens > called.raw.usage.prompt_tokens
    streamed = list(llm.stream_chat_with_tools([tool], user_msg=question, tool_required=True))[-1]
    [again] = llm.get_tool_calls_from_response(streamed)
    assert (again.tool_name, again.tool_kwargs["city"] in {"Rome", "Oslo"}) == ("weather", True)


@pytest.mark.parametrize("by_schema", [False, True], ids=["tool", "schema"])
def test_answers_keep_to_a_class(reach: Reach, by_schema: bool) -> None:
    llm = made(reach, max_tokens=reach.shaped_tokens, should_use_structured_outputs=by_schema)
    report = llm.structured_predict(Report, prompts.PromptTemplate("It is {degrees} degrees in Rome."), degrees=21)
    assert isinstance(report, Report)


def test_texts_become_vectors(reach: Reach) -> None:
    if reach.url is None:
        pytest.skip("its embeddings take no client of OpenAI's")
    given = {"model_name": "m", "api_base": reach.url, "api_key": KEY, "max_retries": 0}
    vectors = embeddings.OpenAILikeEmbedding(**given).get_text_embedding_batch(["a", "b c d"])
    plain = reach.client.embeddings.create(model="m", input=["a", "b c d"]).data
    for vector, expected in zip(vectors, plain, strict=True):
        assert vector == pytest.approx(expected.embedding, abs=1e-2)


def test_errors_are_the_clients(reach: Reach) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as long:
        made(reach).chat(asked(TOO_LONG))
    assert json.loads(long.value.response.text)["error"]["code"] == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'"):
        made(reach, extra={"extra_body": {"tempratur": 1}}).chat(asked())
    if reach.url is not None:
        with pytest.raises(openai.AuthenticationError):
            made(reach, api_key="sk-wrong").chat(asked())
