"""Schemas as Python has them, and the values that answers to them are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_batch.types import Completion

    Parser: TypeAlias = Callable[[str], Any]

_VALUES = ("const", "default", "enum", "examples")
"""What holds values and no schemas."""


def settle(options: dict[str, Any]) -> tuple[dict[str, Any], Parser | None]:
    """A schema as JSON text, whatever it was given as, and what turns an answer into a value.

    Args:
        options: as the caller gave them.

    Returns:
        The options, and the parser; None where there is no schema, or free text may stand before what keeps to it.

    Raises:
        OptionError: the schema cannot be written as JSON.
    """
    schema: Any = options.get("json_schema")
    if schema is None:
        return options, None
    import json

    parser: Parser = _value
    try:
        if hasattr(schema, "model_json_schema"):
            text, parser = json.dumps(_closed(schema.model_json_schema())), schema.model_validate_json
        elif hasattr(schema, "json_schema") and hasattr(schema, "validate_json"):  # a TypeAdapter of pydantic
            text, parser = json.dumps(_closed(schema.json_schema())), schema.validate_json
        elif isinstance(schema, Mapping):
            text = json.dumps(schema, allow_nan=False, default=dict)
        else:
            return options, parser if isinstance(schema, str) and not options.get("grammar_triggers") else None
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"json_schema cannot be written as JSON: {error}") from error
    return {**options, "json_schema": text}, None if options.get("grammar_triggers") else parser


def with_parser(completion: Completion[Any], parser: Parser) -> Completion[Any]:
    """A completion that knows how its answers become values.

    Args:
        completion: as the engine made it.
        parser: what turns text into a value.

    Returns:
        The completion.
    """
    from dataclasses import replace

    others = tuple(replace(other, parser=parser) for other in completion.others)
    return replace(completion, parser=parser, others=others)


def _value(text: str) -> Any:
    import json

    return json.loads(text)


def _closed(schema: Any) -> Any:
    """The schema of a class, without properties that the class would throw away: a small model goes on adding them."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key in _VALUES else _closed(value) for key, value in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
