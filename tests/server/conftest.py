"""An engine without a model behind the server, and a client in the same loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from asgi_client import AsgiClient
from llama_batch import Engine
from llama_batch.server import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("sim:?eog_every=0", name="simulated", n_parallel=4, n_ctx=4096) as engine:
        yield engine


@pytest.fixture
def slow() -> Iterator[Engine]:
    """A pass takes 20 ms, and one more than two has to wait."""
    with Engine("sim:?pass_ms=20", name="slow", n_parallel=2, max_queue=2, n_ctx=4096) as engine:
        yield engine
        engine.close()


@pytest.fixture
def client(engine: Engine) -> AsgiClient:
    return AsgiClient(create_app(engine))
