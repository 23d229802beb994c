"""`/v1/embeddings`, and llama-server's `/embedding`."""

from __future__ import annotations

import asyncio
import base64
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_batch.errors import LlamaBatchError, RequestTimeoutError
from llama_batch.server.asking import beside, check_model, check_prompt, priority_of
from llama_batch.server.failures import HttpError
from llama_batch.server.service import ClientGoneError

if TYPE_CHECKING:
    from llama_batch.engine import Engine
    from llama_batch.server.requests import EmbeddingRequest
    from llama_batch.server.service import Call


async def embeddings(call: Call, request: EmbeddingRequest) -> dict[str, Any]:
    """A vector for each text, in OpenAI's shape."""
    if request.pooling == "none":
        message = "'pooling': with 'none' a text has several vectors, for which /embedding has a place"
        raise HttpError(400, message, code="invalid_value", param="pooling")
    made = await _embedded(call, request)
    encode = _base64 if request.encoding_format == "base64" else _numbers
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(made.vectors)]
    n_tokens = made.usage.prompt_tokens
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": check_model(call, request.model), "usage": usage}


async def embedding(call: Call, request: EmbeddingRequest) -> list[dict[str, Any]]:
    """The vectors of each text, in llama-server's shape: one, or those of all its tokens with `pooling` "none"."""
    made = await _embedded(call, request)
    rows = []
    for i, vector in enumerate(made.vectors):
        numbers = _numbers(vector)
        width = made.n_embd if request.pooling == "none" else max(1, len(numbers))
        parts = [numbers[at : at + width] for at in range(0, len(numbers), width)]
        rows.append({"index": i, "embedding": parts})
    return rows


async def _embedded(call: Call, request: EmbeddingRequest) -> Any:
    call.prompt_field = name = "content" if request.input is None and request.content is not None else "input"
    if request.user is not None:
        call.facts["user"] = request.user
    check_model(call, request.model)
    texts = _texts(request, name)
    if len(texts) > call.service.settings.max_texts:
        message = f"there are {len(texts)} texts; one request may have {call.service.settings.max_texts}"
        raise HttpError(400, message, code="too_many_choices", param=name)
    for text in texts:
        check_prompt(call, text, name)
    options: dict[str, Any] = {"normalize": 2 if request.embd_normalize is None else request.embd_normalize}
    for name in ("pooling", "timeout"):
        if (value := getattr(request, name)) is not None:
            options[name] = value
    if priority := priority_of(call, request.priority):
        options["priority"] = priority
    if (flow := call.client.flow()) is not None:
        options["fair_scope"] = flow
    with call.service.admitted(call.client):
        job = await beside(call, lambda: call.service.engine.embed(texts, **options))
        try:
            made = await call.attended(job)
        except (ClientGoneError, RequestTimeoutError):
            call.service.charge_later(call.client, partial(asyncio.to_thread, _n_tokens, call.service.engine, texts))
            raise
    call.client.charge(made.usage.prompt_tokens)
    call.facts["prompt_tokens"] = made.usage.prompt_tokens
    return made


def _n_tokens(engine: Engine, texts: list[Any]) -> int:
    """The tokens of texts whose request has no result that would tell."""
    try:
        model = engine.model
        return sum(len(model.tokenize(text)) if isinstance(text, str) else len(text) for text in texts)
    except LlamaBatchError:  # there is no model yet, or none any more: nothing was read
        return 0


def _texts(request: EmbeddingRequest, name: str) -> list[Any]:
    given: Any = getattr(request, name)
    if given is None:
        raise HttpError(400, f"{name!r} is missing", code="invalid_value", param=name)
    if request.input is not None and request.content is not None:
        raise HttpError(400, "'input' and 'content' are the same field", code="invalid_value", param="content")
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise HttpError(400, f"{name!r} is an empty list", code="empty_prompt", param=name)
    return list(given)


def _numbers(vector: Any) -> list[float]:
    return [float(x) for x in vector]


def _base64(vector: Any) -> str:
    """Little-endian floats of 32 bits, as OpenAI packs them."""
    numbers = _numbers(vector)
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
