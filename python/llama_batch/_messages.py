"""Conversations, as the Rust side takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_batch.errors import ChatTemplateError, OptionError, PromptError

if TYPE_CHECKING:
    from os import PathLike

    from llama_batch.types import Message


def conversation(messages: str | Sequence[Message], chat: Mapping[str, Any]) -> str:
    """A conversation as JSON.

    Args:
        messages: text, or a list of messages.
        chat: what else `Engine.chat` takes of its own, by its names.

    Returns:
        What `src/chat/asked.rs` reads.

    Raises:
        OptionError: an option of the chat has the wrong type.
        ChatTemplateError: the messages are no list of messages.
        PromptError: one holds a lone surrogate.
    """
    import json

    asked = {"messages": _listed(messages), **_settled(chat)}
    try:
        text = json.dumps(asked, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatTemplateError(f"the messages are not JSON: {error}") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError("a message holds a lone surrogate, which no encoding of text has") from None
    return text


def template_source(template: str | PathLike[str]) -> str:
    """A chat template, by its text or its file.

    Args:
        template: the text of a template, which holds a brace or a line break; else the path of one.

    Returns:
        The text.

    Raises:
        OptionError: there is no such file, or it is no text.
        ChatTemplateError: it must not be rendered here.
    """
    from llama_batch._proof import refusal

    if isinstance(template, str) and ("{" in template or "\n" in template):
        source = template
    else:
        try:
            source = Path(template).read_text(encoding="utf-8")
        except (OSError, ValueError, TypeError) as error:
            wrong = f"chat_template {str(template)!r} is neither a template nor a file of one: {error}"
            raise OptionError(wrong) from None
    if (reason := refusal(source)) is not None:
        raise ChatTemplateError(f"the chat template is not used: {reason}")
    return source


def _settled(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a chat that are not None, checked."""
    settled: dict[str, Any] = {}
    for name, value in chat.items():
        if value is None:
            continue
        if name == "tools":
            if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
                raise OptionError(f"tools must be a list of tools, not {type(value).__name__}")
            settled[name] = list(value)
        elif name == "reasoning_format":
            if value not in {"auto", "none"}:
                raise OptionError(f'reasoning_format must be "auto" or "none", not {value!r}')
            settled["separate_reasoning"] = value == "auto"
        elif name == "chat_template":
            settled[name] = template_source(value)
        elif name == "chat_template_kwargs":
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise OptionError("chat_template_kwargs must be a mapping from names to values")
            settled[name] = dict(value)
        elif name == "tool_choice":
            settled[name] = value
        elif not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, not {type(value).__name__}")
        else:
            settled[name] = value
    return settled


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
