"""What stands before the routes: names, hosts, origins, sizes, bodies that are wrong, and the log."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from asgi_client import AsgiClient
from llama_batch import Engine, OptionError
from llama_batch.server import Settings, create_app
from starlette.applications import Starlette
from starlette.routing import Mount

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


# --- names ---


async def test_each_answer_carries_the_requests_name(client: AsgiClient) -> None:
    named = await client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"
    for wrong in ("", "a b", "x" * 200, "é"):
        made = await client.get("/nowhere", headers={"X-Request-Id": wrong})
        assert made.status == 404
        assert len(made.headers["x-request-id"]) == 32


async def test_the_model_may_have_to_be_the_right_one(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, model_name="mine", strict_model=True))
    right = await client.post(TEXT, {"prompt": "x", "max_tokens": 1, "model": "mine"})
    wrong = await client.post(TEXT, {"prompt": "x", "max_tokens": 1, "model": "yours"})
    assert right.status == 200
    others: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [5]}),
        ("/apply-template", {"messages": HELLO}),
        ("/completion", {"prompt": "x", "n_predict": 1}),
        (CHAT, {"messages": HELLO, "max_tokens": 1}),
    ]
    for path, body in others:
        assert (await client.post(path, {**body, "model": "mine"})).status == 200
        assert (await client.post(path, {**body, "model": "yours"})).status == 404
    assert (wrong.status, wrong.error["code"], wrong.error["param"]) == (404, "model_not_found", "model")


async def test_it_can_be_mounted_in_another_application(engine: Engine) -> None:
    outer = Starlette(routes=[Mount("/llm", create_app(engine))])
    client = AsgiClient(outer)
    assert (await client.get("/llm/health")).status == 200
    answer = await client.post("/llm/v1/completions", {"prompt": "x", "max_tokens": 2})
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert (await client.get("/llm/nowhere")).error["code"] == "not_found"


def test_settings_are_checked(engine: Engine) -> None:
    with pytest.raises(OptionError, match="did you mean 'model_name'"):
        create_app(engine, model_nam="x")
    wrongs: list[dict[str, Any]] = [
        {"max_tokens": 0},
        {"max_body_bytes": True},
        {"ping_s": float("nan")},
        {"cache_scope": "x"},
        {"allowed_hosts": "localhost"},
        {"keys": ["sk-1"]},
    ]
    for wrong in wrongs:
        with pytest.raises(OptionError):
            Settings().changed(**wrong)


# --- hosts and origins ---


async def test_only_hosts_that_are_allowed_are_answered(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, allowed_hosts=("LocalHost", "::1")))
    for host, status in (
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ):
        assert (await client.get("/health", headers={"host": host})).status == status, host


async def test_pages_of_other_origins_do_no_work_here(engine: Engine) -> None:
    client = AsgiClient(create_app(engine))
    body = {"prompt": "x", "max_tokens": 2}
    foreign = await client.post(TEXT, body, headers={"origin": "https://evil.example"})
    own = await client.post(TEXT, body, headers={"origin": "http://localhost"})
    assert (foreign.status, foreign.error["code"], own.status) == (403, "origin", 200)
    assert "access-control-allow-origin" not in own.headers
    assert engine.stats().n_submitted == 1


async def test_named_origins_may_read_answers(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, cors_origins=("https://app.example",)))
    origin = {"origin": "https://app.example"}
    asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = await client.request("OPTIONS", TEXT, headers=asked)
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, "https://app.example")
    answer = await client.post(TEXT, {"prompt": "x", "max_tokens": 1}, headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    other = await client.post(TEXT, {"prompt": "x"}, headers={"origin": "https://evil.example"})
    assert other.status == 403


# --- methods, paths and bodies ---


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/health", 405),
        ("OPTIONS", CHAT, 405),
        ("POST", "/infill", 501),
        ("POST", "/props", 501),
        ("POST", "/v1/responses", 501),
        ("POST", "/slots/0?action=save", 501),
    ],
)
async def test_errors_of_paths_are_json(client: AsgiClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert ("allow" in answer.headers) == (status == 405)


async def test_head_has_headers_alone(client: AsgiClient) -> None:
    for path in ("/health", "/v1/models", "/nowhere"):
        answer = await client.request("HEAD", path)
        assert answer.body == b""
        assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b'"prompt"',
        b'{"prompt": "x"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
async def test_bodies_that_are_wrong_are_refused(client: AsgiClient, body: bytes) -> None:
    for path in (TEXT, CHAT, "/completion", "/tokenize"):
        answer = await client.post(path, body=body)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
    assert (await client.post(TEXT, {"prompt": "x", "max_tokens": 1})).status == 200


@pytest.mark.parametrize("depth", [100, 140, 500, 900, 950, 970, 980, 985, 990, 995, 1000, 3000])
async def test_no_depth_is_an_error_of_the_server(client: AsgiClient, depth: int) -> None:
    for path, prompt in ((TEXT, '"prompt": "x"'), (CHAT, '"messages": [{"role": "user", "content": "x"}]')):
        for field in ("json_schema", "response_format", "metadata", "odd"):
            nested = '{"a":' * depth + "1" + "}" * depth
            answer = await client.post(path, body=f'{{{prompt}, "max_tokens": 1, "{field}": {nested}}}'.encode())
            assert answer.status in {200, 400, 501}, answer.text
            assert answer.status == 400 or depth < 128


async def test_bodies_are_read_as_they_are(client: AsgiClient) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    for coding in ("gzip", "br", "deflate, gzip"):
        answer = await client.post(TEXT, body=gzip.compress(body), headers={"content-encoding": coding})
        assert (answer.status, answer.error["code"]) == (415, "content_encoding")
    assert (await client.post(TEXT, body=body, headers={"content-encoding": "identity"})).status == 200
    assert (await client.post(TEXT, body=b"\xef\xbb\xbf" + body)).status == 200


async def test_what_is_wrong_with_a_body_is_not_said_in_pythons_words(client: AsgiClient) -> None:
    answer = await client.post(TEXT, body=b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}")
    assert answer.status == 400
    assert answer.error["message"] == "the body is not JSON: a number is too large"


async def test_a_scope_has_one_name(client: AsgiClient) -> None:
    body = {"prompt": "x", "max_tokens": 1, "cache_scope": "a", "cache_salt": "b"}
    answer = await client.post(TEXT, body)
    assert (answer.status, answer.error["param"]) == (400, "cache_salt")


async def test_bodies_are_limited_whether_they_tell_their_length_or_not(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, max_body_bytes=1000))
    long = json.dumps({"prompt": "x" * 2000}).encode()
    whole = await client.post(TEXT, body=long)
    parts = await client.post(TEXT, body=[long[i : i + 100] for i in range(0, len(long), 100)])
    liar = await client.post(TEXT, body=long, headers={"content-length": "10"})
    huge = await client.post(TEXT, body=b"{}", headers={"content-length": "9" * 40})
    assert [each.status for each in (whole, parts, liar, huge)] == [413] * 4
    assert engine.stats().n_submitted == 0


async def test_a_body_must_come_in_time(engine: Engine) -> None:
    async def receive() -> Any:
        await asyncio.sleep(30)

    app, sent = create_app(engine, body_timeout_s=0.05), []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": TEXT, "headers": [], "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_unknown_fields_come_with_a_suggestion(client: AsgiClient) -> None:
    answer = await client.post(CHAT, {"messages": HELLO, "max_token": 5})
    assert answer.error["message"] == "unknown field 'max_token'; did you mean 'max_tokens'?"
    nested = await client.post(CHAT, {"messages": HELLO, "stream": True, "stream_options": {"include_use": True}})
    assert (nested.status, nested.error["param"]) == (400, "stream_options.include_use")
    message = await client.post(CHAT, {"messages": [{"role": "user", "contents": "x"}]})
    assert (message.status, message.error["param"]) == (400, "messages.0.contents")


async def test_a_whole_number_may_have_a_point(client: AsgiClient) -> None:
    answer = await client.post(TEXT, body=b'{"prompt": "x", "max_tokens": 3.0, "temperature": 1, "top_k": 4e1}')
    assert answer.json()["usage"]["completion_tokens"] == 3


async def test_values_that_ask_for_nothing_are_taken(client: AsgiClient) -> None:
    neutral = {
        "safety_identifier": "id",
        "prompt_cache_key": "chat",
        "session": "other",
        "store": False,
        "service_tier": "auto",
        "lora": [],
        "id_slot": -1,
        "user": "me",
        "n_keep": 0,
    }
    nulls = dict.fromkeys(("stop", "logit_bias", "seed", "tools", "response_format", "metadata", "max_tokens"))
    answer = await client.post(CHAT, {"messages": HELLO, **neutral, **nulls, "max_completion_tokens": 2})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([], 400),
        ("Hello", 400),
        ([{}], 400),
        ([{"role": "user"}], 400),
        ([{"role": "king", "content": "x"}], 400),
        (["x"], 400),
        ([{"role": "user", "content": 5}], 400),
        ([{"role": "user", "content": [{"type": "text"}]}], 400),
        ([{"role": "user", "content": [{"type": "odd", "odd": 1}]}], 400),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], 501),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], 501),
    ],
)
async def test_messages_that_are_wrong_are_refused(client: AsgiClient, messages: Any, status: int) -> None:
    for path in (CHAT, "/apply-template"):
        answer = await client.post(path, {"messages": messages})
        assert answer.status == status, answer.text
        assert answer.error["param"].startswith("messages")


async def test_a_chat_has_only_so_many_messages(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, max_messages=3))
    for path in (CHAT, "/apply-template", "/tokenize"):
        assert (await client.post(path, {"messages": HELLO * 3})).status == 200
        refused = await client.post(path, {"messages": HELLO * 4})
        assert (refused.status, refused.error["code"]) == (400, "too_many_messages")


# --- the engine's states ---


async def test_while_the_model_loads_health_says_so_and_requests_wait() -> None:
    engine = Engine("sim:?load_ms=1000")
    client = AsgiClient(create_app(engine))
    health = await client.get("/health")
    assert (health.status, health.error["message"]) == (503, "Loading model")
    assert (await client.post("/tokenize", {"content": "x"})).status == 503
    assert (await client.get("/v1/models")).status == 200
    assert (await client.post(TEXT, {"prompt": "x", "max_tokens": 2})).status == 200
    assert (await client.get("/health")).status == 200
    engine.close()
    assert (await client.get("/health")).status == 503
    closed = await client.post(TEXT, {"prompt": "x"})
    assert (closed.status, closed.error["code"]) == (503, "shutting_down")


async def test_a_model_that_cannot_be_loaded_is_told() -> None:
    engine = Engine("sim:?load_error=broken")
    client = AsgiClient(create_app(engine))
    answer = await client.post(TEXT, {"prompt": "x"})
    assert (answer.status, answer.error["code"]) == (503, "load_failed")
    assert (await client.get("/health")).status == 503


async def test_a_pass_that_fails_is_an_error_of_the_server_and_of_no_other_request() -> None:
    with Engine("sim:?fail=2&seed=1", n_parallel=4) as engine:
        client = AsgiClient(create_app(engine))
        answers = await asyncio.gather(
            *(client.post(TEXT, {"prompt": f"{i}", "max_tokens": 20, "stream": i % 2 == 0}) for i in range(40))
        )
        assert {answer.status for answer in answers} <= {200, 500}
        assert all(answer.is_whole for answer in answers)
