"""OpenAI's batch files: requests of its API in, its answers out, by the HTTP server's application in this process.

A file has one format, which its lines tell. The `id` of an answer is made of what its line asks, so that the next run
knows which lines are answered, as with the files of our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from llama_batch._options import REQUEST_OPTIONS
from llama_batch.cli.job_files import BATCH_ID, Answered, Key, digest_of, failure_of, read_json
from llama_batch.errors import (
    EngineClosedError,
    EngineCrashedError,
    LlamaBatchError,
    ModelLoadError,
    ModelNotFoundError,
    OptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_batch import Engine

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""What a line may ask."""

_MEMBERS = ("custom_id", "method", "url", "body")
_OURS = ("prompt", "messages")
_ENDS_THE_JOB: dict[str, type[LlamaBatchError]] = {
    EngineCrashedError.code: EngineCrashedError,
    ModelLoadError.code: ModelLoadError,
    ModelNotFoundError.code: ModelNotFoundError,
    "shutting_down": EngineClosedError,
}
"""Codes of answers that all further lines would get too."""

_ELSEWHERE = {"max_tokens": ("max_completion_tokens",), "json_schema": ("response_format", "structured_outputs")}
"""Fields of OpenAI's and vLLM's that say what an option says."""

_FOR_EMBEDDINGS = frozenset({"timeout", "priority"})


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a batch file.

    Attributes:
        index: its number in the file, from 0.
        digest: the SHA-256 of what it says, shortened.
        custom_id: what the user calls it.
        url: one of `URLS`.
        body: the request.
        error: what is wrong with it; nothing else counts then.
    """

    index: int
    digest: str
    custom_id: str | None = None
    url: str = ""
    body: dict[str, Any] | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        """What an answer must agree in."""
        return (json.dumps(self.custom_id), self.digest)

    def record(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The line of its answer."""
        head = {"id": BATCH_ID + self.digest, "custom_id": self.custom_id}
        return {**head, "response": answer.get("response"), "error": answer.get("error")}


def is_batch(file: IO[bytes]) -> bool:
    """Whether a file has OpenAI's batch format. Reads it to its end, and goes back to its beginning.

    Args:
        file: the input.

    Returns:
        True for OpenAI's, False for our own, which a file of wrong lines alone has too.

    Raises:
        click.UsageError: it has lines of both.
    """
    first: tuple[int, bool] | None = None
    for index, raw in enumerate(file):
        kind = _kind(index, raw)
        if kind is None:
            continue
        if first is None:
            first = (index, kind)
        elif kind != first[1]:
            said = {True: "a request of OpenAI's batch format", False: "a prompt or messages"}
            raise click.UsageError(
                f"--input: line {index + 1} is {said[kind]}, and line {first[0] + 1} is {said[first[1]]}: "
                "a file has one format"
            )
    file.seek(0)
    return first is not None and first[1]


def _kind(index: int, raw: bytes) -> bool | None:
    """Whether a line is of a batch file, or of our own; None: it might be of either."""
    if not raw.strip():
        return None
    try:
        content = read_json(index, raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    if "custom_id" in content or "body" in content:
        return True
    return False if any(name in content for name in _OURS) else None


def read_batch_lines(source: IO[bytes]) -> Iterator[BatchLine]:
    """The lines of a batch file; empty ones are counted and left out."""
    seen: dict[str, int] = {}
    for index, raw in enumerate(source):
        if raw.strip():
            yield parse_batch_line(index, raw, seen)


def parse_batch_line(index: int, raw: bytes, seen: dict[str, int]) -> BatchLine:
    """Read one line; what is wrong with it is in its `error`.

    Args:
        index: its number, from 0.
        raw: the line.
        seen: the numbers of the lines before it, by `custom_id`; gets this one.
    """
    try:
        content = read_json(index, raw)
    except (ValueError, RecursionError) as reason:
        return BatchLine(index, digest_of(raw.strip()), error=f"not JSON: {reason}")
    if not isinstance(content, dict):
        return BatchLine(index, digest_of(raw.strip()), error="not a JSON object")
    digest = digest_of(json.dumps(content, sort_keys=True).encode())
    name, url, body = (content.get(member) for member in ("custom_id", "url", "body"))
    if not isinstance(name, str) or not name:
        return BatchLine(index, digest, error="custom_id must be text")
    error = None
    if name in seen:
        # The answer is found by its `custom_id`: with two of a name, nobody could tell them apart.
        digest = digest_of(f"{digest} {index}".encode())
        error = f"custom_id {name!r} is that of line {seen[name] + 1} too"
    elif unknown := [member for member in content if member not in _MEMBERS]:
        error = f"unknown member {unknown[0]!r}; a request has {', '.join(_MEMBERS)}"
    elif content.get("method") != "POST":
        error = 'method must be "POST"'
    elif not isinstance(url, str) or url not in URLS:
        error = f"url must be one of {', '.join(URLS)}"
    elif not isinstance(body, dict):
        error = "body must be an object"
    elif body.get("stream"):
        error = "stream: the answers of a batch come whole"
    seen.setdefault(name, index)
    if error is not None or not isinstance(url, str):
        return BatchLine(index, digest, name, error=error)
    return BatchLine(index, digest, name, url, body)


class BatchAnswers:
    """Answers lines by the application, so that each field means what it means over HTTP."""

    def __init__(self, engine: Engine, options: dict[str, Any], make_app: Callable[[], Any]) -> None:
        """Answer by an engine; on one event loop.

        Args:
            engine: the engine.
            options: options of requests, for bodies that do not say.
            make_app: makes the application.

        Raises:
            OptionError: a schema is no JSON object.
        """
        del engine  # the application holds it
        self._app, self._options = make_app(), {name: _as_json(name, value) for name, value in options.items()}

    async def answer(self, line: BatchLine) -> Answered:
        """Answer a line.

        Raises:
            LlamaBatchError: the engine is at its end; no line would be answered any more.
        """
        from llama_batch._exchange import post

        assert line.body is not None, "wrong lines are not answered"
        body = {**_defaults(line, self._options), **line.body}
        # Lone surrogates stay escaped, and get the answer that they get over HTTP.
        status, headers, sent = await post(self._app, line.url, json.dumps(body).encode())
        made = json.loads(sent)
        response = {"status_code": status, "request_id": headers.get("x-request-id", ""), "body": made}
        answered = Answered({"response": response, "error": None})
        if (failure := failure_of(answered.answer)) is None:
            usage = made.get("usage") or {}
            answered.n_tokens = usage.get("completion_tokens", 0)
            return answered
        code, message = failure
        if code in _ENDS_THE_JOB:
            raise _ENDS_THE_JOB[code](message)
        answered.failure = failure
        return answered


def _as_json(name: str, value: Any) -> Any:
    """An option as a body has it: the command line has schemas as text, a body as objects."""
    if name != "json_schema" or not isinstance(value, str):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"json_schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise OptionError("json_schema must be an object, for requests in OpenAI's format")
    return schema


def _defaults(line: BatchLine, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the command line that a body leaves open, as its endpoint calls them."""
    assert line.body is not None
    found: dict[str, Any] = {}
    for name, value in options.items():
        names = (name, *REQUEST_OPTIONS[name].aliases, *_ELSEWHERE.get(name, ()))
        if any(line.body.get(each) is not None for each in names):
            continue
        if line.url == "/v1/embeddings":
            if name in _FOR_EMBEDDINGS:
                found[name] = value
        elif name == "logprobs" and line.url == "/v1/chat/completions":
            found |= {"logprobs": True, "top_logprobs": value} if value is not None else {}
        else:
            found[name] = value
    return found
