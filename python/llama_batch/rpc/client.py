"""What can be asked of a server before a model is spread over it, by sockets alone: nothing here ends the process."""

from __future__ import annotations

from dataclasses import dataclass

from llama_batch import _core


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
    return _core.rpc_prove(endpoint, timeout)[0]


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
    _, memory = _core.rpc_prove(endpoint, timeout)
    return [RemoteDevice(endpoint, index, free, total) for index, (free, total) in enumerate(memory)]
