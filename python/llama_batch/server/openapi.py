"""`/openapi.json`: the routes and the bodies of their requests, from the models that check them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from llama_batch.server.requests import Body
    from llama_batch.server.settings import Settings

    Handler = Callable[..., Awaitable[Any]]

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The host, the origin or the API key may not do this.",
    "404": "There is no such model or path.",
    "408": "The request's own time limit ran out.",
    "413": "The body is too large.",
    "429": "Too many requests; `Retry-After` says when.",
    "501": "The field is known, and not served.",
    "503": "The model is loading, or the server shuts down.",
}
_POST_STATUSES = tuple(_STATUSES)
_GET_STATUSES = ("401", "403", "404", "503")
_NO_JSON = {"/metrics": "text/plain"}
_STREAMED = ("ChatRequest", "CompletionRequest", "NativeRequest")


def document(
    settings: Settings,
    posts: Iterable[tuple[tuple[str, ...], Handler, type[Body]]],
    gets: Iterable[tuple[tuple[str, ...], Handler]],
) -> dict[str, Any]:
    """The document.

    Args:
        settings: whether keys are needed.
        posts: paths, handlers and models of bodies.
        gets: paths and handlers.

    Returns:
        OpenAPI 3.1.
    """
    from llama_batch import __version__

    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for names, handler, model in posts:
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
        content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
        kinds = ("application/json", "text/event-stream") if model.__name__ in _STREAMED else ("application/json",)
        for name in names:
            post = _operation(name, "post", handler, kinds, _POST_STATUSES)
            paths.setdefault(name, {})["post"] = {**post, "requestBody": {"required": True, "content": content}}
    for names, handler in gets:
        for name in names:
            path, parameters = name.replace(":path}", "}"), []
            if path != name:
                parameters = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
            get = _operation(path, "get", handler, (_NO_JSON.get(name, "application/json"),), _GET_STATUSES)
            paths.setdefault(path, {})["get"] = {**get, "parameters": parameters}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "llama-batch", "version": __version__, "description": "One GGUF model for many callers."},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if settings.keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def _operation(path: str, method: str, handler: Handler, kinds: tuple[str, ...], statuses: tuple[str, ...]) -> Any:
    answers: dict[str, Any] = {"200": {"description": "The answer.", "content": {kind: {} for kind in kinds}}}
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    answers.update({status: {"description": _STATUSES[status], "content": error} for status in statuses})
    return {
        "operationId": f"{method}{path}".replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
        "summary": (inspect.getdoc(handler) or "").splitlines()[0],
        "responses": answers,
    }
