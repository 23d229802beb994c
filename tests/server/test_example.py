"""The example of a FastAPI application runs, and does what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient

if TYPE_CHECKING:
    from llama_batch import Engine

pytest.importorskip("fastapi")

pytestmark = pytest.mark.anyio


async def test_the_fastapi_example_serves_both_and_closes_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastapi_lifespan

    monkeypatch.setenv("MODEL", "sim:?eog_every=0")
    app = fastapi_lifespan.app
    client = AsgiClient(app, {"content-type": "application/json"})
    async with app.router.lifespan_context(app):
        engine: Engine = app.state.engine
        made = await client.post("/summary", {"text": "Once upon a time"})
        assert (made.status, made.json()["n_tokens"]) == (200, 60)
        streamed = await client.post("/summary/stream", {"text": "Once upon a time"})
        assert streamed.status == 200
        assert len(streamed.parts) > 2
        chat: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        answer = await client.post("/llm/v1/chat/completions", chat)
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert (await client.get("/llm/health")).status == 200
        assert (await client.post("/summary", {"text": "x" * 20_001})).status == 422
        assert (await client.post("/summary", {"text": "x " * 9_000})).status == 400  # longer than the context
    assert engine.state == "closed"
