"""A server that goes away in the middle: an error of who ran, the interpreter alive, the next request answered."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import BackendLostError, Engine, ModelLoadError, RpcError, RpcLostError
from llama_batch.rpc import RpcWorker
from proxy import Proxy

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
            with pytest.raises(RpcLostError, match=f"it computed with {worker.endpoint}") as raised:
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
        lost, retry = next(events), next(events)
        assert (lost.name, lost.metadata["endpoint"]) == ("backend.lost", worker.endpoint)
        assert (retry.name, retry.metadata["reason"]) == ("backend.retry", lost.metadata["reason"])
        (server,) = engine.stats().rpc_servers
        assert (server.endpoint, server.is_reachable, server.trouble) == (worker.endpoint, True, None)


def test_a_server_that_hangs_is_given_up_in_time(
    smollm2: Path, worker: RpcWorker, eventually: Callable[..., None]
) -> None:
    with Engine(smollm2, rpc_servers=[worker.endpoint], backend_timeout=3, **OPTIONS) as engine:
        stream = begin(engine)
        kill(worker, signal.SIGSTOP)
        with pytest.raises(RpcLostError, match=r"backend_timeout.*and now: .*did not answer"):
            list(stream)
        assert engine.stats().is_backend_lost
        assert [server.is_reachable for server in engine.stats().rpc_servers] == [False]
        waiting = engine.generate(PROMPT, max_tokens=3)
        # It hangs for good: its supervisor's affair, here the test's.
        kill(worker, signal.SIGKILL)
        assert waiting.result(120).token_ids
        eventually(lambda: not engine.stats().is_backend_lost)


def test_a_server_that_never_comes_back_fails_the_engine_with_its_name(smollm2: Path) -> None:
    with RpcWorker("127.0.0.2:0", n_threads=1) as worker:
        options = {**OPTIONS, "n_parallel": 1}  # the second request is to wait
        engine = Engine(smollm2, rpc_servers=[worker.endpoint], max_backend_restarts=2, **options)
        stream = begin(engine)
        waiting = engine.generate(PROMPT, max_tokens=3)
    with pytest.raises(RpcLostError):
        list(stream)
    with pytest.raises(ModelLoadError, match=r"127\.0\.0\.2:\d+.*max_backend_restarts"):
        waiting.result(120)
    assert engine.state == "failed"
    engine.close()


def test_only_the_server_that_is_gone_is_named(smollm2: Path, worker: RpcWorker) -> None:
    with RpcWorker("127.0.0.3:0", n_threads=1) as other:
        servers = [worker.endpoint, other.endpoint]
        engine = Engine(smollm2, rpc_servers=servers, max_backend_restarts=0, **OPTIONS)
        stream = begin(engine)
        other.stop()
        with pytest.raises(RpcLostError, match="nobody listens there") as raised:
            list(stream)
        assert raised.value.endpoint == other.endpoint
        health = {server.endpoint: server.is_reachable for server in engine.stats().rpc_servers}
        assert health == {worker.endpoint: True, other.endpoint: False}
        engine.close()


@pytest.mark.parametrize(("end", "reason"), [(signal.SIGKILL, "protocol_mismatch"), (signal.SIGSTOP, "busy")])
def test_a_server_that_goes_while_the_model_loads_is_named(smollm2: Path, end: signal.Signals, reason: str) -> None:
    once = RpcWorker("127.0.0.2:0", n_threads=1, max_restarts=0)
    with once as worker, Proxy(worker.endpoint, delay_s=0.01) as proxy:
        engine = Engine(smollm2, rpc_servers=[proxy.endpoint], backend_timeout=10, **OPTIONS)
        while proxy.n_sent < 1 << 20:
            assert engine.state == "loading"
            time.sleep(0.01)
        kill(worker, end)
        with pytest.raises(RpcError, match="the isolated backend did not come up") as raised:
            engine.wait_ready(120)
        # A tunnel with nobody behind it takes connections, and closes them.
        assert (raised.value.endpoint, raised.value.reason) == (proxy.endpoint, reason)
        engine.close()
        worker.stop()


def test_closing_waits_for_no_server_that_hangs(smollm2: Path, worker: RpcWorker) -> None:
    engine = Engine(smollm2, rpc_servers=[worker.endpoint], **OPTIONS)
    stream = begin(engine)
    kill(worker, signal.SIGSTOP)
    assert engine.close(drain=False, timeout=100)
    assert stream.result(10).finish_reason == "cancelled"


@pytest.mark.slow
def test_a_pass_that_takes_long_is_told_of_with_its_servers(smollm2: Path, worker: RpcWorker) -> None:
    with Engine(smollm2, rpc_servers=[worker.endpoint], **OPTIONS) as engine:
        assert (engine.stats().n_slow_passes, engine.stats().slow_pass_s) == (0, None)
        events = engine.events(events=["backend.*"])
        stream = begin(engine)
        kill(worker, signal.SIGSTOP)
        slow = next(events)
        assert (slow.name, slow.metadata) == (
            "backend.slow",
            {**slow.metadata, "endpoint": worker.endpoint, "reason": None},
        )
        stats = engine.stats()
        assert (stats.n_slow_passes, stats.is_backend_slow) == (1, True)
        assert [server.is_reachable for server in stats.rpc_servers] == [True]
        kill(worker, signal.SIGCONT)
        assert len(list(stream)) > 100
        stats = engine.stats()
        assert (stats.is_backend_slow, stats.n_backend_restarts) == (False, 0)
        assert stats.slow_pass_s is not None
        assert stats.slow_pass_s >= 10


def test_a_server_that_goes_while_nobody_asks_costs_nobody_an_error(
    smollm2: Path, worker: RpcWorker, eventually: Callable[..., None]
) -> None:
    with Engine(smollm2, rpc_servers=[worker.endpoint], max_backend_restarts=100, **OPTIONS) as engine:
        assert engine.generate(PROMPT, max_tokens=3).result(120).token_ids
        for n in range(1, 4):
            worker.restart()
            eventually(lambda n=n: engine.stats().n_backend_restarts >= n and not engine.stats().is_backend_lost)
            assert engine.generate(PROMPT, max_tokens=3).result(120).token_ids
