"""Messages of a chat, as the Rust side takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_batch.errors import ChatTemplateError, PromptError

if TYPE_CHECKING:
    from llama_batch.types import Message


def as_json(messages: str | Sequence[Message]) -> str:
    """Messages as JSON, for the model's template.

    Raises:
        ChatTemplateError: they are no list of messages.
        PromptError: one holds a lone surrogate.
    """
    import json

    listed = _listed(messages)
    try:
        text = json.dumps(listed, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatTemplateError(f"the messages are not JSON: {error}") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError("a message holds a lone surrogate, which no encoding of text has") from None
    return text


def as_plain(messages: str | Sequence[Message]) -> str:
    """Messages without any model's template, for a simulated one."""
    listed = _listed(messages)
    return "".join(f"<{message.get('role', '')}> {message.get('content', '')}\n" for message in listed)


def _listed(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages are text or a list of messages, not {type(messages).__name__}")
    if not messages:
        raise ChatTemplateError("the list of messages is empty")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f'message {place} is no mapping with a "role"')
        if "content" not in message and "tool_calls" not in message:
            raise ChatTemplateError(f'message {place} has no "content"')
    return [dict(message) for message in messages]
