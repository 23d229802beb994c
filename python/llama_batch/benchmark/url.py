"""A server with OpenAI's API, measured over HTTP: ours, llama-server, vLLM, or any other."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from llama_batch.benchmark.errors import BenchmarkError
from llama_batch.benchmark.wire import Connections, Response, Sse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_batch.benchmark.record import Asked, Record

__all__ = ["UrlTarget", "plain_url"]

PREPARE_TIMEOUT_S = 30.0
_PARTS = ("content", "reasoning_content", "reasoning", "tool_calls")
"""What of a chat's delta is a part of the answer."""


def plain_url(url: str) -> str:
    """The URL of a server, without `/v1` at its end, and without a password."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))


class UrlTarget:
    """A server as a target. `prepare` comes first.

    Attributes:
        url: where it is, without `/v1`.
        model: the model's name in requests.
        chat: whether to ask `/v1/chat/completions`, as against `/v1/completions`.
        counts_exactly: whether `count` counts tokens; where the server has no `/tokenize`, it counts words.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        chat: bool = False,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 600.0,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask this server.

        Args:
            url: where it is, with or without `/v1`.
            model: the model's name; None takes the first that it lists.
            chat: whether to ask `/v1/chat/completions`, as against `/v1/completions`.
            api_key: its key.
            headers: further headers of all requests.
            timeout_s: seconds after which a request is given up; None waits for as long as it takes.
            body: further fields of all requests.

        Raises:
            BenchmarkError: the URL or a header is none, or httptools is not installed.
        """
        self.url = plain_url(url)
        sent = {**({"authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        self._connections = Connections(self.url, sent)
        self.model = model
        self.chat = chat
        self._timeout_s = timeout_s
        self._body = dict(body or {})
        self.counts_exactly = True

    async def prepare(self) -> None:
        """See whether the server is there and lets us in, and ask for its model's name.

        Raises:
            BenchmarkError: it cannot be reached, is not ready, refuses the key, or names no model where one is needed.
        """
        response = await self._call("GET", "/v1/models")
        if response.status in (401, 403):
            raise BenchmarkError(f"{self.url} lets nobody in without a valid API key: {_reason(response)}")
        if response.status >= 500:
            raise BenchmarkError(f"{self.url} is not ready: {_reason(response)}")
        if self.model is not None:
            return
        try:
            self.model = str(json.loads(bytes(response.body))["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise BenchmarkError(
                f"{self.url}/v1/models names no model ({_reason(response)}): give its name with --model"
            ) from None

    async def _call(self, method: str, path: str, body: bytes = b"") -> Response:
        """A request outside the measurement."""
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                return await self._connections.request(method, path, body)
        except TimeoutError:
            raise BenchmarkError(f"{self.url} does not answer within {PREPARE_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:
            raise BenchmarkError(f"{self.url} cannot be asked: {_told(error)}") from None

    async def count(self, text: str) -> int:
        """How many tokens a text has, by the server's `/tokenize`; its words, where it has none."""
        if self.counts_exactly:
            body = {"content": text, "prompt": text, "model": self.model}
            for fields in (("content",), ("model", "prompt")):  # llama-server's and ours, then vLLM's
                response = await self._call(
                    "POST", "/tokenize", json.dumps({name: body[name] for name in fields}).encode()
                )
                tokens = _tokens(response)
                if tokens is not None:
                    return tokens
            self.counts_exactly = False
        return len(text.split())

    async def ask(self, asked: Asked, record: Record) -> str:
        """Answer a request; see `Target.ask`."""
        body = self._request(asked)
        answer = _Answer(record, self.chat)
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        record.sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._connections.request("POST", path, body, Sse(answer.take).feed)
            answer.end(response)
        except TimeoutError as error:
            limit = f"no whole answer in {self._timeout_s:g} s" if self._timeout_s is not None else str(error)
            record.failure = f"timeout: {limit}"
        except (OSError, ValueError) as error:
            answer.broken(error)
        record.ended = record.ended or time.perf_counter()
        return "".join(answer.parts)

    def _request(self, asked: Asked) -> bytes:
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        body["max_tokens"] = asked.n_output
        if asked.ignore_eos:
            body["ignore_eos"] = True
        body |= {"messages": list(asked.messages)} if self.chat else {"prompt": asked.text}
        return json.dumps(body | self._body).encode()

    def close(self) -> None:
        """Close its connections."""
        self._connections.close()


class _Answer:
    """Reads the events of one answer."""

    def __init__(self, record: Record, chat: bool) -> None:
        self._record, self._chat = record, chat
        self.parts: list[str] = []
        self._is_whole = False

    def take(self, at: float, name: str, data: bytes) -> None:
        """Note one event."""
        record = self._record
        if data == b"[DONE]":
            self._is_whole, record.ended = True, at
            return
        try:
            self._note(at, name, json.loads(data))
        except (AttributeError, LookupError, TypeError):
            raise ValueError(f"an event of another shape: {data[:80]!r}") from None

    def _note(self, at: float, name: str, message: Any) -> None:
        record = self._record
        if name == "error" or message.get("error"):
            record.failure, record.ended = f"error event: {_message(message.get('error', message))}", at
            return
        self._note_usage(message)
        came = False
        for choice in message.get("choices") or ():
            came |= self._note_text(choice)
            if choice.get("finish_reason"):
                record.finish_reason, record.ended = choice["finish_reason"], at
        if came:
            record.deliveries.append(at)

    def _note_text(self, choice: dict[str, Any]) -> bool:
        """Keep a piece of the answer; whether there is any in it."""
        if not self._chat:
            text = choice.get("text") or ""
            self.parts.append(text)
            return bool(text)
        delta = choice.get("delta") or {}
        self.parts.append(delta.get("content") or "")
        return any(delta.get(part) for part in _PARTS)

    def _note_usage(self, message: dict[str, Any]) -> None:
        record = self._record
        if usage := message.get("usage"):
            record.n_prompt, record.n_output = usage.get("prompt_tokens"), usage.get("completion_tokens")
            record.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if timings := message.get("timings"):
            record.queue_ms = timings.get("queue_ms")

    def end(self, response: Response) -> None:
        """Judge the whole."""
        record = self._record
        if response.status != 200:
            record.failure = f"HTTP {response.status}: {_reason(response)}"
        elif not response.is_stream:
            kind = response.headers.get("content-type", "something without a type")
            record.failure = f"not a stream of events but {kind}"
        elif record.failure is None and not self._is_whole and record.finish_reason is None:
            record.failure = "the stream ended before its last message"
        elif record.failure is None and record.finish_reason == "abort":
            record.failure = "the server cancelled it"

    def broken(self, error: Exception) -> None:
        """Note what broke it, and whether something had come."""
        if self._is_whole or self._record.failure is not None:
            return  # the answer is there, or told why it is not
        # One reason for all that broke in the same way; how far each came stands in its record.
        where = "in mid-stream" if self._record.deliveries else "before any text"
        self._record.failure = f"broken off {where}: {_told(error)}"


def _tokens(response: Response) -> int | None:
    """How many tokens an answer of `/tokenize` has."""
    try:
        answer = json.loads(bytes(response.body)) if response.status == 200 else None
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    tokens, count = answer.get("tokens"), answer.get("count")
    return count if isinstance(count, int) else len(tokens) if isinstance(tokens, list) else None


def _reason(response: Response) -> str:
    """What an answer that is no success says, in a line."""
    text = bytes(response.body).decode(errors="replace")
    try:
        parsed = json.loads(text)
        text = _message(parsed.get("error", parsed)) if isinstance(parsed, dict) else text
    except ValueError:
        pass
    text = " ".join(text.split())[:200]
    return text or f"status {response.status}, and nothing said"


def _message(error: Any) -> str:
    """The text of an error, in the shape of OpenAI's or of another."""
    if isinstance(error, dict):
        error = error.get("message", error.get("detail", error))
    return " ".join(str(error).split())[:200]


def _told(error: Exception) -> str:
    """An error in words: those of the system are clearer than asyncio's."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ConnectionError):
        return error.strerror
    return str(error) or type(error).__name__
