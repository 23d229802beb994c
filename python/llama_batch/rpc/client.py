"""What can be asked of a server before a model is spread over it, by sockets alone: nothing here ends the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from llama_batch import _core
from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of a server.

    Attributes:
        endpoint: the server, as `"host:port"`.
        index: its number there, from 0.
        memory_free: Unit: bytes.
        memory_total: Unit: bytes.
    """

    endpoint: str
    index: int
    memory_free: int
    memory_total: int

    @property
    def name(self) -> str:
        """What the option `devices` calls it, whatever other servers there are: `"host:port/0"`."""
        return f"{self.endpoint}/{self.index}"


class RpcServer(str):
    """A server that was proved: its endpoint, as text that `rpc_servers` takes, and what it is.

    Attributes:
        version: its version of the protocol.
        devices: its devices, in its order.
    """

    __slots__ = ("devices", "version")

    version: str
    devices: tuple[RemoteDevice, ...]

    def __new__(cls, endpoint: str, version: str, devices: Sequence[RemoteDevice]) -> Self:
        """Make one; `add_server` proves it first.

        Args:
            endpoint: `"host:port"`.
            version: its version of the protocol.
            devices: its devices.
        """
        server = super().__new__(cls, endpoint)
        server.version, server.devices = version, tuple(devices)
        return server

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, tuple[RemoteDevice, ...]]]:
        """How a copy is made."""
        return type(self), (str(self), self.version, self.devices)

    def __repr__(self) -> str:
        """What it is."""
        return f"<RpcServer {self} of version {self.version} with {len(self.devices)} devices>"


def supported() -> bool:
    """Whether this build of llama.cpp has RPC.

    Example:
        >>> supported()
        True
    """
    return _core.rpc_supported()


def ping(endpoint: str, *, timeout: float = 5.0) -> str:
    """Whether a server is there, free, and of the same protocol.

    It says nothing of the moment after: a server has one client at a time, and another one may come first.

    Args:
        endpoint: `"host:port"`.
        timeout: time for all of it. Unit: seconds.

    Returns:
        Its version of the protocol.

    Raises:
        RpcUnavailableError: it is `"unreachable"`, or `"busy"`: it serves another client, or hangs.
        RpcError: `"protocol_mismatch"`: something else answers, or another version; `"no_devices"`.
        OptionError: the endpoint is none.

    Example:
        >>> ping("10.0.0.2:50052")
        '7.0.0'
    """
    return add_server(endpoint, timeout=timeout).version


def devices(endpoint: str, *, timeout: float = 5.0) -> list[RemoteDevice]:
    """The devices of a server, in its order.

    Args:
        endpoint: `"host:port"`.
        timeout: time for all of it. Unit: seconds.

    Returns:
        One for each; the protocol tells their memory, and no names.

    Raises:
        RpcError: as `ping`.
        OptionError: the endpoint is none.

    Example:
        >>> [device.memory_total >> 30 for device in devices("10.0.0.2:50052")]
        [80]
    """
    return list(add_server(endpoint, timeout=timeout).devices)


def add_server(endpoint: str, *, timeout: float = 5.0) -> RpcServer:
    """Prove a server, for engines that are to use it.

    Nothing is registered: only an engine whose `rpc_servers` name the server gets its devices, and it proves the server
    once more.

    Args:
        endpoint: `"host:port"`.
        timeout: time for all of it. Unit: seconds.

    Returns:
        The server: text that `rpc_servers` takes, with its devices, whose names `devices` takes.

    Raises:
        RpcError: as `ping`.
        OptionError: the endpoint is none.

    Example:
        >>> near, far = add_server("10.0.0.2:50052"), add_server("10.0.0.3:50052")
        >>> first = max(near.devices + far.devices, key=lambda device: device.memory_free)
        >>> engine = Engine("model.gguf", rpc_servers=[near, far], devices=[first.name, "CUDA0"])
    """
    if not isinstance(endpoint, str):
        raise OptionError(f'endpoint must be "host:port", not {type(endpoint).__name__}')
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise OptionError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    version, memory = _core.rpc_prove(endpoint, timeout)
    listed = [RemoteDevice(endpoint, index, free, total) for index, (free, total) in enumerate(memory)]
    return RpcServer(endpoint, version, listed)
