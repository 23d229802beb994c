"""Workloads from files: prompts, traces, recorded conversations. `docs/benchmarking.md` has the formats."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

from llama_batch.benchmark.errors import BenchmarkError
from llama_batch.benchmark.workload import Conversation, Count, Turn, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["read_conversations", "read_prompts", "read_trace"]

_TRACE_FIELDS = {"at", "prompt", "messages", "prompt_tokens", "shared", "shared_tokens", "output_tokens"}
_PROMPT_FIELDS = {"prompt", "messages", "output_tokens"}
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
          "bing": "assistant", "bard": "assistant", "system": "system", "developer": "developer"}  # fmt: skip
"""What those who speak are called in ShareGPT's files and in OpenAI's."""


def read_prompts(path: Path, n_output: int) -> list[Conversation]:
    """Prompts, one in a line: as text, or in a file `*.jsonl` as objects.

    Args:
        path: the file.
        n_output: tokens of an answer, where a line does not say.

    Returns:
        One conversation of one turn for each line that is not blank.

    Raises:
        BenchmarkError: the file cannot be read, is empty, or a line is wrong; the message has its number.
    """
    if path.suffix != ".jsonl":
        lines = [line for line in _text(path).splitlines() if line.strip()]
        return _some(path, [Conversation((Turn.of(line, n_output),)) for line in lines])
    found = []
    for where, row in _rows(path):
        _check_fields(where, row, _PROMPT_FIELDS)
        found.append(Conversation((_asked(where, row, n_output),)))
    return _some(path, found)


async def read_trace(path: Path, n_output: int, seed: int, count: Count, speed: float = 1.0) -> list[Conversation]:
    """A trace: JSON Lines with the arrival of each request, and what it asks or how long that is.

    Args:
        path: the file.
        n_output: tokens of an answer, where a line does not say.
        seed: of the words that are written where a line has lengths only.
        count: how many tokens a text has.
        speed: how many times faster than recorded it is played.

    Returns:
        One conversation of one turn for each line, in order of arrival, the first one at 0.

    Raises:
        BenchmarkError: the file cannot be read, is empty, or a line is wrong; the message has its number.
    """
    found: list[tuple[float, Turn]] = []
    writer = Writer(seed, count)
    shared: dict[str, str] = {}
    for where, row in _rows(path):
        _check_fields(where, row, _TRACE_FIELDS)
        at = row.get("at")
        if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < math.inf:
            raise BenchmarkError(f"{where}: at must be the seconds of its arrival, not {at!r}")
        if "prompt_tokens" in row:
            turn = Turn.of(await _written(where, row, writer, shared, seed), _n_output(where, row, n_output))
        else:
            turn = _asked(where, row, n_output)
        found.append((float(at), turn))
    found.sort(key=lambda each: each[0])
    first = found[0][0] if found else 0.0
    return _some(path, [Conversation((turn,), (at - first) / speed) for at, turn in found])


async def read_conversations(
    path: Path, n_output: int | None, n_most: int | None, seed: int, count: Count
) -> list[Conversation]:
    """Recorded conversations, as ShareGPT has them: what people asked is asked again, what was answered is not used.

    Args:
        path: a JSON array or JSON Lines of objects with `conversations` (`from`, `value`) or `messages` (`role`,
            `content`).
        n_output: tokens of every answer; None takes the length of the recorded one.
        n_most: how many to take, drawn at random; None takes all, in order.
        seed: of that draw.
        count: how many tokens a text has.

    Returns:
        The conversations; those without a question are left out.

    Raises:
        BenchmarkError: the file cannot be read, is not of that kind, or holds no question.
    """
    rows = [(where, row) for where, row in _objects(path)]
    if n_most is not None:
        random.Random(seed).shuffle(rows)  # noqa: S311 - a load, not a secret
    found: list[Conversation] = []
    for where, row in rows:
        if n_most is not None and len(found) == n_most:
            break
        turns = await _recorded(_spoken(where, row), n_output, count)
        if turns:
            found.append(Conversation(tuple(turns)))
    return _some(path, found)


async def _recorded(spoken: list[tuple[str, str]], n_output: int | None, count: Any) -> list[Turn]:
    """The turns of a recorded conversation: questions, with the lengths of the answers behind them."""
    turns: list[Turn] = []
    added: list[dict[str, str]] = []
    for index, (role, text) in enumerate(spoken):
        if role == "assistant" or not text.strip():
            continue
        added.append({"role": role, "content": text})
        if role != "user":
            continue
        answer = spoken[index + 1] if index + 1 < len(spoken) else ("", "")
        recorded = answer[1] if answer[0] == "assistant" else ""
        if n_output is None and not recorded:
            break  # the recording ends with a question that nobody answered
        turns.append(Turn(tuple(added), n_output or max(1, await count(recorded))))
        added = []
    return turns


def _spoken(where: str, row: dict[str, Any]) -> list[tuple[str, str]]:
    """Who said what."""
    kept = row.get("conversations", row.get("messages"))
    if not isinstance(kept, list):
        raise BenchmarkError(f"{where}: no list of conversations or messages")
    spoken = []
    for item in kept:
        role = _ROLES.get(str(item.get("from", item.get("role"))).lower()) if isinstance(item, dict) else None
        text = item.get("value", item.get("content")) if role is not None else None
        if role is None or not isinstance(text, str):
            raise BenchmarkError(f"{where}: {str(item)[:80]!r} is no message of text from a user or an assistant")
        spoken.append((role, text))
    return spoken


def _asked(where: str, row: dict[str, Any], n_output: int) -> Turn:
    """The turn of a row that says what is asked."""
    n_output = _n_output(where, row, n_output)
    if ("prompt" in row) == ("messages" in row):
        raise BenchmarkError(f"{where}: give one of prompt, messages and (in a trace) prompt_tokens")
    if "messages" not in row:
        if not isinstance(row["prompt"], str) or not row["prompt"]:
            raise BenchmarkError(f"{where}: prompt must be text, and not empty")
        return Turn.of(row["prompt"], n_output)
    spoken = _spoken(where, {"messages": row["messages"]})
    if not spoken:
        raise BenchmarkError(f"{where}: messages is empty")
    return Turn(tuple({"role": role, "content": text} for role, text in spoken), n_output)


async def _written(where: str, row: dict[str, Any], writer: Writer, shared: dict[str, str], seed: int) -> str:
    """The prompt of a row that has lengths only."""
    if "prompt" in row or "messages" in row:
        raise BenchmarkError(f"{where}: give one of prompt, messages and prompt_tokens")
    if ("shared" in row) != ("shared_tokens" in row):
        raise BenchmarkError(f"{where}: shared and shared_tokens belong together")
    n_prompt = _length(where, row, "prompt_tokens")
    if "shared" not in row:
        return await writer.text(n_prompt)
    n_shared = _length(where, row, "shared_tokens")
    if n_shared >= n_prompt:
        raise BenchmarkError(f"{where}: shared_tokens are a part of prompt_tokens, and less")
    key = json.dumps([row["shared"], n_shared])
    if key not in shared:
        # By its name alone, whatever else the trace has: a part of a trace has the same prompts as the whole.
        shared[key] = await Writer(f"{seed} {key}", writer.count).text(n_shared)
    return f"{shared[key]}\n{await writer.text(n_prompt - n_shared)}"


def _n_output(where: str, row: dict[str, Any], default: int) -> int:
    return _length(where, row, "output_tokens") if "output_tokens" in row else default


def _length(where: str, row: dict[str, Any], name: str) -> int:
    value = row[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BenchmarkError(f"{where}: {name} must be a whole number, 1 at least, not {value!r}")
    return value


def _check_fields(where: str, row: dict[str, Any], known: set[str]) -> None:
    """A field that nobody reads would be measured as if it were."""
    if unknown := sorted(row.keys() - known):
        raise BenchmarkError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(sorted(known))}")


def _some(path: Path, found: list[Conversation]) -> list[Conversation]:
    if not found:
        raise BenchmarkError(f"{path}: nothing to ask in it")
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of JSON Lines, each with where it stands."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BenchmarkError(f"{path}:{number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise BenchmarkError(f"{path}:{number}: an object is expected, not {str(row)[:40]!r}")
        yield f"{path}:{number}", row


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON array, or of JSON Lines."""
    text = _text(path)
    if not text.lstrip().startswith("["):
        yield from _rows(path)
        return
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise BenchmarkError(f"{path}: no JSON: {error}") from None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BenchmarkError(f"{path}[{number}]: an object is expected, not {str(row)[:40]!r}")
        yield f"{path}[{number}]", row


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BenchmarkError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BenchmarkError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
