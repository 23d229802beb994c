"""`/tokenize`, `/detokenize` and `/apply-template`, in the shapes of llama-server and of vLLM."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_batch.server.asking import check_model, check_n_messages, check_prompt, first_given
from llama_batch.server.failures import HttpError
from llama_batch.server.requests import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.model import Model
    from llama_batch.server.requests import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
    from llama_batch.server.service import Call


async def tokenize(call: Call, request: TokenizeRequest) -> dict[str, Any]:
    """Text, or a chat, to tokens."""
    check_model(call, request.model)
    named = {"content": request.content, "prompt": request.prompt, "messages": request.messages}
    given = [name for name, value in named.items() if value is not None]
    if len(given) != 1:
        message = "one of 'content', 'prompt' and 'messages' must be given"
        raise HttpError(400, message, code="invalid_value", param=given[0] if given else "content")
    [call.prompt_field] = given
    model = call.service.engine.model
    text = request.content if request.content is not None else request.prompt
    # llama-server adds BOS where it is asked to, vLLM unless it is asked not to, and never to a rendered chat.
    special = first_given(request, "add_special", "add_special_tokens")
    if special is None:
        special = request.prompt is not None
    if text is None:
        text = await _rendered(call, request.messages or [], request.add_generation_prompt is not False)
    check_prompt(call, text, given[0])
    parse = request.parse_special is not False
    tokens = await asyncio.to_thread(model.tokenize, text, add_special=special, parse_special=parse)
    made: dict[str, Any] = {"tokens": tokens}
    if request.with_pieces:
        made["tokens"] = [{"id": token, "piece": _piece(model, token)} for token in tokens]
    if given[0] != "content":
        made |= {"count": len(tokens), "max_model_len": call.service.engine.stats().kv_cells_total}
    if request.return_token_strs:
        made["token_strs"] = [model.detokenize([token], special=True) for token in tokens]
    return made


def _piece(model: Model, token: int) -> str | list[int]:
    """A token's text; its bytes, where it is no whole character."""
    piece = model.detokenize_bytes([token], special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(call: Call, request: DetokenizeRequest) -> dict[str, Any]:
    """Tokens to text: llama-server's `content`, and vLLM's `prompt`."""
    call.prompt_field = "tokens"
    check_model(call, request.model)
    check_prompt(call, request.tokens, "tokens")
    text = await asyncio.to_thread(call.service.engine.model.detokenize, request.tokens, special=True)
    return {"content": text, "prompt": text}


async def apply_template(call: Call, request: ApplyTemplateRequest) -> dict[str, Any]:
    """A chat to the prompt that it makes."""
    call.prompt_field = "messages"
    check_model(call, request.model)
    return {"prompt": await _rendered(call, request.messages, request.add_generation_prompt is not False)}


async def _rendered(call: Call, messages: Sequence[dict[str, Any]], add_generation_prompt: bool) -> str:
    if not messages:
        raise HttpError(400, "'messages' is an empty list", code="invalid_value", param="messages")
    check_n_messages(call, messages)
    checked = ChatRequest.model_construct(messages=list(messages)).checked_messages()
    model = call.service.engine.model
    return await asyncio.to_thread(model.apply_chat_template, checked, add_generation_prompt=add_generation_prompt)
