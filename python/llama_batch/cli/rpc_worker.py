"""`llama-batch rpc-worker`: serves the devices of this machine to engines on others."""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from llama_batch.cli.app import FAILED, USAGE, tell
from llama_batch.cli.options import Command, Number, flags_in

if TYPE_CHECKING:
    from types import FrameType

    from llama_batch.rpc import WorkerInfo

_MISTAKES = {"bad_endpoint", "public_address", "unknown_device"}
_EPILOG = (
    "On the other side: llama-batch run --rpc-servers HOST:PORT, or Engine(rpc_servers=[...]). Ctrl-C and SIGTERM end "
    "it. Exit codes: 0 it was ended; 1 it cannot serve (the address is taken, there is no device, its process keeps "
    "dying); 2 a mistake in the command: a bad endpoint, an address that others can reach, a device that there is not."
)

_network = flags_in("Network")
_served = flags_in("What is served")
_cache = flags_in("Cache")
_life = flags_in("Life")


@click.command(
    "rpc-worker",
    cls=Command,
    params=[
        _network("--endpoint", "-e", required=True, metavar="HOST:PORT",
                 help="Address to listen at: this machine's, in a network that is yours alone. A port of 0 takes any "
                 "that is free."),
        _network("--allow-public", is_flag=True,
                 help="Listen at an address that others can reach. Nothing is authenticated or encrypted: whoever "
                 "connects has the machine's memory."),
        _network("--bind-timeout", type=Number(float, 0.001, 3600), default=30.0, metavar="SECONDS",
                 help="Time to begin to listen. [default: 30]"),
        _served("--device", "-d", "devices", multiple=True, metavar="NAME",
                help="Device to serve, such as CUDA0; may be given several times. [default: all but the CPU, or "
                "else the CPU]"),
        _served("--n-threads", "-t", type=Number(int, 1, 512), default=4, metavar="THREADS",
                help="Threads that a CPU computes with. [default: 4]"),
        _cache("--cache-dir", "-c", type=click.Path(file_okay=False), metavar="DIR",
               help="Folder that keeps tensors over 10 MiB, so that they need not be sent again. [default: none]"),
        _cache("--cache-max-mb", type=Number(int, 0, 1 << 24), default=32768, metavar="MIB",
               help="What it may hold between clients; 0 is no bound. [default: 32768]"),
        _life("--max-rss-mb", type=Number(int, 1, 1 << 24), metavar="MIB",
              help="Memory beyond which its process begins anew between clients. [default: no limit]"),
        _life("--max-restarts", type=Number(int, 0), default=10, metavar="N",
              help="Times in a row that its process is started again when it dies. [default: 10]"),
        _life("--quiet", "-q", is_flag=True, help="Warnings only."),
    ],
    epilog=_EPILOG,
)  # fmt: skip
def command(**flags: Any) -> int:
    """Serve the devices of this machine to engines on others, by llama.cpp's RPC."""
    from llama_batch.errors import RpcError
    from llama_batch.rpc import RpcWorker

    quiet = flags.pop("quiet")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    signal.signal(signal.SIGTERM, _interrupt)
    worker = RpcWorker(flags.pop("endpoint"), **{**flags, "cache_max_mb": flags["cache_max_mb"] or None})
    try:
        with worker:
            if not quiet:
                tell(_greeting(worker.info()))
            worker.wait()
    except KeyboardInterrupt:
        if not quiet:
            tell("the worker is ended")
    except RpcError as error:
        tell(str(error))
        return USAGE if error.reason in _MISTAKES else FAILED
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _greeting(info: WorkerInfo) -> str:
    devices = ", ".join(f"{device.name} ({device.memory_free >> 20:,} MiB free)" for device in info.devices)
    return f"serving {devices} at {info.endpoint}; Ctrl-C ends it"
