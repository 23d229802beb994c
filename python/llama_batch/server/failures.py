"""What goes wrong, as HTTP says it: a status, and a body in OpenAI's shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llama_batch.errors import (
    BackendLostError,
    ChatTemplateError,
    ContextFullError,
    EngineClosedError,
    EngineForkedError,
    EngineNotReadyError,
    GrammarError,
    LlamaBatchError,
    ModelLoadError,
    ModelNotFoundError,
    OptionError,
    PromptError,
    QueueFullError,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}

_NO_USE = {"x-should-retry": "false"}
"""What OpenAI's clients obey: by themselves they ask again after a 408 and after whatever is 500 or more."""


class HttpError(Exception):
    """An answer that is an error.

    Attributes:
        status: the status of HTTP.
        message: what went wrong, for people.
        type: the family, in OpenAI's words.
        code: what it is, for programs.
        param: the field of the request that is at fault, where one is.
        headers: further headers, such as `retry-after`.
        extra: further members of the body's `error`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,  # noqa: A002 - OpenAI's name
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.type = type or _TYPES.get(status, "server_error")
        self.headers, self.extra = dict(headers or {}), dict(extra or {})
        if status == 501:
            self.headers.update(_NO_USE)

    def body(self) -> dict[str, Any]:
        """The body, in OpenAI's shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.extra}
        return {"error": error}


def not_served(name: str, why: str) -> HttpError:
    """A field that is known, and that this server does not honour."""
    return HttpError(501, f"{name!r} is not served here: {why}", code="not_supported", param=name)


def busy(message: str, wait_s: float, code: str) -> HttpError:
    """Too much is asked for at the moment."""
    return HttpError(429, message, code=code, headers={"retry-after": str(max(1, math.ceil(wait_s)))})


def as_http(error: BaseException, *, retry_after_s: float = 1.0, param: str | None = None) -> HttpError:
    """The answer that an error of the engine becomes.

    Args:
        error: what was raised.
        retry_after_s: when a full queue may have room. Unit: seconds.
        param: the field that is at fault, where it is the request's fault.

    Returns:
        The answer; 500 without any detail for what is a bug of ours.

    Example:
        >>> as_http(QueueFullError("64 requests wait")).status
        429
    """
    match error:
        case HttpError():
            return error
        case QueueFullError():
            return busy(error.message, retry_after_s, "queue_full")
        case ContextFullError():
            numbers = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
            kind, code = "exceed_context_size_error", "context_length_exceeded"
            # Frameworks tell this error from others by OpenAI's and Anthropic's words, where they do not see the code.
            message = f"the prompt is too long for the maximum context length: {error.message}"
            return HttpError(400, message, type=kind, code=code, param=param, extra=numbers)
        case RequestTimeoutError():
            return HttpError(408, error.message, code=error.code, param=error.option, headers=_NO_USE)
        case PromptError() | ChatTemplateError() | OptionError() | GrammarError():
            return HttpError(400, error.message, code=error.code, param=param)
        case EngineNotReadyError():
            return HttpError(503, "the model is still loading", code=error.code, headers={"retry-after": "1"})
        case EngineForkedError():
            return HttpError(503, error.message, code=error.code)
        case EngineClosedError():
            return _closing()
        case BackendLostError():
            return HttpError(503, "what computes was lost", code=error.code, headers={"retry-after": "1"})
        case ModelLoadError() | ModelNotFoundError() | RpcError():
            return HttpError(503, "the model could not be loaded", code=error.code, headers=_NO_USE)
        case LlamaBatchError():
            return _by_code(error)
        case _:
            return HttpError(500, "the server failed; its log has the request id", code="internal_error")


def _closing() -> HttpError:
    return HttpError(503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"})


def _by_code(error: LlamaBatchError) -> HttpError:
    """What is left: what a kind of model does not do, what ended with the engine or its backend, and what failed."""
    if error.code == "unsupported":
        return HttpError(501, error.message, code=error.code)
    return _closing() if error.code == "cancelled" else HttpError(500, error.message, code=error.code)
