"""From the fields of a request to the options of the engine, within the limits of server and key; and submitting."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

from llama_batch.server.failures import HttpError, not_served
from llama_batch.server.fields import field_of
from llama_batch.server.requests import engine_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_batch.generation import Generation
    from llama_batch.server.requests.base import GenerationBody
    from llama_batch.server.service import Call

T = TypeVar("T")

ENDLESS = 2_147_483_647
"""`max_tokens` that leaves the end to the context."""

_HEAVY_BYTES = 16 << 10
"""Bodies from here on are tokenised beside the event loop: what takes long would hold up all streams."""

_STRUCTURES = ("json_schema", "grammar", "regex", "choice", "tools")
_SLOW_TO_SETTLE = (*_STRUCTURES, "logit_bias", "bad_words", "grammar_triggers", "dry_sequence_breakers")
"""Options that are compiled, or looked for in the whole vocabulary."""

_LISTS = ("stop", "bad_words", "choice", "grammar_triggers", "dry_sequence_breakers")


def options_of(call: Call, request: GenerationBody, asked_max_tokens: int | None) -> dict[str, Any]:
    """The options of a request, within what its client may ask for.

    Args:
        call: who asks.
        request: the request.
        asked_max_tokens: the tokens that it wants at most; None or a negative number: what is left of the context.

    Returns:
        Options of `Engine.generate`.

    Raises:
        HttpError: it asks for more than it may.
    """
    options = engine_options(request)
    for alias in ("session", "prompt_cache_key"):  # clients send the second of themselves
        session = getattr(request, alias, None)
        if session is not None and "session" not in options:
            options["session"] = session
    # OpenAI replaces `user` by two fields of different meaning, and clients send all three.
    user = getattr(request, "safety_identifier", None) or getattr(request, "user", None)
    if user is not None:
        call.facts["user"] = user
    if request.return_progress and not request.stream:
        name = "return_progress"
        raise HttpError(400, f"{name!r} goes with 'stream': true", code="invalid_value", param=name)
    options["cache_scope"] = _scope(call, request)
    if (flow := call.client.flow()) is not None:
        options["fair_scope"] = flow
    options["max_tokens"] = _max_tokens(call, asked_max_tokens)
    options["priority"] = priority_of(call, request.priority)
    if not options["priority"]:
        del options["priority"]
    return options


def _scope(call: Call, request: GenerationBody) -> Any:
    asked = first_given(request, "cache_scope", "cache_salt")
    name = "cache_scope" if request.cache_scope is not None else "cache_salt"
    if asked is not None and call.client.key is None and not call.client.is_trusted:
        message = f"{name!r} needs an API key: without one it would keep nobody out"
        raise HttpError(400, message, code="needs_api_key", param=name)
    return call.client.scope(asked)


def _max_tokens(call: Call, asked: int | None) -> int:
    limits = [limit for limit in (call.service.settings.max_tokens, call.client.max_tokens) if limit is not None]
    limit = min(limits, default=None)
    if asked is None or asked < 0:
        return ENDLESS if limit is None else limit
    if limit is not None and asked > limit:
        name = field_of("max_tokens", call.sent)
        message = f"{name} is {asked}; at most {limit} tokens are generated for one answer here"
        raise HttpError(400, message, code="too_many_tokens", param=name)
    return asked


def priority_of(call: Call, asked: int | None) -> int:
    """The priority of a request.

    Raises:
        HttpError: 403, it asks to go before what its client may have.
    """
    if call.client.is_trusted:
        return asked or 0
    least = call.client.priority
    if asked is not None and asked < least:
        message = f"priority {asked} goes before what this client may have, which is {least} or more"
        raise HttpError(403, message, code="priority", param="priority")
    return least if asked is None else asked


def first_given(request: Any, *names: str) -> Any:
    """The value of the one name of several by which a field was given.

    Raises:
        HttpError: it was given by two names that differ.
    """
    values = {name: getattr(request, name) for name in names if getattr(request, name, None) is not None}
    distinct = list(dict.fromkeys(values.values()))
    if len(distinct) > 1:
        first, second = list(values)[:2]
        raise HttpError(400, f"{first!r} and {second!r} say different things", code="invalid_value", param=second)
    return distinct[0] if distinct else None


def structure(request: Any, options: dict[str, Any]) -> None:
    """What an answer must look like, from OpenAI's `response_format` and vLLM's `structured_outputs`.

    Args:
        request: has both fields.
        options: gets what the engine calls it.

    Raises:
        HttpError: it is said twice, or in a way that is not served.
    """
    wanted: dict[str, Any] = {name: options[name] for name in _STRUCTURES if name in options}
    for name, made in (
        ("response_format", _response_format(request.response_format)),
        ("structured_outputs", _structured(request.structured_outputs)),
    ):
        if made and wanted:
            message = f"{name!r} and {next(iter(wanted))!r}: an answer has one structure"
            raise HttpError(400, message, code="invalid_value", param=name)
        wanted.update(made)
    options.update(wanted)


def _response_format(given: dict[str, Any] | None) -> dict[str, Any]:
    name = "response_format"
    kind = None if given is None else given.get("type")
    if given is None or (kind == "text" and set(given) == {"type"}):
        return {}
    if kind == "json_object" and set(given) <= {"type", "schema"}:
        schema = given.get("schema", {"type": "object"})  # llama-server takes one here
    elif kind == "json_schema" and set(given) <= {"type", "json_schema", "schema"}:
        inner = given.get("json_schema", {"schema": given.get("schema")})
        if not isinstance(inner, dict) or not set(inner) <= {"name", "description", "schema", "strict"}:
            raise HttpError(400, f"'{name}.json_schema' is wrong", code="invalid_value", param=f"{name}.json_schema")
        schema = inner.get("schema")
    else:
        message = f"{name!r} must be of type 'text', 'json_object' or 'json_schema', and hold nothing else"
        raise HttpError(400, message, code="invalid_value", param=name)
    if not isinstance(schema, dict):
        raise HttpError(400, f"{name!r} has no schema that is an object", code="invalid_value", param=name)
    return {"json_schema": schema}


def _structured(given: dict[str, Any] | None) -> dict[str, Any]:
    name = "structured_outputs"
    if given is None:
        return {}
    served = {"json": (dict, str), "regex": str, "choice": list, "grammar": str, "json_object": bool}
    known = {each: value for each, value in given.items() if value is not None}
    for each, value in known.items():
        path = f"{name}.{each}"
        if each not in served:
            raise not_served(path, "an answer has a json, regex, choice or grammar")
        if not isinstance(value, served[each]):  # type: ignore[arg-type]
            raise HttpError(400, f"{path!r} has the wrong type", code="invalid_value", param=path)
    if known.get("json_object") is False:
        del known["json_object"]
    if len(known) > 1:
        raise HttpError(400, f"{name!r}: an answer has one structure", code="invalid_value", param=name)
    if not known:
        return {}
    [(each, value)] = known.items()
    if each == "json_object":
        return {"json_schema": {"type": "object"}}
    return {"json_schema" if each == "json" else each: value}


def check_limits(call: Call, options: dict[str, Any], n_prompts: int = 1) -> None:
    """Refuse what is larger than the operator lets a request be.

    Args:
        call: the request.
        options: its options.
        n_prompts: its prompts.

    Raises:
        HttpError: something is too large; it names the limit.
    """
    limits = call.service.settings
    n_choices = n_prompts * options.get("n", 1)
    if n_choices > limits.max_choices:
        message = f"{n_choices} answers are asked for; at most {limits.max_choices} are given to one request"
        raise HttpError(400, message, code="too_many_choices", param=field_of("n", call.sent) or call.prompt_field)
    for option in _LISTS:
        texts = options.get(option) or ()
        texts = [texts] if isinstance(texts, str) else texts
        name = field_of(option, call.sent)
        if len(texts) > limits.max_stop:
            message = f"{name!r} has {len(texts)} texts, at most {limits.max_stop}"
            raise HttpError(400, message, code="too_many_texts", param=name)
        if any(isinstance(text, str) and len(text) > limits.max_stop_length for text in texts):
            message = f"{name!r} has a text of more than {limits.max_stop_length} characters"
            raise HttpError(400, message, code="text_too_long", param=name)
    n_texts = sum(isinstance(key, str) for key in options.get("logit_bias", ()))
    if n_texts > limits.max_stop:
        message = f"'logit_bias' names {n_texts} texts, at most {limits.max_stop}"
        raise HttpError(400, message, code="too_many_texts", param="logit_bias")
    for option in _STRUCTURES:
        value = options.get(option)
        if value is not None and _size(value) > limits.max_schema_bytes:
            name = field_of(option, call.sent)
            message = f"{name!r} is larger than {limits.max_schema_bytes} bytes"
            raise HttpError(400, message, code="structure_too_large", param=name)


def _size(value: Any) -> int:
    return len((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode("utf-8", "replace"))


def check_prompt(call: Call, prompt: str | list[int], param: str) -> None:
    """Refuse a prompt that is longer than the operator lets it be, before it is tokenised.

    Raises:
        HttpError: it is too long.
    """
    limit = call.service.settings.max_prompt_length
    if len(prompt) > limit:
        unit = "characters" if isinstance(prompt, str) else "tokens"
        message = f"the prompt has {len(prompt)} {unit}; this server takes {limit}"
        raise HttpError(400, message, code="prompt_too_long", param=param)


def check_n_messages(call: Call, messages: Sequence[Any]) -> None:
    """Refuse a chat of more messages than the operator lets it have.

    Raises:
        HttpError: it has too many.
    """
    limit = call.service.settings.max_messages
    if len(messages) > limit:
        message = f"the chat has {len(messages)} messages; this server takes {limit}"
        raise HttpError(400, message, code="too_many_messages", param="messages")


def check_model(call: Call, asked: str | None) -> str:
    """The name of the model in the answer.

    Raises:
        HttpError: 404 where another model is asked for and the operator is strict.
    """
    service = call.service
    if asked is None or asked == service.model_name:
        return service.model_name
    if service.settings.strict_model:
        message = f"there is no model of this name; there is {service.model_name!r}"
        raise HttpError(404, message, code="model_not_found", param="model")
    return asked


async def beside(call: Call, work: Callable[[], T], *, always: bool = False) -> T:
    """Do what grows with the request on another thread, if the request is large.

    Args:
        call: the request.
        work: what to do.
        always: also if it is small.

    Returns:
        What the work gives.
    """
    if always or call.body_length > _HEAVY_BYTES:
        return await asyncio.to_thread(work)
    return work()


async def submit(call: Call, make: Callable[[], Generation], options: dict[str, Any]) -> Generation:
    """Submit a request to the engine, beside the event loop where that may take a while.

    Args:
        call: the request.
        make: submits it.
        options: its options.

    Returns:
        The engine's request.

    Raises:
        LlamaBatchError: it was refused at once: an option is wrong, the queue is full, the prompt can never fit.
    """
    generation = await beside(call, make, always=any(name in options for name in _SLOW_TO_SETTLE))
    if generation.done():
        outcome = generation.outcome()
        if isinstance(outcome, Exception):
            raise outcome
    return generation
