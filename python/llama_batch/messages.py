"""What a model answers in a conversation: what it says, what it thinks, which functions it calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_batch.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function.

    Attributes:
        id: names the call; the message that tells its result says `tool_call_id`.
        name: the function's name.
        arguments: its arguments, as the text of a JSON object.
    """

    id: str
    name: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        """The call in OpenAI's shape."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """An answer, taken apart.

    Attributes:
        content: what the model says.
        reasoning_content: what it thought before, where it thinks aloud.
        tool_calls: the functions that it calls.
        role: "assistant".

    Example:
        >>> message = engine.chat("What is the weather in Rome?", tools=tools).result().message
        >>> messages += [message.as_dict()]
    """

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    role: str = "assistant"

    def as_dict(self) -> dict[str, Any]:
        """The message in OpenAI's shape: it can be sent with the next ones.

        Returns:
            `role` and `content`, and `reasoning_content` and `tool_calls` where there are any.
        """
        message: dict[str, Any] = {"role": self.role, "content": self.content or (None if self.tool_calls else "")}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        return message

    def __str__(self) -> str:
        """What the model says."""
        return self.content


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is added to a call of a function.

    Attributes:
        index: which call, from 0.
        arguments: added to the text of its arguments.
        id: the call's name; with the first of its deltas only.
        name: the function's name; with the first of its deltas only.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What is added to an answer.

    Attributes:
        choice: which answer, where there are several (`n`), from 0.
        content: added to what the model says.
        reasoning_content: added to what it thinks.
        tool_calls: added to the calls of functions.
        token_ids: the tokens that this came from.
        logprobs: how likely each token was, where that was asked for.
    """

    choice: int = 0
    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None

    def __str__(self) -> str:
        """What it adds to what the model says."""
        return self.content
