"""One model over several machines: llama.cpp's RPC, with workers that can be stopped and servers that are proved first.

A worker serves the devices of its machine; an engine with `rpc_servers` spreads its model over them. Nothing of it is
authenticated or encrypted: it belongs on a network of its own, or into a tunnel (`docs/rpc.md`).

Example:
    >>> with RpcWorker("10.0.0.2:50052", cache_dir="/var/cache/llama-batch") as worker:  # on the other machine
    ...     worker.wait()
    >>> engine = Engine("model.gguf", rpc_servers=["10.0.0.2:50052"])  # here
"""

from __future__ import annotations

from llama_batch.rpc.cache import CacheInfo
from llama_batch.rpc.client import RemoteDevice, RpcServer, add_server, devices, ping, supported
from llama_batch.rpc.worker import RpcWorker, WorkerDevice, WorkerInfo

__all__ = [
    "CacheInfo",
    "RemoteDevice",
    "RpcServer",
    "RpcWorker",
    "WorkerDevice",
    "WorkerInfo",
    "add_server",
    "devices",
    "ping",
    "supported",
]
