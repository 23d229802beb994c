"""The HTTP server: OpenAI's API and llama-server's, over one engine.

`llama-batch serve` runs it; `create_app` gives the same as an ASGI application, to be mounted in another. It takes the
extra `llama-batch[server]`; `llama_batch.openai_shapes`, which builds the shapes of OpenAI's answers, takes nothing.

Example:
    >>> from llama_batch import Engine
    >>> from llama_batch.server import create_app
    >>> app = create_app(Engine("model.gguf", n_parallel=8))  # uvicorn module:app
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_batch.server.keys import ApiKey, KeyRing
from llama_batch.server.settings import Settings

if TYPE_CHECKING:
    from llama_batch.engine import Engine

__all__ = ["ApiKey", "KeyRing", "Settings", "create_app"]


def create_app(engine: Engine, settings: Settings | None = None, **changes: Any) -> Any:
    """An ASGI application that serves an engine. It neither opens nor closes the engine.

    It needs an asyncio loop (uvicorn, hypercorn), no lifespan events, and may be mounted under a path of another
    application.

    Args:
        engine: any engine; while its model loads, `/health` says so and requests wait.
        settings: names, keys and limits; None takes the defaults.
        changes: fields of `Settings` that differ from `settings`.

    Returns:
        The application (of Starlette).

    Raises:
        OptionError: a setting is unknown or wrong.
        ImportError: the extra `llama-batch[server]` is not installed.

    Example:
        >>> app = create_app(engine, model_name="smollm2", keys=KeyRing([ApiKey.of("sk-team-a")]))
        >>> outer.mount("/llm", app)
    """
    from llama_batch.server.app import build

    return build(engine, (settings or Settings()).changed(**changes))
