"""A client of an ASGI application in the same loop, which can go away at any time, as real ones do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    is_whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """The values of a stream's events, [DONE] and comments left out."""
        lines = [line.removeprefix("data: ") for line in self.text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class AsgiClient:
    """Sends requests to an application."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self._app = app
        self._headers = {"host": "localhost", **(headers or {})}

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.request("GET", path, **more)

    async def post(self, path: str, value: Any = None, **more: Any) -> Answer:
        if "body" not in more:
            more["body"] = json.dumps(value).encode()
        return await self.request("POST", path, **more)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | list[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        leave_after_parts: int | None = None,
        leave_after_s: float | None = None,
        root_path: str = "",
    ) -> Answer:
        """Send one request.

        Args:
            method: of HTTP.
            path: with a query, perhaps.
            body: whole, or in parts without a length.
            headers: beside the client's own.
            leave_after_parts: go away after so many parts of the answer's body.
            leave_after_s: go away after so many seconds.
            root_path: where the application is mounted.
        """
        path, _, query = path.partition("?")
        parts = body if isinstance(body, list) else [body]
        given = {**self._headers, **(headers or {})}
        if isinstance(body, bytes):
            given.setdefault("content-length", str(len(body)))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": root_path + path,
            "raw_path": (root_path + path).encode(),
            "query_string": query.encode(),
            "root_path": root_path,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        answer, left = Answer(), asyncio.Event()
        if leave_after_s is not None:
            asyncio.get_running_loop().call_later(leave_after_s, left.set)
        if leave_after_parts == 0:
            left.set()
        waiting = list(parts)

        async def receive() -> dict[str, Any]:
            if waiting:
                part = waiting.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(waiting)}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                assert answer.status == 0, "headers are sent once"
                answer.status = message["status"]
                answer.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
                return
            assert answer.status, "headers come first"
            assert not answer.is_whole, "nothing comes after the end"
            answer.parts.append(message.get("body", b""))
            answer.is_whole = not message.get("more_body", False)
            if leave_after_parts is not None and len(answer.parts) >= leave_after_parts:
                left.set()
            await asyncio.sleep(0)

        await self._app(scope, receive, send)
        return answer


async def until(is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(limit_s):
        while not is_so():  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.005)
