"""What stands before every route, as one piece of pure ASGI: names, hosts, origins, keys, sizes, errors and the log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from llama_batch.errors import LlamaBatchError
from llama_batch.server.failures import HttpError
from llama_batch.server.logs import LOGGER, tell
from llama_batch.server.service import Call, ClientGoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from llama_batch.server.keys import ApiKey
    from llama_batch.server.service import Receive, Scope, Send, Service

PUBLIC = frozenset({"/health", "/v1/health"})
"""Paths that need no key."""

CALL = "llama_batch.call"
"""Where the routes find their `Call` in ASGI's scope."""

_REQUEST_ID = re.compile(r"[\w.:\-]{1,128}", re.ASCII)
_CLIENT_CLOSED = 499  # nginx's number, for the log alone
_AT_ITS_END = frozenset({"closed", "failed"})
"""States of an engine that no other follows."""

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class Guard:
    """Wraps the application."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service) -> None:
        """Guard an application.

        Args:
            app: what answers.
            service: what all requests share.
        """
        self._app, self._service = app, service
        self._hosts = frozenset(host.lower() for host in service.settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        call = Call(self._service, _request_id(headers), scope)
        answer = _Answer(call, send)
        call.receive, call.send = _limited(receive, headers, self._service.settings.max_body_bytes), answer.send
        call.send_on = send
        scope[CALL] = call
        error: BaseException | None = None
        try:
            self._check(call, headers)
            await self._app(scope, call.receive, call.send)
        except ClientGoneError:
            call.is_gone = True
        except Exception as caught:  # noqa: BLE001 - whatever it is, the client gets an answer and the log a line
            error = caught
            await self._fail(call, caught, answer)
        finally:
            _log(call, answer, error)

    def _check(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        settings = self._service.settings
        host = _host(headers.get(b"host", b""))
        if self._hosts and "*" not in self._hosts and host not in self._hosts:
            raise HttpError(403, "this server does not answer to that name; see --allowed-host", code="host")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and not _is_welcome(origin, headers.get(b"host", b""), settings.cors_origins):
            raise HttpError(403, "pages of another origin may not come in; see --cors-origin", code="origin")
        coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if coding not in {"", "identity"}:
            message = "bodies are read as they are: send them without Content-Encoding"
            raise HttpError(415, message, code="content_encoding", headers={"accept-encoding": "identity"})
        path = call.scope["path"].removeprefix(call.scope.get("root_path", ""))
        is_preflight = call.scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if path in PUBLIC or is_preflight or not settings.keys:
            return
        call.client = self._service.client(_presented(settings.keys.find, headers))
        call.facts["key"] = call.client.name

    async def _fail(self, call: Call, error: Exception, answer: _Answer) -> None:
        failure = _failure(error, call)
        call.facts["error"] = failure.code
        if failure.status == 500 and not isinstance(error, HttpError):
            # The message of an error of ours may hold what was asked; the traceback shows where it came from.
            LOGGER.error(
                "a request failed", exc_info=_unnamed(error), extra={"fields": {"request_id": call.request_id}}
            )
        if self._service.settings.trust_callers and self._service.engine.state in _AT_ITS_END:
            failure.headers["x-should-retry"] = "false"  # there is no other server behind this address
        if answer.status is not None:
            return  # the headers are out: the connection is closed under a body without an end
        if not call.is_gone:
            await call.answer(failure.body(), failure.status, failure.headers)


class _Answer:
    """Sends, with the request's name in the headers, and remembers the status."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call, self._send = call, send
        self.status: int | None = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            name = (b"x-request-id", self._call.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), name]}
        await self._send(message)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name; of several of a name the first, so that no later one overrules what was checked."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), value)
    return headers


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _host(header: bytes) -> str:
    """A host without its port."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _is_welcome(origin: str, host: bytes, welcome: tuple[str, ...]) -> bool:
    """Whether a page of an origin may come in: one that was named, or one of this server itself.

    A page elsewhere can send requests that its browser does not ask about first; it cannot read the answers, but the
    work would be done.
    """
    if "*" in welcome or origin in welcome:
        return True
    return origin.partition("://")[2].lower() == host.decode("latin-1").lower()


def _presented(find: Callable[[str], ApiKey | None], headers: Mapping[bytes, bytes]) -> ApiKey:
    """The key that a request presents.

    Raises:
        HttpError: 401, it presents none, or a wrong one.
    """
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    presented = token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", b"").decode("latin-1")
    key = find(presented)
    if key is None:
        message = "the API key is wrong" if presented else "an API key is needed: Authorization: Bearer KEY"
        raise HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    return key


def _limited(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> Receive:
    """Receives bodies up to a limit, whether they tell their length or not."""
    n_bytes = 0
    declared = headers.get(b"content-length", b"0")
    too_long = declared.isdigit() and (len(declared) > 18 or int(declared) > limit)

    async def limited() -> Any:
        nonlocal n_bytes
        message = await receive()
        if message["type"] == "http.request":
            n_bytes += len(message.get("body", b""))
            if too_long or n_bytes > limit:
                raise HttpError(413, f"the body has more than {limit} bytes", code="body_too_large")
        return message

    return limited


def _failure(error: Exception, call: Call) -> HttpError:
    if isinstance(error, HTTPException):
        message = {404: "there is no such path", 405: "this path does not take that method"}.get(
            error.status_code, error.detail
        )
        code = _HTTP_CODES.get(error.status_code)
        return HttpError(error.status_code, message, code=code, headers=error.headers)
    return call.failure(error)


def _unnamed(error: Exception) -> Any:
    """What the log gets of an exception: its type and where it was raised, not its message."""
    kind = type(error)
    shown = LlamaBatchError(kind.__name__) if isinstance(error, LlamaBatchError) else RuntimeError(kind.__name__)
    return (type(shown), shown, error.__traceback__)


def _log(call: Call, answer: _Answer, error: BaseException | None) -> None:
    """One line for each request."""
    status = _CLIENT_CLOSED if call.is_gone else answer.status
    # What asks for the state of a server gets to know it, whatever it is.
    is_grave = status is None or (status >= 500 and status != 501 and call.scope["path"] not in PUBLIC)
    # Callers in this process hear of it themselves, and may have set up no log, which prints warnings then.
    is_told = call.service.settings.trust_callers
    client = call.scope.get("client")
    tell(
        "request",
        logging.WARNING if is_grave and not is_told else logging.INFO,
        request_id=call.request_id,
        method=call.scope["method"],
        path=call.scope["path"],
        status=status if status is not None else 500,
        client=client[0] if client else None,
        duration_ms=round(1e3 * (time.perf_counter() - call.began), 2),
        **({"failure": type(error).__name__} if error is not None and status is None else {}),
        **call.facts,
    )
