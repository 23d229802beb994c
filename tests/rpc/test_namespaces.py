"""Two workers on what are two other machines to the engine: network namespaces, joined by pairs of links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine, rpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IP = shutil.which("ip")
IS_ROOT = os.name == "posix" and os.geteuid() == 0
pytestmark = [pytest.mark.model, pytest.mark.skipif(not (IP and IS_ROOT), reason="needs root and the command ip")]


def ip(*words: str) -> None:
    subprocess.run([str(IP), *words], check=True, capture_output=True, timeout=30)


@contextmanager
def machine(number: int) -> Iterator[str]:
    """A worker in a namespace of its own; its endpoint."""
    name = f"lb{os.getpid() % 100_000}-{number}"
    network = f"10.213.{number}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no namespaces here: {error.stderr.decode()}")
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{network}.1/24", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{network}.2/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        worker = [sys.executable, "-m", "llama_batch.cli", "rpc-worker", "-t", "1", "-e", f"{network}.2:50052"]
        with subprocess.Popen([str(IP), "netns", "exec", name, *worker], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if line.startswith("llama-batch: serving "))
            yield f"{network}.2:50052"
            process.terminate()
            process.communicate(timeout=30)
    finally:
        ip("netns", "del", name)


def test_a_model_over_two_machines_says_what_it_says_here(smollm2: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(machine(number)) for number in (1, 2)]
        assert [rpc.ping(server) for server in servers]

        def answer(servers: list[str] | None) -> str:
            with Engine(smollm2, n_ctx=512, n_parallel=2, n_threads=1, rpc_servers=servers) as engine:
                return engine.generate("The capital of France is", max_tokens=16, temp=0).result(120).text

        assert answer(servers) == answer(None)
