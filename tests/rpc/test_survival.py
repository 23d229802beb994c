"""A server that goes away in the middle: an error of who ran, the interpreter alive, the next request answered."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import BackendLostError, Engine, ModelLoadError, RpcLostError
from llama_batch.rpc import RpcWorker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")]
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_parallel": 2, "n_threads": 1, "rpc_timeout": 2}
PROMPT = "The capital of France is"


@pytest.fixture
def worker() -> Any:
    with RpcWorker("127.0.0.2:0", n_threads=1) as worker:
        yield worker


def kill(worker: RpcWorker, signal_: signal.Signals) -> None:
    pid = worker.info().pid
    assert pid is not None
    os.kill(pid, signal_)


def begin(engine: Engine) -> Any:
    """A stream of which something came."""
    stream = engine.stream(PROMPT, max_tokens=400, temp=0, ignore_eos=True)
    assert next(stream)
    return stream


def test_a_server_that_dies_is_an_error_of_who_ran_and_the_next_request_is_answered(
    smollm2: Path, worker: RpcWorker
) -> None:
    with Engine(smollm2, **OPTIONS) as local:
        want = local.generate(PROMPT, max_tokens=8, temp=0).result(120).text
    with Engine(smollm2, rpc_servers=[worker.endpoint], **OPTIONS) as engine:
        events = engine.events(events=["backend.*"])
        streams = [begin(engine), begin(engine)]
        waiting = engine.generate(PROMPT, max_tokens=8, temp=0)
        kill(worker, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(RpcLostError, match="one of which may have gone away") as raised:
                list(stream)
            assert (raised.value.reason, raised.value.endpoint, raised.value.retryable) == (
                "lost",
                worker.endpoint,
                True,
            )
            assert isinstance(raised.value, BackendLostError)
        # Who waited lost nothing: worker and backend are made again by themselves.
        assert waiting.result(120).text == want
        assert engine.generate(PROMPT, max_tokens=8, temp=0).result(120).text == want
        assert engine.stats().n_backend_restarts == 1
        names = [next(events).name for _ in range(2)]
        assert names == ["backend.lost", "backend.retry"]


def test_a_server_that_hangs_is_given_up_in_time(
    smollm2: Path, worker: RpcWorker, eventually: Callable[..., None]
) -> None:
    with Engine(smollm2, rpc_servers=[worker.endpoint], backend_timeout=3, **OPTIONS) as engine:
        stream = begin(engine)
        kill(worker, signal.SIGSTOP)
        with pytest.raises(RpcLostError, match="backend_timeout"):
            list(stream)
        assert engine.stats().is_backend_lost
        waiting = engine.generate(PROMPT, max_tokens=3)
        # It hangs for good: its supervisor's affair, here the test's.
        kill(worker, signal.SIGKILL)
        assert waiting.result(120).token_ids
        eventually(lambda: not engine.stats().is_backend_lost)


def test_a_server_that_never_comes_back_fails_the_engine_with_its_name(smollm2: Path) -> None:
    with RpcWorker("127.0.0.2:0", n_threads=1) as worker:
        engine = Engine(smollm2, rpc_servers=[worker.endpoint], max_backend_restarts=2, **OPTIONS)
        stream = begin(engine)
        waiting = engine.generate(PROMPT, max_tokens=3)
    with pytest.raises(RpcLostError):
        list(stream)
    with pytest.raises(ModelLoadError, match=r"127\.0\.0\.2:\d+.*max_backend_restarts"):
        waiting.result(120)
    assert engine.state == "failed"
    engine.close()
