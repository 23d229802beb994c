"""`/v1/chat/completions` over a simulated model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient, until
from llama_batch.server import create_app

if TYPE_CHECKING:
    from llama_batch import Engine

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


async def test_a_chat_is_answered_as_the_engine_answers_it(client: AsgiClient, engine: Engine) -> None:
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 8, "seed": 3, "model": "anything"})
    done = await engine.chat(HELLO, max_tokens=8, seed=3)
    made = answer.json()
    assert answer.status == 200
    assert made["object"] == "chat.completion"
    assert made["model"] == "anything"
    assert made["id"].startswith("chatcmpl-")
    assert made["choices"][0]["message"]["role"] == "assistant"
    assert made["choices"][0]["message"]["content"] == done.text
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["prompt_tokens"] == done.usage.prompt_tokens
    assert made["usage"]["completion_tokens"] == 8
    assert made["usage"]["total_tokens"] == done.usage.prompt_tokens + 8
    assert made["timings"]["predicted_n"] == 8


async def test_what_is_reused_is_told(client: AsgiClient) -> None:
    body = {"messages": [{"role": "user", "content": "a long question " * 20}], "max_tokens": 4}
    first = (await client.post(PATH, body)).json()["usage"]
    second = (await client.post(PATH, body)).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"] - 1


async def test_a_stream_has_the_same_text_between_a_role_and_a_reason(client: AsgiClient) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "seed": 3}
    whole = (await client.post(PATH, body)).json()
    answer = await client.post(PATH, {**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    deltas = [event["choices"][0]["delta"] for event in answer.events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert [event["choices"][0]["finish_reason"] for event in answer.events[-2:]] == [None, "length"]
    assert len({event["id"] for event in answer.events}) == 1
    assert "usage" not in answer.text
    assert answer.events[-1]["timings"]["predicted_n"] == 8


async def test_a_stream_ends_with_usage_where_that_is_wanted(client: AsgiClient) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 8, **options})
    assert answer.events[-1]["choices"] == []
    assert answer.events[-1]["usage"]["completion_tokens"] == 8
    assert all(event.get("usage") is None for event in answer.events[:-1])


async def test_stream_options_belong_to_streams(client: AsgiClient) -> None:
    answer = await client.post(PATH, {"messages": HELLO, "stream_options": {"include_usage": True}})
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_have_their_indices(client: AsgiClient, stream: bool) -> None:
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 5, "n": 3, "seed": 1, "stream": stream})
    if stream:
        texts = dict.fromkeys(range(3), "")
        reasons = {}
        for event in answer.events:
            [choice] = event["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
        assert reasons == {0: "length", 1: "length", 2: "length"}
    else:
        choices = answer.json()["choices"]
        texts = {choice["index"]: choice["message"]["content"] for choice in choices}
        assert answer.json()["usage"]["completion_tokens"] == 15
    assert len(set(texts.values())) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_come_in_openais_shape(client: AsgiClient, stream: bool) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "stream": stream}
    answer = await client.post(PATH, body)
    events = answer.events if stream else [answer.json()]
    told: list[Any] = []
    for event in events:
        logprobs = event["choices"][0]["logprobs"]
        told += logprobs["content"] if logprobs else []
    assert len(told) == 4
    assert all(set(each) == {"token", "logprob", "bytes", "top_logprobs"} for each in told)
    assert all(len(each["top_logprobs"]) == 2 for each in told)


async def test_parts_of_text_are_one_text(client: AsgiClient) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = {"max_tokens": 4, "seed": 1}
    joined = await client.post(PATH, {"messages": [{"role": "user", "content": parts}], **body})
    plain = await client.post(PATH, {"messages": [{"role": "user", "content": "one\ntwo"}], **body})
    assert joined.json()["choices"] == plain.json()["choices"]


async def test_what_an_assistant_said_can_be_sent_back_as_it_came(client: AsgiClient) -> None:
    first = (await client.post(PATH, {"messages": HELLO, "max_tokens": 4})).json()
    said = {**first["choices"][0]["message"], "annotations": [], "audio": None, "function_call": None}
    again = await client.post(PATH, {"messages": [*HELLO, said, *HELLO], "max_tokens": 4})
    assert again.status == 200


@pytest.mark.parametrize(
    "wanted",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}},
        {"response_format": {"type": "json_object", "schema": {"enum": ["yes", "no"]}}},
        {"json_schema": {"enum": ["yes", "no"]}},
        {"structured_outputs": {"json": {"enum": ["yes", "no"]}}},
        {"structured_outputs": {"choice": ['"yes"', '"no"']}},
        {"grammar": 'root ::= "\\"yes\\"" | "\\"no\\""'},
    ],
)
async def test_an_answer_keeps_to_its_structure(client: AsgiClient, wanted: dict[str, Any]) -> None:
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 20, **wanted})
    assert answer.status == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] in {'"yes"', '"no"'}
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


async def test_the_answer_is_as_long_as_the_context_where_nothing_is_said(client: AsgiClient, engine: Engine) -> None:
    answer = await client.post(PATH, {"messages": HELLO, "ignore_eos": True})
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["total_tokens"] >= engine.stats().kv_cells_total - 1


async def test_a_second_name_for_tokens_must_agree(client: AsgiClient) -> None:
    same = await client.post(PATH, {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 3})
    other = await client.post(PATH, {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4})
    assert same.status == 200
    assert (other.status, other.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_not_computed_for(slow: Engine, stream: bool) -> None:
    client = AsgiClient(create_app(slow))
    body = {"messages": HELLO, "max_tokens": 3000, "stream": stream}
    await client.post(PATH, body, leave_after_s=0.1)
    await until(lambda: slow.stats().in_flight == 0)
    assert slow.stats().n_cancelled == 1
    assert slow.stats().n_generated_tokens < 100


async def test_a_stream_that_waits_is_kept_alive_by_comments(slow: Engine) -> None:
    client = AsgiClient(create_app(slow, ping_s=0.05))
    busy = [slow.generate("x", max_tokens=15) for _ in range(2)]
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 2, "stream": True})
    assert answer.text.startswith(": ping\n\n")
    assert answer.events[-1]["choices"][0]["finish_reason"] == "length"
    silent = await client.post(PATH, {"messages": HELLO, "max_tokens": 8, "stream": True, "sse_ping_interval": -1})
    assert "ping" not in silent.text
    del busy


async def test_reading_a_long_prompt_is_told(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    body = {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 2}
    answer = await client.post(PATH, {**body, "stream": True, "return_progress": True})
    told = [event["prompt_progress"] for event in answer.events if "prompt_progress" in event]
    assert len(told) > 1
    assert all(each["total"] == told[0]["total"] for each in told)
    assert [each["processed"] for each in told] == sorted(each["processed"] for each in told)
    assert told[-1]["processed"] == told[-1]["total"]
    assert answer.events[-1]["choices"][0]["finish_reason"] == "length"


async def test_errors_before_the_first_byte_have_a_status(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "word " * 5000}], "stream": stream}
        answer = await client.post(PATH, body)
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["n_prompt_tokens"] > answer.error["n_ctx"] > 0
        assert str(answer.error["n_prompt_tokens"]) in answer.error["message"]


async def test_errors_after_the_first_byte_are_the_last_event(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 1000, "timeout": 0.6, "stream": True})
    assert answer.status == 200
    assert "event: error\n" in answer.text
    assert answer.events[-1]["error"]["code"] == "timeout"
    assert "[DONE]" not in answer.text
    assert answer.is_whole


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_of_time_names_itself(slow: Engine, stream: bool) -> None:
    client = AsgiClient(create_app(slow))
    busy = [slow.generate("x", max_tokens=3000) for _ in range(2)]
    await until(lambda: slow.stats().active_slots == 2)
    answer = await client.post(PATH, {"messages": HELLO, "queue_timeout": 0.05, "stream": stream})
    assert (answer.status, answer.error["param"]) == (408, "queue_timeout")
    del busy


async def test_a_full_queue_says_when_to_come_back(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    busy = [slow.generate("x", max_tokens=3000) for _ in range(4)]
    for stream in (False, True):
        answer = await client.post(PATH, {"messages": HELLO, "stream": stream})
        assert (answer.status, answer.error["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
    del busy
