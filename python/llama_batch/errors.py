"""Everything that can go wrong, as one tree of exceptions.

`OptionError` comes from the call itself. Every other error comes from `Generation.result`, from `await`, or from
iteration, after whatever was generated before it. A finish reason is not an error: see `Completion.finish_reason`.

The Rust side names the same errors by the same `code` (`src/error.rs`); `tests/parity` compares both.

Example:
    >>> try:
    ...     engine.generate("Hello", timeout=0.5).result()
    ... except RequestTimeoutError as error:
    ...     print(error.completion.text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from llama_batch.types import Completion

__all__ = [
    "BackendLostError",
    "ChatTemplateError",
    "ContextFullError",
    "EmptyPromptError",
    "EngineClosedError",
    "EngineCrashedError",
    "EngineForkedError",
    "EngineNotReadyError",
    "GrammarError",
    "InferenceError",
    "LlamaBatchError",
    "ModelLoadError",
    "ModelNotFoundError",
    "OptionError",
    "PromptError",
    "QueueFullError",
    "RequestCancelledError",
    "RequestTimeoutError",
    "RpcError",
    "RpcLostError",
    "RpcUnavailableError",
    "TextTooLongError",
    "UnsupportedError",
]


class LlamaBatchError(Exception):
    """The root of all errors of this package.

    Attributes:
        code: a stable name for programs, such as `"queue_full"`.
        request_id: the request that failed, where there is one.
        retryable: whether the same call may succeed later.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    request_id: int | None

    def __init__(self, message: str = "", *, request_id: int | None = None) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that failed.
        """
        super().__init__(message)
        self.message = message
        self.request_id = request_id

    def __str__(self) -> str:
        """The message alone."""
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, keyword arguments and all: errors cross process pools."""
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(cls: type[LlamaBatchError], message: str, state: dict[str, Any]) -> LlamaBatchError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class OptionError(LlamaBatchError, ValueError):
    """An option is unknown (the message suggests the nearest one), of the wrong type, or out of range."""

    code = "invalid_option"


class ModelNotFoundError(LlamaBatchError, FileNotFoundError):
    """The path or URI of the model does not lead to a file."""

    code = "model_not_found"


class ModelLoadError(LlamaBatchError):
    """llama.cpp could not load the model or make a context; the message holds its own reason."""

    code = "load_failed"


class EngineNotReadyError(LlamaBatchError):
    """The model is still loading."""

    code = "not_ready"
    retryable = True


class EngineClosedError(LlamaBatchError):
    """The engine is closed."""

    code = "closed"


class EngineForkedError(EngineClosedError):
    """The engine belongs to the process that this one was forked from; make a new one here."""

    code = "forked"


class EngineCrashedError(LlamaBatchError):
    """The engine's thread panicked: a bug of this package. The message is the panic's."""

    code = "crashed"


class QueueFullError(LlamaBatchError):
    """As many requests wait for a slot as the engine allows.

    Attributes:
        option: the bound that is reached: `"max_queue"`, or `"max_queue_per_scope"`, beside which other scopes may
            have room.
        limit: its value. Unit: requests.
    """

    code = "queue_full"
    retryable = True

    def __init__(
        self, message: str = "", *, request_id: int | None = None, option: str = "max_queue", limit: int = 0
    ) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that was refused.
            option: the bound that is reached.
            limit: its value. Unit: requests.
        """
        super().__init__(message, request_id=request_id)
        self.option = option
        self.limit = limit


class RequestTimeoutError(LlamaBatchError, TimeoutError):
    """A time limit of the request ran out.

    Attributes:
        option: the limit: `"timeout"`, `"queue_timeout"` or `"stall_timeout"`.
        limit_s: its value. Unit: seconds.
        completion: what was generated until then.
    """

    code = "timeout"
    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        request_id: int | None = None,
        option: str = "timeout",
        limit_s: float = 0.0,
        completion: Completion | None = None,
    ) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that ran out of time.
            option: the limit that ran out.
            limit_s: its value. Unit: seconds.
            completion: what was generated until then.
        """
        super().__init__(message, request_id=request_id)
        self.option = option
        self.limit_s = limit_s
        self.completion = completion


class PromptError(LlamaBatchError, ValueError):
    """The prompt is neither text nor token ids of the vocabulary, or holds what no model input can hold."""

    code = "invalid_prompt"


class EmptyPromptError(PromptError):
    """The prompt has no tokens."""

    code = "empty_prompt"


class ContextFullError(LlamaBatchError):
    """The prompt can never fit the context.

    Attributes:
        n_prompt_tokens: the prompt's length. Unit: tokens.
        n_ctx: what one request may use. Unit: tokens.
    """

    code = "context_full"

    def __init__(
        self, message: str = "", *, request_id: int | None = None, n_prompt_tokens: int = 0, n_ctx: int = 0
    ) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that was refused.
            n_prompt_tokens: the prompt's length. Unit: tokens.
            n_ctx: what one request may use. Unit: tokens.
        """
        super().__init__(message, request_id=request_id)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class TextTooLongError(ContextFullError):
    """A text to embed has more tokens than fit; the message says what they do not fit into.

    Attributes:
        n_prompt_tokens: the text's length. Unit: tokens.
        n_ctx: the longest text that fits. Unit: tokens.
        index: which text of the input, from 0.
    """

    code = "text_too_long"

    def __init__(
        self,
        message: str = "",
        *,
        request_id: int | None = None,
        n_prompt_tokens: int = 0,
        n_ctx: int = 0,
        index: int = 0,
    ) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that was refused.
            n_prompt_tokens: the text's length. Unit: tokens.
            n_ctx: the longest text that fits. Unit: tokens.
            index: which text of the input, from 0.
        """
        super().__init__(message, request_id=request_id, n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx)
        self.index = index


class UnsupportedError(LlamaBatchError):
    """The model cannot do what was asked of it: generate text, or compute embeddings."""

    code = "unsupported"


class RequestCancelledError(LlamaBatchError):
    """A request for embeddings was cancelled; an answer that is cancelled keeps its text, and raises nothing."""

    code = "cancelled"


class ChatTemplateError(LlamaBatchError, ValueError):
    """The model has no chat template, the template failed, or the messages do not suit it."""

    code = "invalid_template"


class GrammarError(LlamaBatchError, ValueError):
    """A grammar, schema, regular expression or choice is wrong or costs too much; the message says where and why."""

    code = "invalid_grammar"


class SessionError(LlamaBatchError):
    """A session cannot be saved or loaded: it is not there, or its file is not one for this engine, model and scope."""

    code = "session"


class SessionNotFoundError(SessionError, FileNotFoundError):
    """There is no file to load a session from."""

    code = "session_not_found"


class InferenceError(LlamaBatchError):
    """A forward pass or a draw failed, and so did the retry."""

    code = "inference_failed"
    retryable = True


class BackendLostError(InferenceError):
    """The process that computes (`isolate`) died, hung or was cut off; ask again: it is made again by itself."""

    code = "backend_lost"


class RpcError(LlamaBatchError):
    """A server of llama.cpp's RPC is of no use, or a worker cannot be started; the message names it and says why.

    Attributes:
        reason: why, for programs. Of servers: `"rpc_unsupported"`, `"unreachable"`, `"busy"`, `"protocol_mismatch"`,
            `"no_devices"`. Of workers: also `"bad_endpoint"`, `"public_address"`, `"unknown_device"`, `"bind"`,
            `"bind_timeout"`, `"cache"`, `"ended"`.
        endpoint: which one, as `"host:port"`.
    """

    code = "rpc"

    def __init__(
        self, message: str = "", *, request_id: int | None = None, reason: str = "", endpoint: str | None = None
    ) -> None:
        """Make an error.

        Args:
            message: what went wrong, for people.
            request_id: the request that failed.
            reason: why, for programs.
            endpoint: which server or worker.
        """
        super().__init__(message, request_id=request_id)
        self.reason = reason
        self.endpoint = endpoint


class RpcUnavailableError(RpcError):
    """A server cannot be reached, or serves another client: the same call may succeed later."""

    code = "rpc_unavailable"
    retryable = True


class RpcLostError(BackendLostError, RpcUnavailableError):
    """What computed with servers died or was cut off, and one of them may be why; ask again: it is made again.

    `endpoint` lists those that are in trouble once it is lost, with commas, or all of them where none is.
    """

    code = "rpc_lost"
