"""A FastAPI application around one engine: OpenAI's API under /llm, and an endpoint of its own.

    pip install 'llama-batch[server]' fastapi
    uvicorn fastapi_lifespan:app

    curl http://127.0.0.1:8000/summary -H 'content-type: application/json' -d '{"text": "A long story ..."}'
    curl http://127.0.0.1:8000/llm/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Both are answered by the same engine, which batches them together. It opens before the first request is taken, and at
the end it serves what is under way before it closes.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from llama_batch import Engine, LlamaBatchError, QueueFullError
from llama_batch.server import create_app
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Story(BaseModel):
    """What is to be summed up."""

    text: str = Field(max_length=20_000)


class Summary(BaseModel):
    """What it comes to."""

    summary: str
    n_tokens: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the engine with the application, and close it with it."""
    async with Engine(os.environ.get("MODEL"), n_parallel=8) as engine:
        app.state.engine = engine
        app.mount("/llm", create_app(engine))
        yield


app = FastAPI(lifespan=lifespan)


def _asked(story: Story) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Sum this up in one sentence:\n\n{story.text}"}]


@app.post("/summary")
async def summary(story: Story) -> Summary:
    """Sum a text up."""
    engine: Engine = app.state.engine
    try:
        done = await engine.chat(_asked(story), max_tokens=60)
    except QueueFullError as error:
        raise HTTPException(429, str(error), headers={"retry-after": "1"}) from error
    except LlamaBatchError as error:
        raise HTTPException(400, str(error)) from error
    return Summary(summary=str(done), n_tokens=done.usage.generated_tokens)


@app.post("/summary/stream")
async def summary_stream(story: Story) -> StreamingResponse:
    """Sum a text up, sent as it is written; a client that goes away cancels it."""
    engine: Engine = app.state.engine
    return StreamingResponse(engine.chat(_asked(story), max_tokens=60), media_type="text/plain")
