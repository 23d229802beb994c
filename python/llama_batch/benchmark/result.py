"""A finished measurement: what was measured, how, each request, and the figures; as JSON and back."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from llama_batch.benchmark.arrivals import ClosedLoop
from llama_batch.benchmark.errors import BenchmarkError
from llama_batch.benchmark.figures import Figures, figures_of
from llama_batch.benchmark.record import Record
from llama_batch.benchmark.slo import Slo

if TYPE_CHECKING:
    from pathlib import Path

    from llama_batch.benchmark.driver import Run

__all__ = ["SCHEMA", "VERSION", "Result"]

SCHEMA = "llama-batch/bench"
VERSION = 1
"""Changes when a field of the file is renamed, removed, or means something else; new fields do not change it."""

LATE_MS = 20.0
BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Result:
    """A finished measurement.

    Attributes:
        label: its name in reports.
        measured_at: when it began, in ISO 8601, UTC.
        target: who answered: `kind` (`engine` or `url`), `model`, and what it was told.
        workload: what was asked.
        arrivals: when: `kind` (`closed`, `poisson`, `trace`) and its numbers.
        machine: where the client ran.
        interrupted: whether it was stopped before its end.
        n_planned: requests that were to be asked.
        notes: what whoever reads the figures has to know, in sentences.
        records: how each request went. Unit of their times: seconds from the start.
        slo: what counts as a good request.
        cpu_share: CPU time of the client over the time of the run (1 is one core); None where the engine is in the same
            process.
    """

    label: str
    measured_at: str
    target: dict[str, Any]
    workload: dict[str, Any]
    arrivals: dict[str, Any]
    machine: dict[str, Any]
    interrupted: bool
    n_planned: int
    notes: tuple[str, ...]
    records: tuple[Record, ...]
    slo: Slo | None = None
    cpu_share: float | None = None

    @property
    def figures(self) -> Figures:
        """The figures, computed from the records."""
        return figures_of(self.records, self.slo)

    @classmethod
    def of(
        cls,
        run: Run,
        *,
        label: str = "",
        target: dict[str, Any] | None = None,
        workload: dict[str, Any] | None = None,
        slo: Slo | None = None,
        notes: tuple[str, ...] = (),
    ) -> Result:
        """Make one of a run.

        Args:
            run: how it went.
            label: its name in reports.
            target: who answered.
            workload: what was asked.
            slo: what counts as a good request.
            notes: what the caller has to say.

        Returns:
            The result.
        """
        target = target or {}
        seconds = run.ended - run.started
        cpu_share = run.cpu_s / seconds if target.get("kind") == "url" and seconds > 0 else None
        records = tuple(_from_start(record, run.started) for record in run.records)
        return cls(
            label=label,
            measured_at=datetime.fromtimestamp(datetime.now(UTC).timestamp() - seconds, UTC).isoformat("T", "seconds"),
            target=target,
            workload=workload or {},
            arrivals=run.arrivals.describe(),
            machine={"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
            interrupted=run.interrupted,
            n_planned=run.n_planned,
            notes=(*notes, *_notes(run, figures_of(records), cpu_share)),
            records=records,
            slo=slo,
            cpu_share=cpu_share,
        )

    def to_json(self) -> dict[str, Any]:
        """Itself as `docs/benchmarking.md` describes the file. Unit of all times: milliseconds from the start."""
        kept = {name: getattr(self, name) for name in _PLAIN}
        figures = asdict(self.figures)
        return {
            "schema": SCHEMA,
            "version": VERSION,
            **kept,
            "notes": list(self.notes),
            "slo": None if self.slo is None else dict(self.slo.bounds),
            "figures": _rounded(figures),
            "requests": [_record_out(record) for record in self.records],
        }

    @classmethod
    def from_json(cls, kept: Any) -> Result:
        """Read what `to_json` wrote.

        Args:
            kept: the object.

        Returns:
            The result; its figures are computed from its records again.

        Raises:
            BenchmarkError: it is something else, or of a version that this one does not know.
        """
        if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
            raise BenchmarkError("not a result of llama-batch bench")
        if kept.get("version") != VERSION:
            raise BenchmarkError(f"a result of version {kept.get('version')!r}; this release reads {VERSION}")
        try:
            slo = None if kept["slo"] is None else Slo({str(k): float(v) for k, v in kept["slo"].items()})
            records = tuple(_record_in(each) for each in kept["requests"])
            plain = {name: kept[name] for name in _PLAIN}
            for name, kind in _KINDS.items():
                if not isinstance(plain[name], kind):
                    raise TypeError(f"{name} is {type(plain[name]).__name__}")
            return cls(**plain, notes=tuple(map(str, kept["notes"])), records=records, slo=slo)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else error
            raise BenchmarkError(f"a damaged result of llama-batch bench: {missing}") from None

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a file.

        Args:
            path: the file.

        Raises:
            BenchmarkError: it cannot be read, or is none of this release's results.
        """
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise BenchmarkError(f"{path}: {error.strerror or error}") from None
        except (BenchmarkError, ValueError) as error:
            what = error if isinstance(error, BenchmarkError) else "not a result of llama-batch bench: no JSON"
            raise BenchmarkError(f"{path}: {what}") from None


_KINDS: dict[str, type] = {
    "label": str,
    "measured_at": str,
    "target": dict,
    "workload": dict,
    "arrivals": dict,
    "machine": dict,
    "interrupted": bool,
    "n_planned": int,
}
_PLAIN = (*_KINDS, "cpu_share")


def _from_start(record: Record, start: float) -> Record:
    kept = Record(record.conversation, record.turn, record.due - start)
    for name in ("n_prompt", "n_output", "n_cached", "queue_ms", "finish_reason", "failure"):
        setattr(kept, name, getattr(record, name))
    kept.sent, kept.ended = record.sent - start, record.ended - start
    kept.deliveries = [at - start for at in record.deliveries]
    return kept


def _record_out(record: Record) -> dict[str, Any]:
    return {
        "conversation": record.conversation,
        "turn": record.turn,
        "due_ms": _ms(record.due),
        "sent_ms": _ms(record.sent),
        "ended_ms": _ms(record.ended),
        "deliveries_ms": [_ms(at) for at in record.deliveries],
        "prompt_tokens": record.n_prompt,
        "output_tokens": record.n_output,
        "cached_tokens": record.n_cached,
        "queue_ms": record.queue_ms,
        "finish_reason": record.finish_reason,
        "failure": record.failure,
    }


def _record_in(kept: dict[str, Any]) -> Record:
    return Record(
        conversation=int(kept["conversation"]),
        turn=int(kept["turn"]),
        due=kept["due_ms"] / 1e3,
        sent=kept["sent_ms"] / 1e3,
        ended=kept["ended_ms"] / 1e3,
        deliveries=[at / 1e3 for at in kept["deliveries_ms"]],
        n_prompt=kept["prompt_tokens"],
        n_output=kept["output_tokens"],
        n_cached=kept["cached_tokens"],
        queue_ms=kept["queue_ms"],
        finish_reason=kept["finish_reason"],
        failure=kept["failure"],
    )


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _rounded(value: Any) -> Any:
    """Numbers as long as they mean something."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _notes(run: Run, figures: Figures, cpu_share: float | None) -> tuple[str, ...]:
    """What whoever reads the figures has to know."""
    notes = []
    if isinstance(run.arrivals, ClosedLoop):
        notes.append(
            f"Closed loop of {run.arrivals.concurrency}: clients ask again when they are answered, so a target that "
            "stalls is asked less, and latencies are not those of independent users (--rate measures these). The "
            f"longest silence was {figures.longest_silence_ms:.0f} ms."
        )
    if run.interrupted:
        notes.append(f"Interrupted after {figures.n_requests} of {run.n_planned} requests.")
    elif figures.n_requests < run.n_planned:
        notes.append(f"{run.n_planned - figures.n_requests} of {run.n_planned} requests were not asked.")
    if figures.n_without_usage:
        notes.append(f"The server did not count the tokens of {figures.n_without_usage} requests: they are in no rate.")
    if figures.late_ms is not None and figures.late_ms.p99 > LATE_MS:
        notes.append(
            f"The client sent late (p99 {figures.late_ms.p99:.0f} ms): it is overloaded, or --concurrency held "
            "requests back. Latencies count from when requests were due."
        )
    if cpu_share is not None and cpu_share > BUSY:
        notes.append(f"The client took {cpu_share:.0%} of a core: it may be what is measured.")
    return tuple(notes)
