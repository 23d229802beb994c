"""The routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import pydantic  # noqa: F401 - with Starlette, what the extra brings
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("the server needs its extra: pip install 'llama-batch[server]'") from error

from llama_batch.server import native, ops, tokens
from llama_batch.server.asking import beside
from llama_batch.server.chat import chat_completions
from llama_batch.server.completions import completions
from llama_batch.server.embeddings import embedding, embeddings
from llama_batch.server.guards import CALL, Guard
from llama_batch.server.json_io import loads
from llama_batch.server.openapi import document
from llama_batch.server.requests import (
    ApplyTemplateRequest,
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    NativeRequest,
    TokenizeRequest,
    read,
)
from llama_batch.server.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from llama_batch.engine import Engine
    from llama_batch.server.service import Call, Receive, Scope, Send
    from llama_batch.server.settings import Settings

    Handler = Callable[..., Awaitable[Any]]

POSTS: tuple[tuple[tuple[str, ...], Handler, type[Body]], ...] = (
    (("/v1/chat/completions", "/chat/completions"), chat_completions, ChatRequest),
    (("/v1/completions",), completions, CompletionRequest),
    (("/completion", "/completions"), native.completion, NativeRequest),
    (("/v1/embeddings",), embeddings, EmbeddingRequest),
    (("/embedding", "/embeddings"), embedding, EmbeddingRequest),
    (("/tokenize",), tokens.tokenize, TokenizeRequest),
    (("/detokenize",), tokens.detokenize, DetokenizeRequest),
    (("/apply-template",), tokens.apply_template, ApplyTemplateRequest),
)
"""Paths, what answers them, and what their bodies must be."""

GETS: tuple[tuple[tuple[str, ...], Handler], ...] = (
    (("/health", "/v1/health"), ops.health),
    (("/v1/models", "/models"), ops.models),
    (("/v1/models/{model:path}",), ops.one_model),
    (("/props",), ops.props),
    (("/slots",), ops.slots),
    (("/metrics",), ops.metrics),
)

_NOT_SERVED = (
    "/props",
    "/infill",
    "/rerank",
    "/v1/rerank",
    "/reranking",
    "/v1/reranking",
    "/lora-adapters",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/v1/chat/completions/control",
)
"""What llama-server and OpenAI answer and this server does not: 501 says so, where 404 would look like a mistake."""


class Endpoint:
    """A route in pure ASGI: it reads a body, calls a handler, and sends what that returns."""

    def __init__(self, handler: Handler, model: type[Body] | None = None) -> None:
        """Make a route.

        Args:
            handler: takes the `Call`, and the request where there is a model; returns what to send, or None where it
                has sent everything by itself.
            model: what the body must be.
        """
        self._handler, self._model = handler, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        call: Call = scope[CALL]
        call.receive, call.send = receive, send
        if self._model is None:
            made = await self._handler(call)
        else:
            body, model = await call.body(), self._model
            request = await beside(call, lambda: read(model, loads(body)))
            call.sent = request.model_fields_set
            made = await self._handler(call, request)
        if made is not None:
            await call.answer(made)


def build(engine: Engine, settings: Settings) -> Starlette:
    """The application.

    Args:
        engine: what it serves.
        settings: what the operator decided.

    Returns:
        The application; `app.state.service` has what its requests share.
    """
    service = Service(engine, settings)
    routes = [
        *(Route(path, Endpoint(handler), methods=["GET"]) for paths, handler in GETS for path in paths),
        *(Route(path, Endpoint(handler, model), methods=["POST"]) for paths, handler, model in POSTS for path in paths),
        Route("/slots/{id}", Endpoint(ops.slot_action), methods=["POST"]),
        Route("/openapi.json", Endpoint(_openapi), methods=["GET"]),
        *(Route(path, Endpoint(ops.not_here), methods=["POST"]) for path in _NOT_SERVED),
    ]
    middleware = [Middleware(Guard, service=service)]
    if settings.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        origins = list(settings.cors_origins)
        allowed: dict[str, Any] = {
            "allow_methods": ["GET", "POST"],
            "allow_headers": ["*"],
            "expose_headers": ["x-request-id"],
        }
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, **allowed))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _go_on})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _go_on(_: Any, error: Exception) -> Any:
    """Leave the errors of the router to the guard, which says them as all others."""
    raise error


async def _openapi(call: Call) -> dict[str, Any]:
    return document(call.service.settings, POSTS, GETS)
