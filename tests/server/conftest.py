"""An engine without a model behind the server, and a client in the same loop."""

from __future__ import annotations

import logging
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


@pytest.fixture
def quiet_again() -> Iterator[None]:
    """The loggers as they were: the command sets them up for its process."""
    loggers = [logging.getLogger(name) for name in ("llama_batch", "uvicorn", "llama_batch.llama_cpp")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
