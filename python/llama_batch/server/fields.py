"""Which field of a request is at fault: the engine speaks of its options, a client of what it sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_batch._options import EMBED_OPTIONS, REQUEST_OPTIONS
from llama_batch.errors import ChatTemplateError, GrammarError, OptionError

if TYPE_CHECKING:
    from collections.abc import Container

    from llama_batch.errors import LlamaBatchError

_STRUCTURES = ("response_format", "structured_outputs")

_SENT_AS = {
    "n": ("best_of", "n", "n_cmpl"),  # the first of these that is there decides
    "max_tokens": ("max_completion_tokens",),
    "logprobs": ("top_logprobs", "n_probs", "logprobs"),
    "prompt_logprobs": ("prompt_logprobs", "echo"),
    "cache_scope": ("cache_scope", "cache_salt"),
    "session": ("session", "prompt_cache_key"),
    "json_schema": ("json_schema", *_STRUCTURES),
    "grammar": ("grammar", "structured_outputs"),
    "regex": ("regex", "structured_outputs"),
    "choice": ("choice", "structured_outputs"),
    "enable_thinking": ("enable_thinking", "reasoning_effort"),
    "chat_template_kwargs": ("chat_template_kwargs", "reasoning_effort"),
}
"""Options of the engine, and the fields by which they come where those are called otherwise."""

_CONSTRAINTS = (*_STRUCTURES, "json_schema", "grammar", "regex", "choice", "tools")
"""The fields that say what an answer looks like, of which a request has one."""

_IN_CHATS = (
    (re.compile(r"tool (\d+) "), r"tools.\1"),
    (re.compile(r"tool_choice |.* none can be required$"), "tool_choice"),
    (re.compile(r"two tools |tools |the template's calls |.* in a tool spells "), "tools"),
    (re.compile(r".* in chat_template_kwargs spells "), "chat_template_kwargs"),
    (re.compile(r"the chat template is not used|a simulated model has no chat templates"), "chat_template"),
)
"""What an error of a conversation begins with, where it is not about the messages; and the field that it is about."""

_OPTIONS = {**EMBED_OPTIONS, **REQUEST_OPTIONS}
_BY_NAME = {name: spec for spec in _OPTIONS.values() for name in (spec.name, *spec.aliases)}


def field_of(option: str, sent: Container[str]) -> str | None:
    """The field by which a client gave an option.

    Args:
        option: a name of the option.
        sent: the fields that the client sent.

    Returns:
        The field's name; None, if it sent none that could be it.

    Example:
        >>> field_of("max_tokens", {"prompt", "n_predict"})
        'n_predict'
    """
    spec = _BY_NAME.get(option)
    name = option if spec is None else spec.name
    aliases = () if spec is None else spec.aliases
    names = (*_SENT_AS.get(name, ()), option, name, *aliases)
    return next((each for each in names if each in sent), None)


def at_fault(error: LlamaBatchError, sent: Container[str], prompt: str | None) -> str | None:
    """The field that an error of the engine is about.

    Args:
        error: one about the request.
        sent: the fields that the client sent.
        prompt: the field that the prompt came in.

    Returns:
        The field's name; None where no field is at fault.

    Example:
        >>> at_fault(OptionError("temp must be at least 0"), {"prompt", "temperature"}, "prompt")
        'temperature'
    """
    first = re.match(r"\w*", error.message)
    named = field_of(first[0], sent) if first else None
    if isinstance(error, OptionError):
        return named
    if isinstance(error, GrammarError):
        return named or next((name for name in _CONSTRAINTS if name in sent), None)
    if isinstance(error, ChatTemplateError):
        found = ((pattern.match(error.message), field) for pattern, field in _IN_CHATS)
        return next((match.expand(field) for match, field in found if match), prompt)
    return prompt
