"""Flags made from the option tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_batch.types import OptionSpec

NONE_WORDS = ("none", "auto")
_ENDLESS = 1e6


class Flag(click.Option):
    """A flag that knows under which heading the help shows it."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Nothing: the text of the help has the default and the range."""
        del ctx
        return {}


class Command(click.Command):
    """A command whose help shows its flags under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, each under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=32)


class _OrNone(click.ParamType[Any]):
    """A value of another type, or one of the words for None."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() in NONE_WORDS:
            return _NONE
        return self.inner.convert(value, param, ctx)


class _List(click.ParamType[Any]):
    """Values separated by commas."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = f"{inner.name},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return [self.inner.convert(word.strip(), param, ctx) for word in value.split(",") if word.strip()]


class _None:
    """Stands for None where click would take None for nothing given."""

    def __repr__(self) -> str:
        return "none"


_NONE = _None()


def flags_of(
    tables: Iterable[tuple[str, Mapping[str, OptionSpec]]],
) -> Callable[[click.Command], click.Command]:
    """A decorator that gives a command the flags of option tables.

    Args:
        tables: A heading and a table each; of an option that several have, the first makes the flag.
    """

    def decorate(command: click.Command) -> click.Command:
        known: set[str] = set()
        for section, table in tables:
            for spec in table.values():
                if spec.name not in known:
                    command.params.append(_flag(spec, section))
                known.add(spec.name)
        return command

    return decorate


def given(ctx: click.Context, table: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """The options of a table that the command line gave, by name."""
    values = {name: ctx.params[name] for name in table if ctx.params.get(name) is not None}
    return {name: None if value is _NONE else value for name, value in values.items()}


def _flag(spec: OptionSpec, section: str) -> Flag:
    """One option's flag."""
    words = [spec.name, *(alias for alias in spec.aliases)]
    if spec.type.removesuffix(" | None") == "bool":
        declared = [f"--{word.replace('_', '-')}/--no-{word.replace('_', '-')}" for word in words]
        return Flag([spec.name, *declared], default=None, help=_help(spec), section=section)
    declared = [f"--{word.replace('_', '-')}" for word in words]
    kind = _type(spec)
    return Flag([spec.name, *declared], default=None, type=kind, help=_help(spec), section=section, metavar=_meta(spec))


def _type(spec: OptionSpec) -> click.ParamType[Any]:
    """What its words are read as; a number's range is checked at once, everything else by the engine."""
    base = spec.type.removesuffix(" | None")
    low, high = spec.minimum, spec.maximum
    kind: click.ParamType[Any]
    if spec.choices:
        return click.Choice(spec.choices)
    if base.startswith("Sequence["):
        kind = _List(click.FLOAT if "float" in base else click.STRING)
    elif base == "int":
        kind = click.IntRange(None if low is None else int(low), None if high is None else int(high))
    elif base == "float":
        kind = click.FloatRange(low, high)
    else:
        kind = click.STRING
    return _OrNone(kind) if spec.optional else kind


def _meta(spec: OptionSpec) -> str | None:
    if spec.choices:
        return None
    base = spec.type.removesuffix(" | None")
    if base.startswith("Sequence["):
        return "A,B,..."
    return {"int": "N", "float": "X"}.get(base, "TEXT") if not spec.unit else spec.unit.upper()


def _help(spec: OptionSpec) -> str:
    """The table's text with the default, in the words of a command line."""
    facts = [] if spec.default is None else [f"default: {_shown(spec.default)}"]
    if spec.minimum is not None and spec.maximum is not None and spec.maximum < _ENDLESS:
        facts.append(f"{spec.minimum:g} to {spec.maximum:g}")
    return f"{spec.doc} [{'; '.join(facts)}]" if facts else spec.doc


def _shown(value: object) -> object:
    """A default as a command line writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else value
