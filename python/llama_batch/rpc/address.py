"""Where a worker listens: checked before anything is started."""

from __future__ import annotations

import ipaddress
import logging
import socket

from llama_batch import _core
from llama_batch.errors import OptionError, RpcError

_logger = logging.getLogger("llama_batch.rpc")


def listening_address(endpoint: str, *, allow_public: bool) -> tuple[str, int]:
    """The IPv4 address and the port that a worker can listen at.

    Args:
        endpoint: `"host:port"`; a port of 0 takes a free one.
        allow_public: Whether others than one's own network may reach it.

    Raises:
        RpcError: `"bad_endpoint"`, `"public_address"`, or `"bind"` with the system's reason.
    """
    try:
        host, port = _core.rpc_resolve(endpoint)
    except (OptionError, RpcError) as error:
        raise RpcError(str(error), reason="bad_endpoint", endpoint=endpoint) from None
    address = ipaddress.IPv4Address(host)
    if address.is_unspecified or address.is_global:
        if not allow_public:
            raise RpcError(
                f"RPC worker {endpoint}: others can reach {host}, and nothing is authenticated or encrypted: whoever "
                "connects has the machine's memory. Name the address of a network of your own, or allow it "
                "(allow_public=True, --allow-public)",
                reason="public_address",
                endpoint=endpoint,
            )
        _logger.warning("RPC worker %s: anybody who reaches it has it; nothing is authenticated or encrypted", endpoint)
    return host, _claim(endpoint, host, port)


def _claim(endpoint: str, host: str, port: int) -> int:
    """Bind and let go, so that what the system says is known; the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as claimed:
        claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claimed.bind((host, port))
            claimed.listen(1)
        except OSError as error:
            raise RpcError(
                f"RPC worker {endpoint}: cannot listen there: {error.strerror}", reason="bind", endpoint=endpoint
            ) from error
        return int(claimed.getsockname()[1])
