"""What all bodies have in common: unknown fields are errors, null is the same as nothing, and the engine's options."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from llama_batch._options import REQUEST_OPTIONS
from llama_batch.server.failures import HttpError, not_served

if TYPE_CHECKING:
    from llama_batch.types import OptionSpec

Unserved = Mapping[str, tuple[tuple[Any, ...], str]]
"""Fields that are known and not served: the values that ask for nothing, and why others are not served."""

B = TypeVar("B", bound="Body")

_OWN = frozenset({"session", "cache_scope", "max_tokens", "n", "seed", "stop", "logit_bias", "logprobs", "json_schema",
                  "timeout", "priority", "stop_token_ids", "prompt_logprobs"})  # fmt: skip
"""Options whose fields are written out below: they look different over HTTP."""

_NOT_OVER_HTTP = frozenset({"sampler", "fair_scope"})
"""Code of one's own, and whose share a request is of: that is its API key's."""

_TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "str | Sequence[str]": str | list[str],
    "Sequence[int]": list[int],
    "Sequence[str]": list[str],
}


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, title=None)

    unserved: ClassVar[Unserved] = {}


def _field(spec: OptionSpec) -> tuple[Any, Any]:
    """One option of the engine as a field: not given, it is as the engine has it."""
    kind = _TYPES[spec.type.removesuffix(" | None")]
    bounds: dict[str, Any] = {"ge": spec.minimum, "le": spec.maximum} if kind in {int, float} else {}
    return (Annotated[kind | None, Field(description=spec.doc, **bounds)], None)


def _fields() -> dict[str, Any]:
    shown = [spec for name, spec in REQUEST_OPTIONS.items() if name not in _OWN | _NOT_OVER_HTTP]
    return {name: _field(spec) for spec in shown for name in (spec.name, *spec.aliases)}


ENGINE_FIELDS = tuple(_fields())
"""The options that are fields by their own names and their aliases."""

if TYPE_CHECKING:
    _Options = Body
else:
    _Options = create_model("_Options", __base__=Body, **_fields())


class StreamOptions(Body):
    """What a stream tells beside the answer."""

    include_usage: bool | None = Field(
        default=None, description="End the stream with a chunk that has `usage` and no choices."
    )

    unserved: ClassVar[Unserved] = {
        "include_obfuscation": ((False,), "chunks are as long as what they say"),
        "continuous_usage_stats": ((False,), "usage is known at the end"),
    }


class GenerationBody(_Options):
    """What all requests for an answer may hold."""

    model: str | None = Field(None, description="The model's name, which the answer repeats.")
    stream: bool | None = Field(None, description="Send the answer as it is made, as server-sent events.")
    n: int | None = Field(None, ge=1, le=128, description="Answers to each prompt.")
    seed: int | None = Field(None, description="The same seed gives the same draws; -1 draws one.")
    stop: str | list[str] | None = Field(None, description="Texts that end the answer.")
    stop_token_ids: list[int] | None = Field(None, description="Tokens that end the answer.")
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Tell how likely the prompt's tokens were, in vLLM's shape, and so many others.",
    )
    logit_bias: dict[str, float | bool] | list[list[Any]] | None = Field(
        None, description="Added to the logits of tokens, by id; llama-server's list of pairs may name texts too."
    )
    json_schema: dict[str, Any] | None = Field(None, description="A JSON schema that the answer keeps to.")
    session: str | int | None = Field(None, description="Names a conversation, whose cached sequence is preferred.")
    cache_scope: str | int | None = Field(
        None, description="Divides what this API key has cached; a client without a key has no say in it."
    )
    cache_salt: str | None = Field(None, description="vLLM's name for `cache_scope`.")
    priority: int | None = Field(
        None, ge=-1_000_000, le=1_000_000, description="Lower goes first; at least what the API key begins with."
    )
    timeout: float | None = Field(None, ge=0, le=1e9, description="Time for the whole request, in seconds.")
    return_progress: bool | None = Field(None, description="Tell in the stream how much of the prompt has been read.")
    sse_ping_interval: int | None = Field(
        None, ge=-1, le=86400, description="Seconds of silence before a keep-alive comment; -1 never sends one."
    )


def read(model: type[B], body: dict[str, Any]) -> B:
    """A body, checked.

    Args:
        model: what it must be.
        body: the object that came in.

    Returns:
        The request; what was null is not set.

    Raises:
        HttpError: 400 for what is wrong, naming the field; 501 for what is known and not served.

    Example:
        >>> read(CompletionRequest, {"prompt": "Hello", "max_tokens": 5}).max_tokens
        5
    """
    given = {name: value for name, value in body.items() if value is not None or not _is_known(model, name)}
    _check_names(model, given, "")
    served = {name: value for name, value in given.items() if name not in model.unserved}
    try:
        return model.model_validate(served)
    except ValidationError as error:
        raise _explained(error) from None
    except RecursionError:
        raise HttpError(400, "the body is nested too deeply", code="invalid_json") from None


def _is_known(model: type[Body], name: str) -> bool:
    return name in model.model_fields or name in model.unserved


def _check_names(model: type[Body], given: Mapping[str, Any], within: str) -> None:
    for name, value in given.items():
        if name in model.model_fields:
            continue
        path = within + _plain(name)
        if name in model.unserved:
            neutral, why = model.unserved[name]
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise not_served(path, why)
            continue
        near = get_close_matches(name[:64], [*model.model_fields, *model.unserved], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise HttpError(400, f"unknown field {path!r}{hint}", code="unknown_field", param=path)


def nested(model: type[B], value: Any, within: str) -> B:
    """An object inside a body, checked as `read` does it.

    Args:
        model: what it must be.
        value: the object.
        within: the field that holds it.
    """
    if not isinstance(value, dict):
        raise HttpError(400, f"{within!r} must be an object", code="invalid_value", param=within)
    given = {name: each for name, each in value.items() if each is not None or not _is_known(model, name)}
    _check_names(model, given, f"{within}.")
    served = {name: each for name, each in given.items() if name not in model.unserved}
    try:
        return model.model_validate(served)
    except ValidationError as error:
        raise _explained(error, within) from None


def _plain(name: str) -> str:
    """A name as a message may repeat it."""
    return name if len(name) <= 64 else name[:63] + "…"


def _explained(error: ValidationError, within: str = "") -> HttpError:
    """The first thing that is wrong, without repeating what the client sent."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # What follows the field names members of a union, which no client knows, and places in lists.
    field, *rest = first["loc"]
    place = [str(part) for part in (field, *rest) if part is field or isinstance(part, int)]
    path = ".".join(([within] if within else []) + place)
    return HttpError(400, f"{_plain(path)!r}: {first['msg']}", code="invalid_value", param=_plain(path))


def engine_options(request: GenerationBody) -> dict[str, Any]:
    """The engine's options among the fields, as far as they are given and mean the same everywhere.

    Args:
        request: the request.

    Returns:
        The options of `Engine.generate`, by the names that the client used.

    Raises:
        HttpError: an option is given by two names.
    """
    given = request.model_fields_set
    options: dict[str, Any] = {name: getattr(request, name) for name in ENGINE_FIELDS if name in given}
    options = {name: value for name, value in options.items() if value is not None}
    if request.n is not None:
        options["n"] = request.n
    if request.seed is not None and request.seed != -1:
        options["seed"] = request.seed
    if request.stop:
        options["stop"] = request.stop
    if request.stop_token_ids is not None:
        options["stop_token_ids"] = request.stop_token_ids
    if request.prompt_logprobs is not None:
        options["prompt_logprobs"] = request.prompt_logprobs
    if request.logit_bias is not None:
        options["logit_bias"] = _biases(request.logit_bias)
    if request.json_schema is not None:
        options["json_schema"] = request.json_schema
    if request.timeout is not None:
        options["timeout"] = request.timeout
    return options


def _biases(given: Mapping[str, float | bool] | list[list[Any]]) -> dict[int | str, float | bool]:
    """Biases by token or text. The keys of an object are ids where they look like ids, as OpenAI has them."""
    if isinstance(given, Mapping):
        return {int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else key: value
                for key, value in given.items()}  # fmt: skip
    biases: dict[int | str, float | bool] = {}
    for place, pair in enumerate(given):
        ok = len(pair) == 2 and isinstance(pair[0], int | str) and isinstance(pair[1], int | float)
        if not ok or isinstance(pair[0], bool):
            name = f"logit_bias.{place}"
            raise HttpError(400, f"{name!r} must be a token or text, and a number", code="invalid_value", param=name)
        biases[pair[0]] = pair[1]
    return biases
