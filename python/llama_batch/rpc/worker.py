"""`RpcWorker`: serves the devices of this machine to engines on others."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from llama_batch import _core
from llama_batch.errors import OptionError, RpcError
from llama_batch.rpc.address import listening_address
from llama_batch.rpc.cache import CacheInfo, TensorCache
from llama_batch.rpc.supervisor import Policy, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """A device that a worker serves.

    Attributes:
        name: as the option `devices` has it.
        description: the hardware's name.
        memory_free: when the worker's process started. Unit: bytes.
        memory_total: Unit: bytes.
    """

    name: str
    description: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """How a worker fares.

    Attributes:
        endpoint: where it listens, as `"host:port"`.
        state: `"new"`, `"starting"`, `"serving"`, `"waiting"` (to be started again), `"stopped"` or `"failed"`.
        pid: its child process; None where there is none.
        devices: what it serves, in the order that clients number them in.
        rss_bytes: memory of the child process; None where the system does not tell.
        n_restarts: times that the child process was started again.
        n_clients: connections served so far; those that only ask who is there count, too.
        is_connected: whether a client is connected.
        exit_codes: of the last child processes, the last one at the end; negative is the number of a signal.
        cache: the cache of tensors; None without one.
    """

    endpoint: str
    state: str
    pid: int | None
    devices: tuple[WorkerDevice, ...]
    rss_bytes: int | None
    n_restarts: int
    n_clients: int
    is_connected: bool
    exit_codes: tuple[int, ...]
    cache: CacheInfo | None


class RpcWorker:
    """A server of llama.cpp's RPC in a child process, which is watched, started again where it dies, and ended.

    No process is left behind, however this one ends. Nothing that is served is authenticated or encrypted.

    Example:
        >>> with RpcWorker("10.0.0.2:50052", cache_dir="~/.cache/llama-batch-rpc", cache_max_mb=100_000) as worker:
        ...     print(worker.info().devices)
        ...     worker.wait()
    """

    def __init__(
        self,
        endpoint: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_max_mb: int | None = 32768,
        n_threads: int = 4,
        devices: Sequence[str] | None = None,
        allow_public: bool = False,
        bind_timeout: float = 30.0,
        max_restarts: int = 10,
        max_rss_mb: int | None = None,
    ) -> None:
        """Describe a worker; `start`, or `with`, starts it.

        Args:
            endpoint: `"host:port"`, the address of the network that clients come from; there is no default. A port of 0
                takes a free one, which `endpoint` then tells.
            cache_dir: folder that keeps tensors over 10 MiB, so that a client need not send them again; made where it
                is missing. None keeps none.
            cache_max_mb: what the folder may hold while no client is connected; the least recently used tensors go
                first. None is no bound. Unit: MiB.
            n_threads: threads that a CPU computes with.
            devices: names of the devices to serve; None means all but the CPU, and the CPU where there is no other.
            allow_public: listen at an address that others than one's own network can reach.
            bind_timeout: time for the child process to listen. Unit: seconds.
            max_restarts: times in a row that a child process that died is started again, after half a second, one, two,
                and so on to half a minute; one that lived for a minute begins the count anew.
            max_rss_mb: memory of the child process beyond which it is started anew once no client is connected; None is
                no limit. Needs Linux. Unit: MiB.

        Raises:
            OptionError: an argument is out of range or of the wrong type.
        """
        self._n_threads = _whole("n_threads", n_threads, 1, 512)
        self._policy = Policy(
            bind_timeout=_number("bind_timeout", bind_timeout, 0.001, 3600),
            max_restarts=_whole("max_restarts", max_restarts, 0, 1_000_000),
            max_rss_bytes=_bytes("max_rss_mb", max_rss_mb),
        )
        if not isinstance(endpoint, str):
            raise OptionError(f'endpoint must be "host:port", not {type(endpoint).__name__}')
        if isinstance(devices, str) or not all(isinstance(name, str) for name in devices or ()):
            raise OptionError("devices must be a list of names")
        self._cache_dir, self._max_bytes = cache_dir, _bytes("cache_max_mb", cache_max_mb)
        self._devices = list(devices or ())
        self._allow_public = bool(allow_public)
        self._endpoint = endpoint
        self._supervisor: Supervisor | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._known_devices: tuple[WorkerDevice, ...] = ()

    @property
    def endpoint(self) -> str:
        """Where it listens, as `"host:port"`; the address and the port that were found once it is started."""
        return self._endpoint if self._supervisor is None else self._supervisor.endpoint

    def start(self) -> Self:
        """Start it, and wait until it listens. Without effect where it runs already.

        Returns:
            Itself.

        Raises:
            RpcError: `"rpc_unsupported"`, `"bad_endpoint"`, `"public_address"`, `"bind"`, `"bind_timeout"`,
                `"no_devices"`, `"unknown_device"` (the message lists those there are), `"cache"`, or `"ended"`.
        """
        if self._supervisor is not None and self._supervisor.state not in {"stopped", "failed"}:
            return self
        if os.name != "posix" or not _core.rpc_supported():
            raise RpcError(
                f"RPC worker {self._endpoint}: this build or system cannot serve (it needs GGML_RPC=ON, and POSIX)",
                reason="rpc_unsupported",
                endpoint=self._endpoint,
            )
        host, port = listening_address(self._endpoint, allow_public=self._allow_public)
        cache = None
        if self._cache_dir is not None:
            cache = TensorCache(self._cache_dir, self._max_bytes, self._endpoint)
            cache.open()
        what = {
            "host": host,
            "port": port,
            "cache_dir": None if cache is None else str(cache.path),
            "n_threads": self._n_threads,
            "devices": self._devices,
        }
        supervisor = self._supervisor = Supervisor(what, cache, self._policy)
        self._finalizer = weakref.finalize(self, supervisor.stop)
        supervisor.settled.wait()
        if supervisor.error is not None:
            self.stop()
            raise supervisor.error
        return self

    def stop(self) -> None:
        """End the child process and wait for that; it may be called twice, and before `start`."""
        if self._finalizer is not None:
            self._finalizer()

    def restart(self) -> None:
        """Have the child process begin anew; its client, if it has one, is cut off. It does not wait for that."""
        if self._supervisor is not None:
            self._supervisor.restart()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker has ended.

        Args:
            timeout: None waits without a limit. Unit: seconds.

        Returns:
            False if `timeout` passed first.

        Raises:
            RpcError: it ended because its child process could not be kept running.
        """
        if self._supervisor is None:
            return True
        ended = self._supervisor.wait(timeout)
        if ended and self._supervisor.error is not None:
            raise self._supervisor.error
        return ended

    def info(self) -> WorkerInfo:
        """How it fares. Asks the child process nothing, so it never waits."""
        supervisor = self._supervisor
        if supervisor is None:
            return WorkerInfo(self._endpoint, "new", None, (), None, 0, 0, False, (), None)
        child = supervisor.child
        if child is not None and child.devices:
            self._known_devices = tuple(WorkerDevice(*device) for device in child.devices)
        return WorkerInfo(
            endpoint=supervisor.endpoint,
            state=supervisor.state,
            pid=None if child is None else child.pid,
            devices=self._known_devices,
            rss_bytes=None if child is None else child.rss_bytes,
            n_restarts=supervisor.n_restarts,
            n_clients=supervisor.n_clients + (0 if child is None else child.n_clients),
            is_connected=child is not None and child.is_connected,
            exit_codes=tuple(supervisor.exit_codes),
            cache=None if supervisor.cache is None else supervisor.cache.info(),
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<RpcWorker {self.endpoint} {'new' if self._supervisor is None else self._supervisor.state}>"


def _number(name: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{name} must be a number, not {type(value).__name__}")
    if not low <= value <= high:
        raise OptionError(f"{name} must be between {low} and {high}, not {value}")
    return value


def _whole(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be a whole number, not {type(value).__name__}")
    return int(_number(name, value, low, high))


def _bytes(name: str, mebibytes: int | None) -> int | None:
    return None if mebibytes is None else _whole(name, mebibytes, 1, 1 << 24) << 20
