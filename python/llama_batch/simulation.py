"""The engine's scheduler over a simulated model, in virtual time.

The same code decides as in an `Engine`; only the forward passes are simulated: they take as long as a latency model
says, without anybody waiting for them. Seconds of computation tell how hours of load would go, and property tests can
interleave submissions, cancellations, time-outs and faults in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from llama_batch import _core
from llama_batch._source import sim_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_batch._options import RequestOptions, StartOptions

__all__ = ["Fault", "Simulation", "SimulationEvent"]

Fault = Literal[
    "kv_full", "fail", "refuse_copy", "refuse_trim", "refuse_save", "refuse_restore", "refuse_open", "fail_draw"
]


@dataclass(frozen=True, slots=True)
class SimulationEvent:
    """Something that the scheduler told.

    Attributes:
        name: as in `llama_batch.telemetry`, or "chunk" for tokens on their way to a caller.
        measurements: numbers, by name.
        metadata: what they belong to, by name.
    """

    name: str
    measurements: Mapping[str, float]
    metadata: Mapping[str, Any]


class Simulation:
    """A scheduler, a simulated model and a clock that moves only as passes take their time, or when told to.

    Args:
        model: a `sim:` URI with settings of the simulated model: `pass_ms` and `row_ms` (how long a forward pass
            takes, whatever is in it and for each row), `decode_row_ms` (beyond that, for each row of a request that
            generates), `context_ms` (for each 1,000 tokens that a row attends to), `noise` (by how much equal passes
            differ, up and down, per mille), `eog_every` (one in so many tokens ends an answer; 0: none does),
            `repeat` (how often a token depends on the one before it alone, so that texts repeat themselves, per mille),
            `memory` (`full`, `recurrent`, `hybrid` or `window:TOKENS`), `seed`, `n_vocab`, and chances of faults per
            mille by their names.
        **options: start options of an `Engine`; `batch_strategy` as a word.

    Raises:
        OptionError: an option or setting is unknown, of the wrong type, or out of range.

    Example:
        How long do 100 requests take on 8 slots, if a pass takes 20 ms and 2 ms for each row?

        >>> simulation = Simulation("sim:?pass_ms=20&row_ms=2", n_parallel=8, max_queue=0)
        >>> ids = [simulation.submit(range(20, 120), max_tokens=50) for _ in range(100)]
        >>> simulation.run()
        True
        >>> seconds = simulation.now
    """

    def __init__(self, model: str = "sim:", **options: Unpack[StartOptions]) -> None:
        self._inner = _core.Simulation(dict(options), sim_settings(model))

    @property
    def now(self) -> float:
        """The virtual time. Unit: seconds since the start."""
        return self._inner.now

    @property
    def next_timeout(self) -> float | None:
        """When a request times out next, or None. Unit: seconds since the start."""
        return self._inner.next_timeout

    def submit(self, prompt: Sequence[int], **options: Unpack[RequestOptions]) -> int:
        """Submit a request now.

        Args:
            prompt: token ids.
            **options: request options, as of `Engine.generate`.

        Returns:
            The request's number.

        Raises:
            OptionError: an option is unknown, of the wrong type, or out of range.
            EmptyPromptError: there are no tokens.
            PromptError: a token id is out of range.
            ContextFullError: the prompt can never fit.
            QueueFullError: as many requests wait as `max_queue`, or `max_queue_per_scope`, allows.
        """
        return self._inner.submit(prompt, dict(options))

    def cancel(self, request_id: int) -> None:
        """Cancel a request now, also one whose pass is under way; unknown and ended ones are left alone."""
        self._inner.cancel(request_id)

    def advance(self, seconds: float) -> None:
        """Let time go by. Unit: seconds."""
        self._inner.advance(seconds)

    def inject(self, fault: Fault, code: int = -1) -> None:
        """Let the next thing fail that can fail in this way.

        Args:
            fault: how. "kv_full" and "fail" hit a forward pass, the others what their names say.
            code: for "fail", what `llama_decode` answers.
        """
        self._inner.inject(fault, code)

    def begin(self) -> bool:
        """Plan the next work and have it done, without telling the scheduler yet; whether there was any."""
        return self._inner.begin()

    def complete(self) -> bool:
        """Tell the scheduler what came of the work under way; whether there was any."""
        return self._inner.complete()

    def step(self) -> bool:
        """One work from plan to outcome; whether there was any."""
        self.begin()
        return self.complete()

    def run(self, max_steps: int = 1_000_000) -> bool:
        """Step until nothing is left to do, or `max_steps` are over; whether nothing is left."""
        return self._inner.run(max_steps)

    def events(self) -> list[SimulationEvent]:
        """What the scheduler told since the last call, oldest first."""
        return [SimulationEvent(*event) for event in self._inner.events()]

    def stats(self) -> dict[str, int]:
        """Figures of this moment, by the names of `Stats`."""
        return self._inner.stats()

    def check(self) -> None:
        """Assert every invariant of the scheduler, and its account of KV cells against the backend's.

        Raises:
            AssertionError: one is broken: a bug of ours.
        """
        self._inner.check()
