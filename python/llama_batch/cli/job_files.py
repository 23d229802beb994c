"""The two files of a batch job: prompts in, answers out, both JSON Lines.

Answers are appended, each in one write, and a line counts once its newline is there: a job that is killed loses at most
the answers it had not written yet, and the next run cuts off a torn last line before it goes on.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from llama_batch._lock import try_lock
from llama_batch._options import REQUEST_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

_NAMES = {name: spec.name for spec in REQUEST_OPTIONS.values() for name in (spec.name, *spec.aliases)}
_BLOCK = 1 << 16

BATCH_ID = "batch_req_"
"""How the `id` of an answer in OpenAI's batch format begins; what follows tells what the line asked."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input.

    Attributes:
        index: its number in the file, from 0.
        id: what the user calls it, if anything.
        digest: the SHA-256 of what it asks, shortened: it tells whether an earlier answer is an answer to this.
        prompt: text, token ids, or messages.
        chat: whether it is messages.
        options: request options.
        error: what is wrong with it; nothing else counts then.
    """

    index: int
    digest: str
    id: str | int | None = None
    prompt: Any = None
    chat: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def key(self) -> Key:
        """What an answer must agree in."""
        return (json.dumps(self.index if self.id is None else self.id), self.digest)

    def record(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The line of its answer."""
        named = {} if self.id is None else {"id": self.id}
        return {"index": self.index, **named, "prompt_sha256": self.digest, **answer}


class AnyLine(Protocol):
    """A line of the input, in whatever format."""

    @property
    def key(self) -> Key:
        """What an answer must agree in."""

    @property
    def error(self) -> str | None:
        """What is wrong with it."""

    def record(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The line of its answer."""


@dataclass(slots=True)
class Answered:
    """What became of a line.

    Attributes:
        answer: what its record has of it.
        n_tokens: tokens that were generated.
        failure: code and message, where it failed.
    """

    answer: dict[str, Any]
    n_tokens: int = 0
    failure: tuple[str, str] | None = None


def failure_of(record: dict[str, Any]) -> tuple[str, str] | None:
    """Code and message of the error in an answer, ours or OpenAI's; None where there is none."""
    error, response = record.get("error"), record.get("response")
    if error is None and isinstance(response, dict):
        status, body = response.get("status_code"), response.get("body")
        if isinstance(status, int) and 200 <= status < 300:
            return None
        error = body.get("error") if isinstance(body, dict) else str(status)
    if error is None:
        return None
    if not isinstance(error, dict):
        return ("failed", str(error))
    return (str(error.get("code") or "failed"), str(error.get("message")))


def read_lines(source: IO[bytes]) -> Iterator[Line]:
    """The lines of the input; empty ones are counted and left out."""
    for index, raw in enumerate(source):
        if raw.strip():
            yield parse_line(index, raw)


def parse_line(index: int, raw: bytes) -> Line:
    """Read one line; what is wrong with it is in its `error`."""
    try:
        content = read_json(index, raw)
    except (ValueError, RecursionError) as reason:
        return Line(index, digest_of(raw.strip()), error=f"not JSON: {reason}")
    if not isinstance(content, dict):
        return Line(index, digest_of(raw.strip()), error="not a JSON object")
    name = content.pop("id", None)
    digest = digest_of(json.dumps(content, sort_keys=True).encode())
    if not (name is None or isinstance(name, str) or (isinstance(name, int) and not isinstance(name, bool))):
        return Line(index, digest, error="id must be text or an integer")
    error, prompt, chat = None, content.pop("prompt", None), "messages" in content
    messages = content.pop("messages", None)
    if (prompt is None) == (messages is None):
        error = "give either prompt or messages"
    elif chat and not (isinstance(messages, list) and all(isinstance(m, dict) for m in messages)):
        error = "messages must be a list of objects"
    elif not chat and not (isinstance(prompt, str) or _is_tokens(prompt)):
        error = "prompt must be text or a list of token ids"
    elif unknown := [key for key in content if key not in _NAMES]:
        near = difflib.get_close_matches(unknown[0], _NAMES, 1)
        error = f"unknown option {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    elif len({_NAMES[key] for key in content}) < len(content):
        error = f"an option is given twice, by two of its names: {', '.join(content)}"
    if error is not None:
        return Line(index, digest, name, error=error)
    options = {_NAMES[key]: value for key, value in content.items()}
    return Line(index, digest, name, messages if chat else prompt, chat, options)


def read_json(index: int, raw: bytes) -> Any:
    """What a line holds.

    Args:
        index: its number, from 0: the first one may have a byte order mark.
        raw: the line.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(raw.decode("utf-8-sig" if index == 0 else "utf-8"))


def _is_tokens(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)


def digest_of(data: bytes) -> str:
    """The SHA-256 of what a line asks, shortened."""
    return hashlib.sha256(data).hexdigest()[:16]


class Output:
    """Where answers go; knows which are there already.

    Attributes:
        path: the file, in which a job can go on; None for standard output, a pipe or a device.
    """

    def __init__(self, path: str | None, *, overwrite: bool) -> None:
        """Open the output, and repair its last line if that was cut off.

        Args:
            path: The file; None or `-` is standard output.
            overwrite: Forget what it holds.

        Raises:
            click.UsageError: there can be no such file, or another job writes it.
        """
        self.path: Path | None = None
        self.answered: Counter[Key] = Counter()
        self.failed: set[tuple[Key, str]] = set()
        if path is None or path == "-":
            sys.stdout.flush()
            self._file: IO[bytes] = sys.stdout.buffer
            return
        file = Path(path)
        if file.is_dir():
            raise click.UsageError(f"--output: {file} is a folder")
        if not file.parent.is_dir():
            raise click.UsageError(f"--output: there is no folder {file.parent}")
        if file.exists() and not file.is_file():  # a pipe or a device
            self._file = file.open("wb", buffering=0)
            return
        self.path = file
        self._file = file.open("a+b", buffering=0)
        if sys.platform != "win32" and not try_lock(self._file):
            self._file.close()
            raise click.UsageError(f"another job is writing {file}")
        if overwrite:
            self._file.truncate(0)
        self._read()

    def write(self, line: AnyLine, answer: dict[str, Any]) -> None:
        """Append an answer, whole."""
        record = line.record(answer)
        failure = failure_of(record)
        if failure is not None and (line.key, failure[1]) in self.failed:
            return  # the same line failed in the same way before, and says so already
        try:
            data = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # lone surrogates have no UTF-8
            data = json.dumps(record).encode() + b"\n"
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        if self.path is None:
            self._file.flush()  # of standard output's buffer

    def sync(self) -> None:
        """Put what was written on the disk."""
        if self.path is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Stop writing."""
        if self._file is not sys.stdout.buffer:
            self._file.close()

    def _read(self) -> None:
        """Learn what is answered, and cut off a last line without an end."""
        self._file.seek(0)
        end = 0
        for raw in io.BufferedReader(_Unclosed(self._file), _BLOCK):
            if not raw.endswith(b"\n"):
                break
            end += len(raw)
            self._learn(raw)
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() != end:
            self._file.truncate(end)

    def _learn(self, raw: bytes) -> None:
        """Take note of one answer; lines that are none of ours are left alone."""
        try:
            record = json.loads(raw)
            key = _key_of(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        if (failure := failure_of(record)) is not None:
            self.failed.add((key, failure[1]))
        else:
            self.answered[key] += 1


def _key_of(record: dict[str, Any]) -> Key:
    """The key of the line that a record of ours answers.

    Raises:
        ValueError: it is none of ours; and so do KeyError, TypeError and AttributeError say.
    """
    if "custom_id" not in record:
        return (json.dumps(record.get("id", record["index"])), str(record["prompt_sha256"]))
    if not record["id"].startswith(BATCH_ID) or "response" not in record:
        raise ValueError("another program wrote it")
    return (json.dumps(record["custom_id"]), record["id"].removeprefix(BATCH_ID))


class _Unclosed(io.RawIOBase):
    """Reads a file for a buffer that must not close it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._inner = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
