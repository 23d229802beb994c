"""From llama-cpp-python's arguments to the options of the engine."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from llama_batch.compat.arguments import renamed
from llama_batch.compat.llama_cpp.arguments import LLAMA, RANDOM_SEED
from llama_batch.compat.llama_cpp.grammar import LlamaGrammar
from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_batch.compat.arguments import Table

ENDLESS = 2_147_483_647
"""`max_tokens` that leaves the end to the context."""

_SPLIT_MODES = {0: "none", 1: "layer", 2: "row", 3: "tensor"}
_ROPE_SCALING = {-1: None, 0: "none", 1: "linear", 2: "yarn", 3: "longrope"}
_ATTENTION = {-1: None, 0: "causal", 1: "non_causal"}
_KV_TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    20: "iq4_nl",
    30: "bf16",
}
_YARN = {"yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
"""The originals' defaults, with which llama.cpp is to take what the model says."""


def start_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The start options of an engine.

    Args:
        given: the arguments of `Llama`, checked.

    Returns:
        Options of `Engine`.

    Raises:
        OptionError: a number stands for nothing.
    """
    made = renamed(LLAMA, given)
    for name, words in (
        ("split_mode", _SPLIT_MODES),
        ("rope_scaling_type", _ROPE_SCALING),
        ("attention_type", _ATTENTION),
        ("type_k", _KV_TYPES),
        ("type_v", _KV_TYPES),
    ):
        if given[name] is not None and (word := _word(name, given[name], words)) is not None:
            made[name] = word
    made |= {name: given[name] for name, default in _YARN.items() if given[name] != default}
    made["flash_attn"] = "on" if given["flash_attn"] else "off"
    if (seed := seed_of(given["seed"])) and not is_random(seed):
        made["seed"] = seed
    # There is no bound there on how many callers wait, nor on how long.
    return {"max_queue": 0, **made}


def request_options(arguments: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request.

    Args:
        arguments: the table of the method.
        given: its arguments, checked.

    Returns:
        Options of `Engine.generate`.

    Raises:
        OptionError: one has the wrong type.
    """
    options = renamed(arguments, given)
    top_k, max_tokens = given["top_k"], given["max_tokens"]
    options["top_k"] = 0 if isinstance(top_k, int) and top_k <= 0 else top_k
    endless = max_tokens is None or (isinstance(max_tokens, int) and max_tokens <= 0)
    options["max_tokens"] = ENDLESS if endless else max_tokens
    options["stall_timeout"] = None
    if given["stop"]:
        options["stop"] = given["stop"]
    if (seed := seed_of(given["seed"])) is not None:
        options["seed"] = secrets.randbits(32) if is_random(seed) else seed
    if given["logit_bias"] is not None:
        options["logit_bias"] = _biases(given["logit_bias"])
    if (grammar := given["grammar"]) is not None:
        if not isinstance(grammar, LlamaGrammar):
            raise OptionError(f"grammar must be a LlamaGrammar, not {type(grammar).__name__}")
        options |= grammar.options
    return options


def response_format(given: Any) -> dict[str, Any]:
    """What a chat's answer must look like.

    Args:
        given: `response_format`.

    Returns:
        Options of `Engine.chat`.

    Raises:
        OptionError: it says nothing that is known.

    Example:
        >>> response_format({"type": "json_object"})
        {'json_schema': {'type': 'object'}}
    """
    if given is None:
        return {}
    kind = given.get("type") if isinstance(given, dict) else None
    schema: Any = None
    if kind == "text":
        return {}
    if kind == "json_object":
        schema = given.get("schema") or {"type": "object"}
    elif kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else given.get("schema")
    if not isinstance(schema, dict):
        known = '{"type": "text"}, {"type": "json_object", "schema": {...}} or {"type": "json_schema", ...}'
        raise OptionError(f"response_format must be {known}, not {given!r}")
    return {"json_schema": schema}


def tool_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The functions that an answer may call.

    Args:
        given: the arguments of `create_chat_completion`.

    Returns:
        Options of `Engine.chat`.

    Raises:
        OptionError: they are given twice, or in a way that is not known.
    """
    tools, choice = given["tools"], given["tool_choice"]
    functions, call = given["functions"], given["function_call"]
    if functions is not None:
        if tools is not None:
            raise OptionError("create_chat_completion: give tools or functions, not both")
        if not isinstance(functions, list | tuple):
            raise OptionError(f"functions must be a list of functions, not {type(functions).__name__}")
        tools = [{"type": "function", "function": function} for function in functions]
    if call is not None:
        if choice is not None:
            raise OptionError("create_chat_completion: give tool_choice or function_call, not both")
        choice = {"type": "function", "function": dict(call)} if isinstance(call, dict) else call
    if not tools:
        if choice not in (None, "none", "auto"):
            raise OptionError("create_chat_completion: tool_choice goes with tools")
        return {}
    return {"tools": tools} if choice is None else {"tools": tools, "tool_choice": choice}


def seed_of(seed: Any) -> int | None:
    """A seed, checked; None if there is none.

    Raises:
        OptionError: it is no integer.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise OptionError(f"seed must be an integer, not {type(seed).__name__}")
    return seed


def is_random(seed: int) -> bool:
    """Whether a seed stands for a random one."""
    return seed in (-1, RANDOM_SEED)


def _word(name: str, number: Any, words: Mapping[int, str | None]) -> str | None:
    if isinstance(number, bool) or not isinstance(number, int) or number not in words:
        known = ", ".join(f"{key} ({word or 'as the model'})" for key, word in words.items())
        raise OptionError(f"Llama: {name} must be one of {known}, not {number!r}")
    return words[number]


def _biases(given: Any) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(f"logit_bias must map token ids to numbers: {error}") from None
