"""Flags made from the option tables."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_batch.types import OptionSpec

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # which older versions of click do not subscript

NONE_WORDS = ("none", "auto")
_ENDLESS = 1e6
_ONE_OR_SEVERAL = "str | Sequence[str]"
_PAIRS = "Mapping[int | str, float]"
"""Flags that are given once for each."""

# The tables speak to Python; this is how the same is said on a command line, in this order.
_PHRASES = (
    (r"[;.] None means as the engine[^.]*\.", "."),  # the engine's default is shown instead
    (r" \(True\)| None means True\.", ""),
    (r'"balanced", or a callable', 'or "balanced"'),
    (r"raises `QueueFullError`", "fails the request"),
    (r"which the completion reports", "which a batch job's answer tells"),
    (r"Text, or several texts, that end", "Text that ends"),
    (
        r", each named by its id, or by a text that it is a part of; -inf or False bans",
        " by id or text, as 15:-2.5 or hello:-inf; may be given several times",
    ),
    (r"where they appear in it, also over token borders", "where it appears in it; may be given several times"),
    (r"`(\w+)=False`", r"`no_\1`"),
    (r'`(\w+)="(\w+)"`', r"`\1` \2"),
)
_NONE_IS_THE_DEFAULT = (
    (r"None draws one", "by default one is drawn"),
    (r"None chooses", "by default chosen"),
    (r"None lets (\S+) decide", r"by default \1 decides"),
    (r"(?<=\. )None (?:means|takes|is)", "By default"),
    (r"None (?:means|takes|is)", "by default"),
)


class Flag(click.Option):
    """A flag that knows under which heading the help shows it."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Nothing: the text of the help has the default and the range."""
        del ctx
        return {}


def flags_in(section: str) -> Callable[..., Flag]:
    """What makes flags that the help shows under one heading: of their names, and what `Flag` takes."""
    return lambda *names, **kwargs: Flag(list(names), section=section, **kwargs)


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


class Number(_ParamType):
    """A number in a range, whose mistakes are told in plain words."""

    def __init__(self, kind: type[int | float], low: float | None = None, high: float | None = None) -> None:
        """Make the type.

        Args:
            kind: `int` or `float`.
            low: The smallest number accepted; None accepts any.
            high: The largest number accepted; None accepts any.
        """
        self.kind = kind
        self.low, self.high = (None if bound is None else kind(bound) for bound in (low, high))
        self.name = "whole number" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a word."""
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is not a {self.name}", param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a {self.name}", param, ctx)
        if self.low is not None and number < self.low:
            self.fail(f"{value} is less than {_shown(self.low)}", param, ctx)
        if self.high is not None and number > self.high:
            self.fail(f"{value} is more than {_shown(self.high)}", param, ctx)
        return number


class Pair(_ParamType):
    """A token's id, or text, and a number."""

    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a word."""
        if not isinstance(value, str):
            return value
        token, colon, number = value.rpartition(":")
        if not colon or not token:
            self.fail(f"{value!r} is not TOKEN:X", param, ctx)
        try:
            return (int(token) if token.isdecimal() else token, float(number))
        except ValueError:
            self.fail(f"{number!r} is not a number", param, ctx)


class _OrNone(_ParamType):
    """A value of another type, or one of the words for None."""

    def __init__(self, inner: _ParamType) -> None:
        self.inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() in NONE_WORDS:
            return _NONE
        return self.inner.convert(value, param, ctx)


class _List(_ParamType):
    """Values separated by commas."""

    def __init__(self, inner: _ParamType) -> None:
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
    tables: Iterable[tuple[str, Mapping[str, OptionSpec]]], defaults: Mapping[str, object]
) -> Callable[[click.Command], click.Command]:
    """A decorator that gives a command the flags of option tables.

    Args:
        tables: A heading and a table each; of an option that several have, the first makes the flag, and the help
            shows the first default that is not None.
        defaults: What the help shows instead, where the command has a default of its own.
    """
    flags: dict[str, tuple[OptionSpec, str]] = {}
    shown = dict(defaults)
    for section, table in tables:
        for spec in table.values():
            if spec.type.startswith("Sampler"):
                continue  # a callable
            flags.setdefault(spec.name, (spec, section))
            if spec.default is not None:
                shown.setdefault(spec.name, spec.default)

    def decorate(command: click.Command) -> click.Command:
        command.params += [_flag(spec, section, shown.get(name)) for name, (spec, section) in flags.items()]
        return command

    return decorate


def given(ctx: click.Context, table: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """The options of a table that the command line gave, by name."""
    # A flag that may be given several times is an empty tuple where it was not.
    values = {name: ctx.params[name] for name in table if ctx.params.get(name) not in (None, ())}
    pairs = {name for name, spec in table.items() if spec.type.startswith(_PAIRS)}
    values = {name: dict(value) if name in pairs else value for name, value in values.items()}
    return {name: None if value is _NONE else value for name, value in values.items()}


def _flag(spec: OptionSpec, section: str, default: object) -> Flag:
    """One option's flag, whose help shows a default."""
    words = [word.replace("_", "-") for word in (spec.name, *spec.aliases)]
    text = _help(spec, default)
    if spec.type.removesuffix(" | None") == "bool":
        declared = [f"--{word}/--{word[3:] if word.startswith('no-') else f'no-{word}'}" for word in words]
        return Flag([spec.name, *declared], default=None, help=text, section=section)
    declared = [f"--{word}" for word in words]
    base = spec.type.removesuffix(" | None")
    several = base in {_ONE_OR_SEVERAL, _PAIRS}
    kind = Pair() if base == _PAIRS else click.STRING if several else _type(spec)
    return Flag(
        [spec.name, *declared],
        default=None,
        type=kind,
        multiple=several,
        help=text,
        section=section,
        metavar=_meta(spec),
    )


def _type(spec: OptionSpec) -> _ParamType:
    """What its words are read as; a number's range is checked at once, everything else by the engine."""
    base = spec.type.removesuffix(" | None")
    kind: _ParamType
    if spec.choices:
        return click.Choice(spec.choices)
    if base.startswith("Sequence["):
        number = {"Sequence[float]": float, "Sequence[int]": int}.get(base)
        kind = click.STRING if number is None else Number(number, spec.minimum, spec.maximum)
        kind = _List(kind)
    elif base in {"int", "float"}:
        kind = Number(int if base == "int" else float, spec.minimum, spec.maximum)
    else:
        kind = click.STRING
    return _OrNone(kind) if spec.optional else kind


def _meta(spec: OptionSpec) -> str | None:
    if spec.choices:
        return None
    base = spec.type.removesuffix(" | None")
    if base.startswith("Sequence["):
        return "A,B,..."
    if base == _PAIRS:
        return "TOKEN:X"
    return {"int": "N", "float": "X"}.get(base, "TEXT") if not spec.unit else spec.unit.upper()


def _help(spec: OptionSpec, default: object) -> str:
    """The table's text with a default, in the words of a command line."""
    facts = [] if default is None else [f"default: {_shown(default)}"]
    if spec.minimum is not None and spec.maximum is not None and spec.maximum < _ENDLESS:
        facts.append(f"{spec.minimum:g} to {spec.maximum:g}")
    text = spec.doc
    for pattern, said in (*_PHRASES, *(_NONE_IS_THE_DEFAULT if spec.default is None else ())):
        text = re.sub(pattern, said, text)
    text = text.replace("(False)", f"(`no_{spec.name}`)").replace("None", NONE_WORDS[0])
    text = re.sub(r"`([^`]*)`", _as_flags, text)
    return f"{text} [{'; '.join(facts)}]" if facts else text


def _as_flags(code: re.Match[str]) -> str:
    """Code with options in it, as flags; what is called, such as `min(`, is none."""
    return re.sub(r"\b[a-z]\w*\b(?!\()", lambda name: f"--{name[0].replace('_', '-')}", code[1])


def _shown(value: object) -> object:
    """A default as a command line writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else value
