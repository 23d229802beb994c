"""A model over workers: the same text as here, the tensors that the cache saves, and who may not come."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Engine, OptionError, RpcUnavailableError, rpc
from llama_batch.rpc import RpcWorker
from proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")]
SMALL: dict[str, Any] = {"n_ctx": 512, "n_parallel": 2, "n_threads": 1}
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def workers() -> Iterator[list[RpcWorker]]:
    with RpcWorker("127.0.0.2:0", n_threads=1) as one, RpcWorker("127.0.0.3:0", n_threads=1) as two:
        yield [one, two]


@pytest.fixture(scope="module")
def local_text(smollm2: Path) -> str:
    return answer(smollm2)


def answer(model: Path, **options: Any) -> str:
    with Engine(model, **SMALL, **options) as engine:
        return engine.generate(PROMPT, max_tokens=16, temp=0).result(120).text


@pytest.mark.parametrize(
    "placement",
    [
        {},
        {"tensor_split": [1, 3]},
        {"devices": ["RPC1", "RPC0"]},
        {"split_mode": "none", "main_gpu": 1},
        {"n_gpu_layers": 10},
    ],
)
def test_a_model_over_two_workers_says_what_it_says_here(
    placement: dict[str, Any], smollm2: Path, workers: list[RpcWorker], local_text: str
) -> None:
    before = [worker.info().n_clients for worker in workers]
    text = answer(smollm2, rpc_servers=[worker.endpoint for worker in workers], **placement)
    assert text == local_text
    assert all(worker.info().n_clients > n for worker, n in zip(workers, before, strict=True))


def test_servers_that_were_added_are_asked_for_by_themselves_and_by_their_devices(
    smollm2: Path, workers: list[RpcWorker], local_text: str
) -> None:
    with Proxy(workers[0].endpoint) as first, Proxy(workers[1].endpoint) as second:
        servers = [rpc.add_server(proxy.endpoint) for proxy in (first, second)]
        before = [proxy.n_sent for proxy in (first, second)]
        with Engine(smollm2, rpc_servers=servers, devices=[servers[1].devices[0].name], **SMALL) as engine:
            assert engine.generate(PROMPT, max_tokens=16, temp=0).result(120).text == local_text
            assert [(server.endpoint, server.is_reachable) for server in engine.stats().rpc_servers] == [
                (server, True) for server in servers
            ]
        n_first, n_second = (proxy.n_sent - n for proxy, n in zip((first, second), before, strict=True))
    assert n_first * 1000 < n_second
    engine = Engine(smollm2, devices=[servers[1].devices[0].name], **SMALL)
    with pytest.raises(OptionError, match="there is no"):
        engine.wait_ready(60)
    engine.close()


def test_two_names_of_one_server_are_refused(smollm2: Path) -> None:
    with RpcWorker("127.0.0.1:0", n_threads=1) as worker:
        names = [worker.endpoint, worker.endpoint.replace("127.0.0.1", "localhost")]
        engine = Engine(smollm2, rpc_servers=names, **SMALL)
        with pytest.raises(OptionError, match="one server"):
            engine.wait_ready(60)
        engine.close()


def test_shares_are_counted_in_the_order_of_the_servers(smollm2: Path, workers: list[RpcWorker]) -> None:
    with Proxy(workers[0].endpoint) as first, Proxy(workers[1].endpoint) as second:
        answer(smollm2, rpc_servers=[first.endpoint, second.endpoint], tensor_split=[1, 5])
        few, many = first.n_sent, second.n_sent
    assert few * 2 < many
    with Proxy(workers[0].endpoint) as first, Proxy(workers[1].endpoint) as second:
        servers = [first.endpoint, second.endpoint]
        answer(smollm2, rpc_servers=servers, tensor_split=[1, 5], devices=["RPC1", "RPC0"])
        assert first.n_sent > 2 * second.n_sent


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"devices": ["RPC7"]}, r"no \"RPC7\"; there are RPC0\[127.0.0.2:\d+\], RPC1\[127.0.0.3:\d+\]"),
        ({"devices": ["RPC0", "rpc0"]}, "twice"),
        ({"tensor_split": [1, 1, 1, 1, 1, 1, 1, 1, 1]}, r"in this order, RPC0\[127.0.0.2"),
        ({"split_mode": "none", "main_gpu": 100}, r"from 0, RPC0\[127.0.0.2"),
        ({"split_mode": "row"}, "not for the devices of RPC servers"),
    ],
)
def test_a_placement_that_cannot_be_names_the_devices(
    placement: dict[str, Any], message: str, smollm2: Path, workers: list[RpcWorker]
) -> None:
    engine = Engine(smollm2, rpc_servers=[worker.endpoint for worker in workers], **SMALL, **placement)
    with pytest.raises(OptionError, match=message):
        engine.wait_ready(60)
    engine.close()


def test_a_later_model_that_did_not_ask_never_gets_a_server(
    smollm2: Path, workers: list[RpcWorker], local_text: str
) -> None:
    with Engine(smollm2, rpc_servers=[workers[0].endpoint], **SMALL) as asked:
        asked.wait_ready()
        with Proxy(workers[1].endpoint) as proxy:
            assert answer(smollm2) == local_text
            assert proxy.n_sent == 0
        engine = Engine(smollm2, devices=["RPC0"], **SMALL)
        with pytest.raises(OptionError, match='no "RPC0"'):
            engine.wait_ready(60)
        engine.close()


def test_a_second_client_is_told_in_time(smollm2: Path, workers: list[RpcWorker], eventually: Any) -> None:
    """From this process an engine shares the connection; from anywhere else the server is busy."""
    with Engine(smollm2, rpc_servers=[workers[0].endpoint], **SMALL) as engine:
        engine.wait_ready()
        begun = time.monotonic()
        with pytest.raises(RpcUnavailableError, match="another client") as told:
            rpc.ping(workers[0].endpoint, timeout=0.5)
        assert told.value.reason == "busy"
        assert time.monotonic() - begun < 30
        assert engine.generate(PROMPT, max_tokens=3).result(60).token_ids
    eventually(lambda: not workers[0].info().is_connected)
    assert rpc.ping(workers[0].endpoint)


def test_a_warm_cache_saves_the_bytes_of_large_tensors(
    smollm2: Path, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    sent = []
    with RpcWorker("127.0.0.1:0", n_threads=1, cache_dir=tmp_path / "cache") as worker:
        for _ in range(2):
            with Proxy(worker.endpoint) as proxy:
                answer(smollm2, rpc_servers=[proxy.endpoint])
                sent.append(proxy.n_sent)
            eventually(lambda: not worker.info().is_connected)
        cache = worker.info().cache
    assert cache is not None
    assert cache.size_bytes > 10 << 20
    assert sent[0] - sent[1] >= 0.99 * cache.size_bytes
    if cache.n_hits is not None:
        assert (cache.n_hits, cache.hit_bytes, cache.n_stored) == (cache.n_files, cache.size_bytes, cache.n_files)


def test_a_slow_link_is_slow_and_nothing_else(smollm2: Path, workers: list[RpcWorker], local_text: str) -> None:
    with Proxy(workers[0].endpoint, delay_s=0.002) as proxy:
        assert answer(smollm2, rpc_servers=[proxy.endpoint]) == local_text
