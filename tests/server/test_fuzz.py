"""Whatever comes in, the answer is 200, 4xx or 501, nothing of it is left over, and the next request is served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgi_client import Answer, AsgiClient, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_batch import Engine
from llama_batch.server import create_app
from llama_batch.server.app import POSTS
from llama_batch.server.requests import ChatRequest, CompletionRequest, NativeRequest

N_EXAMPLES = 150
PATHS = sorted(path for paths, _, _ in POSTS for path in paths)
FIELDS = sorted({
    *ChatRequest.model_fields, *CompletionRequest.model_fields, *NativeRequest.model_fields,
    *ChatRequest.unserved, *CompletionRequest.unserved, *NativeRequest.unserved,
    "content", "tokens", "input", "odd", "",
})  # fmt: skip

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["user", "json_object", "json_schema", "function", "text", "auto", "root ::= [a-z]+", "{}", "-1"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "schema", "json_schema", "name", "prompt_string", "x", "1"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
chats = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text(max_size=9)}
    ),
    min_size=1,
    max_size=3,
)
prompts = st.one_of(
    st.text(max_size=9), st.lists(st.integers(0, 400), max_size=5), st.lists(st.text(max_size=5), max_size=3)
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Bodies that are right but for some fields, so that each check is reached."""
    body: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"prompt": prompts}),
            st.fixed_dictionaries({"messages": chats}),
            st.fixed_dictionaries({}),
        )
    )
    body.update(draw(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4)))
    if draw(st.booleans()):
        body["stream"] = draw(st.booleans())
    # The rest of the context takes its time.
    body.setdefault("max_tokens", draw(st.integers(0, 6)))
    return body


async def _ask(path: str, body: bytes) -> tuple[Answer, Answer]:
    with Engine("sim:?eog_every=20", n_parallel=4, n_ctx=512) as engine:
        client = AsgiClient(create_app(engine, max_tokens=50))
        answer = await client.post(path, body=body)
        after = await client.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        await until(lambda: engine.stats().in_flight == 0)
        return answer, after


def _is_sane(answer: Answer) -> None:
    assert answer.status in {200, 400, 403, 404, 408, 413, 429, 501}, answer.text
    assert answer.is_whole
    if answer.status != 200:
        assert set(answer.error) >= {"message", "type", "param", "code"}
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert all(isinstance(event, dict) for event in answer.events)
    else:
        json.loads(answer.body)


@given(st.sampled_from(PATHS), bodies())
@settings(max_examples=N_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_object_is_answered_or_refused(path: str, body: dict[str, Any]) -> None:
    answer, after = asyncio.run(_ask(path, json.dumps(body).encode()))
    _is_sane(answer)
    assert after.status == 200


@given(st.sampled_from(PATHS), st.one_of(st.binary(max_size=60), values.map(lambda value: json.dumps(value).encode())))
@settings(max_examples=N_EXAMPLES // 3, deadline=None)
def test_any_bytes_are_answered_or_refused(path: str, body: bytes) -> None:
    answer, after = asyncio.run(_ask(path, body))
    _is_sane(answer)
    assert after.status == 200


@pytest.mark.slow
@given(st.sampled_from(PATHS), bodies())
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_object_is_answered_or_refused_at_length(path: str, body: dict[str, Any]) -> None:
    answer, after = asyncio.run(_ask(path, json.dumps(body).encode()))
    _is_sane(answer)
    assert after.status == 200
