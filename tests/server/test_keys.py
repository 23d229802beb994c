"""API keys: who comes in, what it may take, and what it may see of others."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient, until
from hypothesis import given
from hypothesis import strategies as st
from llama_batch import Engine, OptionError
from llama_batch.server import ApiKey, KeyRing, create_app
from llama_batch.server.keys import Bucket, Client

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_only_holders_of_a_key_come_in(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, keys=KeyRing([ApiKey.of("sk-one"), ApiKey.of("sk-two")])))
    body = {"prompt": "x", "max_tokens": 1}
    for headers in (bearer("sk-one"), bearer("sk-two"), {"x-api-key": "sk-two"}, {"authorization": "bearer  sk-one"}):
        assert (await client.post(TEXT, body, headers=headers)).status == 200
    for headers in ({}, bearer(""), bearer("sk-On"), bearer("sk-one2"), {"authorization": "Basic sk-one"}, bearer("é")):
        answer = await client.post(TEXT, body, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "sk-o" not in answer.text
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/openapi.json", "/nowhere"):
        assert (await client.get(path)).status == 401
    assert (await client.get("/health")).status == 200
    assert engine.stats().n_submitted == 4


async def test_what_a_key_has_cached_is_its_own(engine: Engine) -> None:
    keys = [ApiKey.of("sk-one"), ApiKey.of("sk-two"), ApiKey.of("sk-a", scope="team"), ApiKey.of("sk-b", scope="team")]
    client = AsgiClient(create_app(engine, keys=KeyRing(keys)))
    body = {"prompt": "a long prompt " * 20, "max_tokens": 1}

    async def cached(key: str, **more: Any) -> int:
        answer = await client.post(TEXT, {**body, **more}, headers=bearer(key))
        n: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return n

    assert await cached("sk-one") == 0
    assert await cached("sk-one") > 0
    assert await cached("sk-two") == 0
    assert await cached("sk-a") == 0
    assert await cached("sk-b") > 0
    assert await cached("sk-one", cache_scope="inner") == 0
    assert await cached("sk-one", cache_salt="inner") > 0
    assert await cached("sk-two", cache_scope="inner") == 0
    # Nobody gets into another's scope by its name.
    name = ApiKey.of("sk-one").cache_scope()
    assert await cached("sk-two", cache_scope=str(name)) == 0


async def test_the_operator_may_have_all_share_one_cache(engine: Engine) -> None:
    keys = KeyRing([ApiKey.of("sk-one"), ApiKey.of("sk-two")])
    client = AsgiClient(create_app(engine, keys=keys, cache_scope="shared"))
    body = {"prompt": "a long prompt " * 20, "max_tokens": 1}
    await client.post(TEXT, body, headers=bearer("sk-one"))
    answer = await client.post(TEXT, body, headers=bearer("sk-two"))
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_key_that_floods_the_engine_is_refused_and_the_others_come_in() -> None:
    keys = KeyRing([ApiKey.of("sk-flood"), ApiKey.of("sk-light")])
    with Engine("sim:?pass_ms=20", n_parallel=1, max_queue=0, max_queue_per_scope=2) as engine:
        client = AsgiClient(create_app(engine, keys=keys, cache_scope="shared"))

        async def post(key: str, **more: Any) -> Any:
            return await client.post(TEXT, {"prompt": "x", "max_tokens": 40, **more}, headers=bearer(key))

        # Another scope within the key's own is no way round its bound, nor is the cache that all share.
        flood = [asyncio.create_task(post("sk-flood", cache_scope=f"scope {i}")) for i in range(3)]
        await until(lambda: engine.stats().in_flight == 3)
        refused = await post("sk-flood", cache_scope="scope 9")
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert "max_queue_per_scope" in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert (await post("sk-light", max_tokens=1)).status == 200
        assert not all(task.done() for task in flood), "it did not wait for the flood"
        assert [answer.status for answer in await asyncio.gather(*flood)] == [200, 200, 200]
        assert (await post("sk-flood", fair_scope="mine")).status == 400


async def test_a_key_has_its_limits(slow: Engine) -> None:
    keys = KeyRing([
        ApiKey.of("sk-few", requests_per_minute=2),
        ApiKey.of("sk-thrifty", tokens_per_minute=5),
        ApiKey.of("sk-short", max_tokens=3),
        ApiKey.of("sk-late", priority=5),
        ApiKey.of("sk-alone", max_concurrent=1),
    ])  # fmt: skip
    client = AsgiClient(create_app(slow, keys=keys))

    async def post(key: str, **more: Any) -> Any:
        return await client.post(TEXT, {"prompt": "x", "max_tokens": 2, **more}, headers=bearer(key))

    assert [(await post("sk-few")).status for _ in range(3)] == [200, 200, 429]
    refused = await post("sk-few")
    assert refused.error["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert [(await post("sk-thrifty", max_tokens=8)).status for _ in range(2)] == [200, 429]
    assert (await post("sk-short", max_tokens=4)).error["code"] == "too_many_tokens"
    assert (await post("sk-short", max_tokens=None)).json()["usage"]["completion_tokens"] == 3
    assert [(await post("sk-late", priority=priority)).status for priority in (4, 5, 6)] == [403, 200, 200]
    assert (await post("sk-late")).status == 200
    running = asyncio.create_task(post("sk-alone", max_tokens=50))
    await until(lambda: slow.stats().active_slots == 1)
    assert (await post("sk-alone")).status == 429
    assert (await running).status == 200
    assert (await post("sk-alone")).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (TEXT, {"prompt": ["x" * 10, "y" * 10], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/completion", {"prompt": "x" * 10}),
    ],
)
async def test_a_request_is_charged_once(engine: Engine, path: str, asked: dict[str, Any], stream: bool) -> None:
    key = ApiKey.of("sk-one", tokens_per_minute=10_000)
    app = create_app(engine, keys=KeyRing([key]))
    charged: list[int] = []
    app.state.service.client(key).charge = charged.append
    answer = await AsgiClient(app).post(path, {**asked, "max_tokens": 5, "stream": stream}, headers=bearer("sk-one"))
    assert answer.status == 200
    await asyncio.sleep(0.1)
    assert len(charged) == 1
    if not stream and "usage" in answer.json():
        assert charged == [answer.json()["usage"]["total_tokens"]]


async def test_going_away_is_no_way_around_a_limit(slow: Engine) -> None:
    client = AsgiClient(create_app(slow, keys=KeyRing([ApiKey.of("sk-thrifty", tokens_per_minute=5)])))
    body = {"prompt": "x", "max_tokens": 3000, "stream": True}
    await client.post(TEXT, body, headers=bearer("sk-thrifty"), leave_after_parts=6)
    await until(lambda: slow.stats().in_flight == 0)
    await asyncio.sleep(0.1)
    assert (await client.post(TEXT, body, headers=bearer("sk-thrifty"))).status == 429


@pytest.mark.parametrize("texts", [["x" * 1000] * 4, [[5] * 1000] * 4])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding"])
async def test_embeddings_that_are_left_are_charged(slow: Engine, path: str, texts: list[Any]) -> None:
    key = ApiKey.of("sk-one", tokens_per_minute=10_000)
    app = create_app(slow, keys=KeyRing([key]))
    charged: list[int] = []
    app.state.service.client(key).charge = charged.append
    client = AsgiClient(app, bearer("sk-one"))
    await client.post(path, {"input": texts}, leave_after_s=0.02)
    await until(lambda: bool(charged))
    assert not slow.stats().n_embedded_texts or slow.stats().in_flight == 0
    whole = (await client.post(path, {"input": texts})).json()
    assert len(charged) == 2
    assert charged[0] == charged[1]
    assert "usage" not in whole or whole["usage"]["total_tokens"] == charged[0]


async def test_embeddings_that_are_late_are_charged(slow: Engine) -> None:
    key = ApiKey.of("sk-one", tokens_per_minute=10_000)
    app = create_app(slow, keys=KeyRing([key]))
    charged: list[int] = []
    app.state.service.client(key).charge = charged.append
    client = AsgiClient(app, bearer("sk-one"))
    answer = await client.post("/v1/embeddings", {"input": ["x" * 1000] * 4, "timeout": 0.02})
    assert answer.status == 408
    await until(lambda: bool(charged))
    for wrong in ({"input": ""}, {"input": [99_999]}):
        assert (await client.post("/v1/embeddings", wrong)).status == 400
    await asyncio.sleep(0.05)
    assert len(charged) == 1


@pytest.mark.parametrize("n", [1, 3])
async def test_what_is_left_is_charged_as_what_is_told(engine: Engine, n: int) -> None:
    key = ApiKey.of("sk-one", tokens_per_minute=10_000)
    app = create_app(engine, keys=KeyRing([key]))
    charged: list[int] = []
    app.state.service.client(key).charge = charged.append
    body = {"prompt": "x" * 100, "n": n, "max_tokens": 2000}
    n_prompt = (await AsgiClient(app, bearer("sk-one")).post(TEXT, {**body, "max_tokens": 0})).json()["usage"]
    charged.clear()
    await AsgiClient(app, bearer("sk-one")).post(TEXT, {**body, "stream": True}, leave_after_parts=1)
    await until(lambda: bool(charged))
    assert n_prompt["prompt_tokens"] <= charged[0] < n_prompt["prompt_tokens"] + n * 2000


def test_keys_come_from_files(tmp_path: Path) -> None:
    lines = tmp_path / "keys.txt"
    lines.write_text("# ours\nsk-one\n\nsk-two name=two requests_per_minute=1.5 max_tokens=10 scope=team priority=-2\n")
    ring = KeyRing.load(lines)
    two = ring.find("sk-two")
    assert two is not None
    assert (two.name, two.requests_per_minute, two.max_tokens, two.scope, two.priority) == ("two", 1.5, 10, "team", -2)
    assert ring.find("sk-one") is not None
    assert ring.find("sk-three") is None
    rows = [{"key": "sk-one"}, {"key": f"sha256:{hashlib.sha256(b'sk-two').hexdigest()}", "max_concurrent": 2}]
    file = tmp_path / "keys.json"
    for value in (rows, {"keys": rows}):
        file.write_text(json.dumps(value))
        found = KeyRing.load(file).find("sk-two")
        assert found is not None
        assert found.max_concurrent == 2
        assert found.cache_scope() == ApiKey.of("sk-two").cache_scope()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "sk-one\nsk-one",
        "k",
        "sk-öne",
        "sk-one odd=1",
        "sk-one max_tokens",
        "sk-one max_tokens=x",
        "sk-one max_tokens=1.5",
        "sk-one max_tokens=-1",
        "sk-one requests_per_minute=nan",
        "sha256:12",
        "[",
        "{}",
        "[1]",
        '[{"name": "x"}]',
        '[{"key": 5}]',
        '[{"key": "sk-one", "digest": "x"}]',
        '[{"key": "sk-one", "priority": true}]',
        '[{"key": "sk-one", "name": 5}]',
        '[{"key": "sk-one", "max_tokens": "5"}]',
    ],
)
def test_files_that_are_wrong_are_refused_without_telling_a_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OptionError) as caught:
        KeyRing.load(file)
    assert "sk-one" not in str(caught.value)
    with pytest.raises(OptionError):
        KeyRing.load(tmp_path / "missing")


def test_a_key_shows_nowhere() -> None:
    key = ApiKey.of("sk-very-secret", name="mine")
    assert "secret" not in repr(key) + repr(key.cache_scope()) + str(ApiKey.of("sk-very-secret").name)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), max_size=30), st.floats(1, 1000))
def test_a_bucket_never_gives_more_than_comes_in(steps: list[tuple[float, float]], per_minute: float) -> None:
    now, taken = 0.0, 0.0
    bucket = Bucket(per_minute, lambda: now)
    for seconds, amount in steps:
        now += seconds
        wait_s = bucket.wait_s(amount)
        if wait_s == 0 and amount <= per_minute:
            bucket.take(amount)
            taken += amount
        elif amount <= per_minute:
            now += wait_s + 1e-6
            assert bucket.wait_s(amount) <= 1e-6
        assert taken <= per_minute + now * per_minute / 60 + 1e-6


@given(st.one_of(st.none(), st.text(), st.integers()), st.one_of(st.none(), st.text(), st.integers()))
def test_scopes_of_two_keys_never_meet(one: str | int | None, other: str | int | None) -> None:
    a, b, nobody = Client(ApiKey.of("sk-a")), Client(ApiKey.of("sk-b")), Client(None)
    assert len({a.scope(one), b.scope(other), nobody.scope(None)}) == 3
    assert (a.scope(one) == a.scope(other)) == (one == other and type(one) is type(other))
