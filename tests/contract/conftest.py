"""A real model and a simulated one, each behind a port and in this process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from live_server import Process
from reach import KEY, PYTHON, SIMULATED, Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

# Shape and meaning are tried here, and not speed; other tests want the cores as well.
OPTIONS: dict[str, Any] = {"n_parallel": 2, "n_ctx": 8192, "n_threads": 1}
WAYS = [(kind, way) for kind in ("simulated", "real") for way in ("port", "in-process")]


@pytest.fixture(scope="session")
def smollm2() -> str:
    code = "from llama_batch.models import resolve; print(resolve(None))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the default model cannot be had here: {done.stderr.splitlines()[-1]}")
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="session", params=WAYS, ids="-".join)
def reach(request: pytest.FixtureRequest) -> Iterator[Reach]:
    """Each way to each model."""
    openai = pytest.importorskip("openai", reason="openai is not installed")
    kind, way = request.param
    model = SIMULATED if kind == "simulated" else request.getfixturevalue("smollm2")
    make = over_port if way == "port" else in_process
    with make(openai, model) as (url, client, async_client), client:
        yield Reach(url, client, async_client, kind == "real")


@contextlib.contextmanager
def over_port(openai: Any, model: str) -> Iterator[tuple[str, Any, Any]]:
    words = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with Process("--model", model, *words, env={"LLAMA_BATCH_API_KEY": KEY}, python=PYTHON) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        given = {"base_url": url, "api_key": KEY, "max_retries": 0}
        yield url, openai.OpenAI(**given), openai.AsyncOpenAI(**given)


@contextlib.contextmanager
def in_process(_: Any, model: str) -> Iterator[tuple[None, Any, Any]]:
    if importlib.util.find_spec("llama_batch") is None:
        pytest.skip("llama_batch cannot be imported beside this framework")
    import llama_batch

    with llama_batch.Engine(model, **OPTIONS) as engine:
        try:
            client = llama_batch.openai_sync(engine, max_retries=0)
        except ImportError as error:
            pytest.skip(str(error))
        async_client = llama_batch.openai(engine, max_retries=0)
        yield None, client, async_client
        asyncio.run(async_client.close())
