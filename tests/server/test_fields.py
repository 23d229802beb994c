"""Fields: each is honoured, or named in an error as the client sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient
from llama_batch.server import create_app

if TYPE_CHECKING:
    from llama_batch import Engine

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"temprature": 1}, 400, "temprature"),
        ({"max_tokens": "5"}, 400, "max_tokens"),
        ({"max_tokens": 5.5}, 400, "max_tokens"),
        ({"max_tokens": 1e18}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 2}, 400, "top_p"),
        ({"n": 0}, 400, "n"),
        ({"n": 1000}, 400, "n"),
        ({"stop": 5}, 400, "stop"),
        ({"stop": ["x"] * 100}, 400, "stop"),
        ({"stop": "x" * 2000}, 400, "stop"),
        ({"stream": "yes"}, 400, "stream"),
        ({"seed": "x"}, 400, "seed"),
        ({"return_progress": True}, 400, "return_progress"),
        ({"json_schema": {"description": "x" * 70_000}}, 400, "json_schema"),
        ({"grammar": "root ::= " + '"x" ' * 30_000}, 400, "grammar"),
        ({"grammar": "root ::= ("}, 400, "grammar"),
        ({"regex": "("}, 400, "regex"),
        ({"structured_outputs": {"regex": "("}}, 400, "structured_outputs"),
        ({"response_format": {"type": "json_object", "schema": {"type": "x"}}}, 400, "response_format"),
        ({"json_schema": {"$ref": "http://x"}}, 400, "json_schema"),
        ({"json_schema": {}, "grammar": "root ::= [0-9]"}, 400, "json_schema"),
        ({"grammar_triggers": ["x"]}, 400, "grammar_triggers"),
        ({"logit_bias": {"99999999": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"5": 1e39}}, 400, "logit_bias"),
        ({"banned_token_ids": [99_999]}, 400, "banned_token_ids"),
        ({"stop_token_ids": [-1]}, 400, "stop_token_ids"),
        ({"allowed_token_ids": []}, 400, "allowed_token_ids"),
        ({"temp": 1, "temperature": 1}, 400, "temp"),
        ({"samplers": ["nothing"]}, 400, "samplers"),
        ({"choice": []}, 400, "choice"),
        ({"dry_sequence_breakers": ["x" * 2000]}, 400, "dry_sequence_breakers"),
        ({"n": 100}, 400, "n"),
        ({"priority": -1}, 403, "priority"),
        ({"cache_scope": "x"}, 400, "cache_scope"),
        ({"cache_salt": "x"}, 400, "cache_salt"),
        ({"sampler": "x"}, 400, "sampler"),
        ({"store": True}, 501, "store"),
        ({"lora": [{"id": 0, "scale": 1}]}, 501, "lora"),
        ({"id_slot": 1}, 501, "id_slot"),
        ({"id_slot": True}, 501, "id_slot"),
        ({"use_beam_search": True}, 501, "use_beam_search"),
    ],
)
async def test_fields_are_honoured_or_named(client: AsgiClient, body: dict[str, Any], status: int, param: str) -> None:
    for path, prompt in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        answer = await client.post(path, {"max_tokens": 1, **prompt, **body})
        assert (answer.status, answer.error["param"]) == (status, param), answer.text
        assert "xxxxxxxxxx" not in answer.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "x", "best_of": 100}, "best_of"),
        (TEXT, {"prompt": "x", "max_tokens": 101}, "max_tokens"),
        (TEXT, {"prompt": "x", "n_predict": 101}, "n_predict"),
        (TEXT, {"prompt": "x", "structured_outputs": {"choice": ["a"] * 100}}, "structured_outputs"),
        (TEXT, {"prompt": ["x"] * 100, "n": 2}, "n"),
        (TEXT, {"prompt": ["x"] * 200}, "prompt"),
        (TEXT, {"prompt": "x" * 99_999}, "prompt"),
        (TEXT, {"prompt": [99_999]}, "prompt"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": 101}, "max_completion_tokens"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"description": "x" * 70_000}}}}, "response_format"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"a": {"b": float("1e300")}}, "top_k": -1}, "top_k"),
        ("/completion", {"prompt": "x", "n_cmpl": 100}, "n_cmpl"),
        ("/completion", {"prompt": [99_999]}, "prompt"),
        ("/v1/embeddings", {"input": [99_999]}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {}, "input"),
        ("/embedding", {"content": ""}, "content"),
        ("/embedding", {"content": []}, "content"),
        ("/embedding", {"content": [99_999]}, "content"),
        ("/v1/embeddings", {"input": "x", "timeout": -1}, "timeout"),
        ("/tokenize", {"prompt": "x", "content": "y"}, "content"),
        ("/detokenize", {"tokens": [99_999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/apply-template", {"messages": [{"role": "user"}]}, "messages.0.content"),
        ("/apply-template", {"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
    ],
)  # fmt: skip
async def test_errors_name_the_field_that_was_sent(engine: Engine, path: str, body: dict[str, Any], param: str) -> None:
    answer = await AsgiClient(create_app(engine, max_tokens=100)).post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.text
