"""Answers in llama-cpp-python's shapes: plain dicts, whole or piece by piece."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_batch.logprobs import as_openai_completion, first_of_prompt
from llama_batch.openai_shapes import finish_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llama_batch.generation import Generation
    from llama_batch.messages import ChatDelta
    from llama_batch.types import Completion


@dataclass(frozen=True, slots=True)
class Asked:
    """What the shape of an answer depends on.

    Attributes:
        id: the answer's name.
        created: when it was asked for. Unit: seconds since 1970.
        model: the model's name.
        echo: text before the answer.
        suffix: text behind it.
        functions: whether a call is told of by its old name, too.
    """

    id: str
    created: int
    model: str
    echo: str = ""
    suffix: str = ""
    functions: bool = False

    @classmethod
    def now(cls, prefix: str, model: str, **more: Any) -> Asked:
        """A new one.

        Args:
            prefix: "cmpl" or "chatcmpl".
            model: the model's name.
            more: the other attributes.
        """
        return cls(f"{prefix}-{uuid.uuid4()}", int(time.time()), model, **more)

    def shape(self, kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """An answer, or a chunk of one.

        Args:
            kind: what it calls itself.
            choice: what it holds, but for its index.
        """
        choices = [{"index": 0, **choice}]
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def usage(done: Completion[Any]) -> dict[str, int]:
    """What a request used. Unit: tokens."""
    used = done.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.generated_tokens,
        "total_tokens": used.total_tokens,
    }


def text_completion(asked: Asked, done: Completion[Any]) -> dict[str, Any]:
    """A finished completion.

    Args:
        asked: what it is an answer to.
        done: the answer.

    Returns:
        The dict.
    """
    logprobs = None
    if done.logprobs is not None:
        told = [*(done.prompt_logprobs or ()), *done.logprobs]
        first = first_of_prompt(asked.echo, done.prompt_logprobs) if done.prompt_logprobs else ""
        logprobs = as_openai_completion(told, text_offset=0 if done.prompt_logprobs else len(asked.echo), first=first)
    text = asked.echo + done.text + asked.suffix
    choice = {"text": text, "logprobs": logprobs, "finish_reason": finish_reason(done)}
    return {**asked.shape("text_completion", choice), "usage": usage(done)}


def text_chunks(asked: Asked, generation: Generation[Any]) -> Iterator[dict[str, Any]]:
    """A completion as it comes. Leaving it cancels the request.

    Args:
        asked: what it is an answer to.
        generation: the request.

    Yields:
        Dicts; the last one has the finish reason.
    """

    def chunk(text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return asked.shape("text_completion", {"text": text, "logprobs": logprobs, "finish_reason": reason})

    if asked.echo:
        yield chunk(asked.echo)
    offset = len(asked.echo)
    for piece in generation:
        told = piece.logprobs
        yield chunk(str(piece), None if told is None else as_openai_completion(told, text_offset=offset))
        offset += len(piece)
    yield chunk(asked.suffix, None, finish_reason(generation.result()))


def chat_completion(asked: Asked, done: Completion[Any]) -> dict[str, Any]:
    """A finished answer to a chat.

    Args:
        asked: what it is an answer to.
        done: the answer.

    Returns:
        The dict.
    """
    message = done.message.as_dict()
    if asked.functions and message.get("tool_calls"):
        message["function_call"] = dict(message["tool_calls"][0]["function"])
    choice = {"message": message, "logprobs": _chat_logprobs(done.logprobs), "finish_reason": _chat_end(asked, done)}
    return {**asked.shape("chat.completion", choice), "usage": usage(done)}


def chat_chunks(asked: Asked, generation: Generation[Any]) -> Iterator[dict[str, Any]]:
    """An answer to a chat as it comes. Leaving it cancels the request.

    Args:
        asked: what it is an answer to.
        generation: the request.

    Yields:
        Dicts: the first one says whose turn it is, the last one has the finish reason.
    """

    def chunk(delta: Mapping[str, Any], logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return asked.shape("chat.completion.chunk", {"delta": delta, "logprobs": logprobs, "finish_reason": reason})

    yield chunk({"role": "assistant"})
    for delta in generation.deltas():
        if made := _delta(asked, delta):
            yield chunk(made, _chat_logprobs(delta.logprobs))
    yield chunk({}, None, _chat_end(asked, generation.result()))


def _delta(asked: Asked, delta: ChatDelta) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if delta.content:
        made["content"] = delta.content
    calls = []
    for call in delta.tool_calls:
        function = {"name": call.name, "arguments": call.arguments}
        function = {name: value for name, value in function.items() if value is not None}
        begun = {} if call.id is None else {"id": call.id, "type": "function"}
        calls.append({"index": call.index, **begun, "function": function})
    if calls:
        made["tool_calls"] = calls
        if asked.functions and calls[0]["index"] == 0:
            made["function_call"] = calls[0]["function"]
    return made


def _chat_end(asked: Asked, done: Completion[Any]) -> str:
    reason = finish_reason(done)
    return "function_call" if asked.functions and reason == "tool_calls" else reason


def _chat_logprobs(told: Any) -> dict[str, Any] | None:
    return None if told is None else {"content": [each.as_openai() for each in told], "refusal": None}
