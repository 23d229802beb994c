"""What becomes of the arguments of other projects' classes: one table for each, which the code and the docs share.

Example:
    >>> TABLE = table(honoured("n_ctx", "as there"), refused("lora_path", "merge the adapter into the model", None))
    >>> check("Llama", TABLE, {"n_ctx": 512, "lora_path": None})
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = (bool, int, float, str, list, tuple, dict, set)
"""What can be compared with a default; others may answer a comparison with anything."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of another project's class.

    Attributes:
        name: the argument.
        fate: "honoured"; "no meaning" (whatever its value is, there is nothing here that it could change); "refused"
            (only the values in `accepted` are taken, which ask for nothing).
        text: what it does here, why it has no meaning, or what to use instead.
        becomes: the option of the engine that takes its value as it is, unless that is None.
        accepted: of a refused one, its defaults.
    """

    name: str
    fate: Literal["honoured", "no meaning", "refused"]
    text: str
    becomes: str = ""
    accepted: tuple[Any, ...] = ()


Table: TypeAlias = "Mapping[str, Argument]"
"""The arguments of one callable, by name."""


def honoured(name: str, text: str = "as there", *, becomes: str = "") -> Argument:
    """An argument that does here what it does there.

    Args:
        name: the argument.
        text: what it does here.
        becomes: the option of the engine that takes its value.
    """
    return Argument(name, "honoured", text, becomes)


def free(name: str, text: str) -> Argument:
    """An argument that has no meaning here, whatever its value is.

    Args:
        name: the argument.
        text: why.
    """
    return Argument(name, "no meaning", text)


def refused(name: str, text: str, *accepted: Any) -> Argument:
    """An argument that is not supported.

    Args:
        name: the argument.
        text: what to use instead.
        accepted: its defaults, which ask for nothing.
    """
    return Argument(name, "refused", text, accepted=accepted)


def table(*arguments: Argument) -> dict[str, Argument]:
    """A table of arguments, by name.

    Args:
        arguments: the rows.
    """
    return {argument.name: argument for argument in arguments}


def check(where: str, arguments: Table, given: Mapping[str, Any]) -> None:
    """Refuse what is not supported.

    Args:
        where: the callable, for messages.
        arguments: its table.
        given: what the caller gave.

    Raises:
        OptionError: an argument is not supported, and its value is not its default; or there is no such argument.

    Example:
        >>> check("Llama", TABLE, {"lora_path": "adapter.gguf"})
        Traceback (most recent call last):
        llama_batch.errors.OptionError: Llama: lora_path='adapter.gguf' is not supported: merge the adapter ...
    """
    for name, value in given.items():
        row = arguments.get(name)
        if row is None:
            near = get_close_matches(name, arguments, 1)
            raise OptionError(f"{where} has no argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if row.fate == "refused" and not any(_is_same(value, default) for default in row.accepted):
            raise OptionError(f"{where}: {name}={_shown(value)} is not supported: {row.text}")


def renamed(arguments: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the engine that take a value as it is.

    Args:
        arguments: the table.
        given: what the caller gave.

    Returns:
        Values that are not None, by the names that the engine has for them.

    Example:
        >>> renamed(COMPLETION, {"repeat_penalty": 1.1})
        {'penalty_repeat': 1.1}
    """
    rows = ((arguments[name].becomes, value) for name, value in given.items() if name in arguments)
    return {becomes: value for becomes, value in rows if becomes and value is not None}


def markdown(title: str, arguments: Table) -> str:
    """A table as the docs have it.

    Args:
        title: the heading.
        arguments: the table.

    Returns:
        Markdown.
    """
    lines = [f"### `{title}`", "", "| Argument | | What it does here, or what to use instead |", "|---|---|---|"]
    for row in arguments.values():
        values = ", ".join(f"`{default!r}`" for default in row.accepted).replace("|", "\\|")
        fate = f"refused, unless {values}" if row.accepted else row.fate
        lines.append(f"| `{row.name}` | {fate} | {row.text} |")
    return "\n".join(lines)


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, _PLAIN) and isinstance(default, _PLAIN) and value == default)


def _shown(value: Any) -> str:
    """A value in a message, short."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever the caller's class does, the message has to come
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
