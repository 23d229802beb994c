"""Engines' metrics as a Prometheus scrape: vLLM's words and buckets under `llama_batch_`.

Nothing has to run for it and nothing is installed for it: the engines measure all the time, and a scrape is read from
them when it is asked for. Any web framework can serve it:

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(prometheus.render(engine), media_type=prometheus.CONTENT_TYPE)

Each series has the labels `model_name` and `engine`, the engine's place in the scrape, as in vLLM. Names and meanings
are those of `llama_batch.metrics.Metrics` and vLLM's, with these differences:

- `kv_cache_usage_perc` is what running requests hold, from 0 to 1: what is only cached gives way to them.
- `iteration_tokens` ends in `_total` in vLLM, which Prometheus keeps for counters; it does so under `vllm:` here too.
- `request_success_total` counts all that ended, as vLLM does: "stop" (eog, stop), "length" (max_tokens, context_full),
  "abort" (cancelled), "error" (time-outs too); `requests_finished_total` tells them apart.

Example:
    >>> from llama_batch import prometheus
    >>> print(prometheus.render(engine, model_name="smollm2", compat="vllm"))
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import llama_batch
from llama_batch._families import FAMILIES, LLAMACPP
from llama_batch.engine import Engine
from llama_batch.errors import LlamaBatchError, OptionError
from llama_batch.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_batch._families import Kind, Samples
    from llama_batch.metrics import Metrics

__all__ = ["CONTENT_TYPE", "Compat", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of a scrape."""

Compat: TypeAlias = Literal["vllm", "llamacpp"]
"""Whose names a scrape holds as well."""


def render(
    engines: Engine | Iterable[Engine],
    *,
    model_name: str | Sequence[str] | None = None,
    compat: Compat | None = None,
) -> str:
    """Write what engines measured in Prometheus' text format. Never waits for an engine, whatever its state.

    Args:
        engines: one or several. Their places are their `engine` labels: keep the order from scrape to scrape.
        model_name: the label `model_name`: one for all, or one for each; None takes each engine's name.
        compat: other names for the same, beside ours, so that dashboards and routers made for them work: "vllm" with
            `vllm:`, and "llamacpp" with llama-server's names, which have no labels, over all engines. Their colons are
            nothing that `promtool check metrics` likes.

    Returns:
        The scrape; its media type is `CONTENT_TYPE`. Empty without engines.

    Raises:
        OptionError: an argument is none of these, or there are more or fewer names than engines.
        EngineForkedError: an engine lives in the process that this one was forked from.

    Example:
        >>> text = render([small, large], model_name=["smollm2", "gemma"])
    """
    if compat is not None and compat not in get_args(Compat):
        raise OptionError(f"compat must be one of {', '.join(get_args(Compat))} or None, not {compat!r}")
    scraped = list(_scrape(engines, model_name))
    lines: list[str] = []
    for family in FAMILIES:
        lines += _family(f"llama_batch_{family.name}", family.kind, family.help, scraped, family.read)
    lines += _info(scraped)
    if compat == "vllm":
        for family in FAMILIES:
            if family.vllm:
                lines += _family(f"vllm:{family.vllm}", family.kind, family.help, scraped, family.read)
    if compat == "llamacpp" and scraped:
        every = [one.metrics for one in scraped]
        for name, kind, text, total in LLAMACPP:
            lines += [*_head(f"llamacpp:{name}", kind, text), f"llamacpp:{name} {_number(total(every))}"]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class _Scraped:
    """One engine in a scrape: its labels as they are written, its figures, its own name, and what its model is."""

    labels: str
    metrics: Metrics
    name: str
    model: str


def _scrape(engines: object, model_name: object) -> Iterator[_Scraped]:
    several = [engines] if isinstance(engines, Engine) else engines
    if not isinstance(several, Iterable):
        raise OptionError(f"engines must be an Engine or several, not {type(engines).__name__}")
    listed = list(several)
    for engine in listed:
        if not isinstance(engine, Engine):
            raise OptionError(f"engines holds {type(engine).__name__}, which is no Engine")
    for place, (engine, name) in enumerate(zip(listed, _model_names(model_name, listed), strict=True)):
        model = ""
        with suppress(LlamaBatchError):  # there is none yet, or none any more
            model = engine.model.description
        labels = _written({"model_name": name, "engine": str(place)})
        yield _Scraped(labels, engine.metrics(), engine.name, model)


def _model_names(given: object, engines: Sequence[Engine]) -> list[str]:
    if given is None:
        return [engine.name for engine in engines]
    if isinstance(given, str):
        return [given] * len(engines)
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray) else [given]
    names = [name for name in several if isinstance(name, str)]
    if len(names) != len(several):
        raise OptionError(f"model_name must be text, or one for each engine, not {given!r}")
    if len(names) != len(engines):
        raise OptionError(f"model_name has {len(names)} names for {len(engines)} engines")
    return names


def _info(scraped: Sequence[_Scraped]) -> Iterator[str]:
    name = "llama_batch_engine_info"
    if scraped:
        yield from _head(name, "gauge", "What an engine is: its name, its model, the version of llama-batch.")
    for one in scraped:
        labels = _written({"name": one.name, "model": one.model, "version": llama_batch.__version__})
        yield f"{name}{{{one.labels},{labels}}} 1"


def _family(name: str, kind: Kind, text: str, scraped: Sequence[_Scraped], read: Samples) -> Iterator[str]:
    if scraped:
        yield from _head(name, kind, text)
    for one in scraped:
        for others, value in read(one.metrics):
            labels = f"{one.labels},{_written(others)}" if others else one.labels
            if isinstance(value, Histogram):
                yield from _histogram(name, labels, value)
            else:
                yield f"{name}{{{labels}}} {_number(value)}"


def _head(name: str, kind: Kind, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    below = 0
    bounds = [*(repr(float(bound)) for bound in histogram.buckets), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels},le="{bound}"}} {below}'
    yield f"{name}_sum{{{labels}}} {_number(histogram.sum)}"
    yield f"{name}_count{{{labels}}} {below}"


def _written(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """What a quoted label can hold: any text in UTF-8, but no NUL, at which Prometheus would stop reading."""
    plain = value.replace("\0", "?").encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
