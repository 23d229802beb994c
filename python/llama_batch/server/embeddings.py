"""`/v1/embeddings`, and llama-server's `/embedding`."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

from llama_batch.server.asking import check_model, check_prompt
from llama_batch.server.failures import HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.server.requests import EmbeddingRequest
    from llama_batch.server.service import Call


async def embeddings(call: Call, request: EmbeddingRequest) -> dict[str, Any]:
    """A vector for each text, in OpenAI's shape."""
    vectors, usage = await _embedded(call, request)
    encode = _base64 if request.encoding_format == "base64" else _numbers
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": check_model(call, request.model), "usage": usage}


async def embedding(call: Call, request: EmbeddingRequest) -> list[dict[str, Any]]:
    """A vector for each text, in llama-server's shape."""
    vectors, _ = await _embedded(call, request)
    return [{"index": i, "embedding": [_numbers(vector)]} for i, vector in enumerate(vectors)]


async def _embedded(call: Call, request: EmbeddingRequest) -> tuple[Sequence[Any], dict[str, int]]:
    check_model(call, request.model)
    embed: Any = getattr(call.service.engine, "embed", None)
    if embed is None:
        raise HttpError(501, "this engine makes no embeddings", code="not_supported")
    texts = _texts(request)
    if len(texts) > call.service.settings.max_choices:
        message = f"there are {len(texts)} texts; one request may have {call.service.settings.max_choices}"
        raise HttpError(400, message, code="too_many_choices", param="input")
    for text in texts:
        check_prompt(call, text, "input")
    if request.embd_normalize in {0, 1}:
        raise HttpError(501, "'embd_normalize' is 2 or -1 here", code="not_supported", param="embd_normalize")
    with call.service.admitted(call.client):
        made = await call.attended(embed(texts, normalize=request.embd_normalize != -1))
    n_tokens = int(made.usage.prompt_tokens)
    call.client.charge(n_tokens)
    call.facts["prompt_tokens"] = n_tokens
    return made.vectors, {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def _texts(request: EmbeddingRequest) -> list[Any]:
    given: Any = request.input if request.input is not None else request.content
    if given is None:
        raise HttpError(400, "'input' is missing", code="invalid_value", param="input")
    if request.input is not None and request.content is not None:
        raise HttpError(400, "'input' and 'content' are the same field", code="invalid_value", param="content")
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise HttpError(400, "'input' is an empty list", code="empty_prompt", param="input")
    return list(given)


def _numbers(vector: Any) -> list[float]:
    return [float(x) for x in vector]


def _base64(vector: Any) -> str:
    """Little-endian floats of 32 bits, as OpenAI packs them."""
    numbers = _numbers(vector)
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
