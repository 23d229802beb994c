"""OpenAI's clients over an engine in this process, without a port: `llama_batch.openai(engine)`."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from openai import AsyncOpenAI, OpenAI

    from llama_batch.engine import Engine

_KEY = "in-process"  # the clients want one; nobody looks at it
_MAX_RETRIES = 2


def openai(
    engine: Engine, *, timeout: float | None = None, max_retries: int = _MAX_RETRIES, **settings: Any
) -> AsyncOpenAI:
    """OpenAI's asynchronous client over an engine: what is built on that client batches in this process.

    Requests and answers are those of the HTTP server (docs/server.md). Nobody presents a key, and requests may name any
    `session`, `cache_scope` and `priority`, through `extra_body`. Closing a stream, or cancelling the task that waits,
    cancels the request. The client may be used from several event loops of asyncio; it keeps the engine open, and
    closing it leaves the engine alone.

    Args:
        engine: the engine.
        timeout: the longest silence before a request is given up, in seconds; None waits for as long as it takes.
        max_retries: how often the client asks again where the queue is full or something failed.
        settings: fields of `llama_batch.server.Settings`, such as `model_name` and `max_tokens`.

    Returns:
        An `openai.AsyncOpenAI`.

    Raises:
        OptionError: a setting is unknown or wrong, or is about who comes in.
        ImportError: `openai`, or the extra `llama-batch[server]`, is not installed.

    Example:
        >>> client = llama_batch.openai(engine)
        >>> messages = [{"role": "user", "content": "Why is the sky blue?"}]
        >>> done = await client.chat.completions.create(model="", messages=messages)
    """
    from llama_batch._exchange import HOST

    make_app = app_maker(engine, **settings)
    library, httpx = _libraries()
    from llama_batch._transports import AsyncTransport

    # `timeout` is given to both: the library takes that of a client of one's own only where it is not its default.
    http_client = library.DefaultAsyncHttpxClient(transport=AsyncTransport(make_app, httpx), timeout=timeout)
    made: AsyncOpenAI = library.AsyncOpenAI(
        base_url=f"http://{HOST}/v1", api_key=_KEY, http_client=http_client, timeout=timeout, max_retries=max_retries
    )
    return made


def openai_sync(
    engine: Engine, *, timeout: float | None = None, max_retries: int = _MAX_RETRIES, **settings: Any
) -> OpenAI:
    """OpenAI's synchronous client over an engine; otherwise as `openai`.

    Any number of threads may use it at once. What answers them runs on one thread of its own, which begins with the
    first request and ends with the client's `close()`, with the client, or with the interpreter.

    Args:
        engine: the engine.
        timeout: the longest silence before a request is given up, in seconds; None waits for as long as it takes.
        max_retries: how often the client asks again where the queue is full or something failed.
        settings: fields of `llama_batch.server.Settings`, such as `model_name` and `max_tokens`.

    Returns:
        An `openai.OpenAI`.

    Raises:
        OptionError: a setting is unknown or wrong, or is about who comes in.
        ImportError: `openai`, or the extra `llama-batch[server]`, is not installed.

    Example:
        >>> with llama_batch.openai_sync(engine) as client:
        ...     messages = [{"role": "user", "content": "Why is the sky blue?"}]
        ...     print(client.chat.completions.create(model="", messages=messages).choices[0].message.content)
    """
    from llama_batch._exchange import HOST

    make_app = app_maker(engine, **settings)
    library, httpx = _libraries()
    from llama_batch._transports import SyncTransport

    http_client = library.DefaultHttpxClient(transport=SyncTransport(make_app, httpx), timeout=timeout)
    made: OpenAI = library.OpenAI(
        base_url=f"http://{HOST}/v1", api_key=_KEY, http_client=http_client, timeout=timeout, max_retries=max_retries
    )
    return made


def app_maker(engine: Engine, **settings: Any) -> Callable[[], Any]:
    """What makes the HTTP server's application for callers in this process.

    Args:
        engine: the engine.
        settings: fields of `llama_batch.server.Settings`.

    Returns:
        Makes an application, each time a new one.

    Raises:
        OptionError: a setting is unknown or wrong, or is about who comes in.
        ImportError: the extra `llama-batch[server]` is not installed.

    Example:
        >>> app = app_maker(engine, max_tokens=100)()
    """
    from llama_batch.server.settings import Settings

    for name in ("keys", "allowed_hosts", "cors_origins", "trust_callers"):
        if name in settings:
            raise OptionError(f"{name} is about who comes in by the network: in process nobody does")
    settings.setdefault("trust_chat_template", True)
    changed = Settings(trust_callers=True).changed(**settings)
    try:
        from llama_batch.server.app import build
    except ImportError as error:
        raise ImportError("requests in process need the server's extra: pip install 'llama-batch[server]'") from error
    return partial(build, engine, changed)


def _libraries() -> tuple[Any, Any]:
    """OpenAI's library, and the httpx that it stands on: newer ones stand on httpx2."""
    try:
        import openai as library
    except ImportError as error:
        raise ImportError("this needs OpenAI's client: pip install 'llama-batch[server]' openai") from error
    for base in library.DefaultAsyncHttpxClient.__mro__:
        if base.__name__ == "AsyncClient":
            return library, importlib.import_module(base.__module__.partition(".")[0])
    raise ImportError(f"openai {library.__version__} stands on no httpx that is known here")
