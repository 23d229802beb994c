"""What is asked, and how each request went."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.types import Message

__all__ = ["Asked", "Record", "Target"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as every target gets it.

    Attributes:
        messages: the conversation so far, the question last; a prompt is one message of a user.
        n_output: tokens to generate at most.
        ignore_eos: whether to go on where the model would end, so that all answers are as long as `n_output`.
    """

    messages: Sequence[Message]
    n_output: int
    ignore_eos: bool

    @property
    def text(self) -> str:
        """The whole as text without a template: what the messages say, one after the other."""
        return "".join(str(message["content"]) for message in self.messages)


@dataclass(slots=True)
class Record:
    """How one request went. Unit of all times: seconds of `time.perf_counter`, or from the start of the run.

    Attributes:
        conversation: which conversation it belongs to, from 0.
        turn: which turn of it this is, from 0.
        due: when it was to be sent: its arrival, or, in a closed loop and for later turns, when its client was free.
        sent: when it was.
        ended: when its last message was there, or its failure.
        deliveries: when text came. One delivery may bring several tokens, or a part of one.
        n_prompt: tokens of the prompt, as the target counts them; None where it did not say.
        n_output: tokens generated, as the target counts them; None where it did not say.
        n_cached: tokens of the prompt that were not computed; None where it did not say.
        queue_ms: time in the target's queue; None where it did not say. Unit: milliseconds.
        finish_reason: why the answer ended, in the target's words.
        failure: why there is no whole answer; None where there is one.
    """

    conversation: int
    turn: int
    due: float
    sent: float = 0.0
    ended: float = 0.0
    deliveries: list[float] = field(default_factory=list)
    n_prompt: int | None = None
    n_output: int | None = None
    n_cached: int | None = None
    queue_ms: float | None = None
    finish_reason: str | None = None
    failure: str | None = None

    @property
    def complete(self) -> bool:
        """Whether there is a whole answer."""
        return self.failure is None

    @property
    def ttft_ms(self) -> float | None:
        """From when it was due to its first text; None where none came. Unit: milliseconds."""
        return 1e3 * (self.deliveries[0] - self.due) if self.deliveries else None

    @property
    def e2e_ms(self) -> float:
        """From when it was due to its end. Unit: milliseconds."""
        return 1e3 * (self.ended - self.due)

    @property
    def late_ms(self) -> float:
        """From when it was due to when it was sent: the client's own delay. Unit: milliseconds."""
        return 1e3 * (self.sent - self.due)

    @property
    def itls_ms(self) -> list[float]:
        """The gaps between its deliveries. Unit: milliseconds."""
        return [1e3 * (later - at) for at, later in pairwise(self.deliveries)]

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first, by the target's count; None where unknown. Unit: milliseconds."""
        if self.n_output is None or self.n_output < 2 or len(self.deliveries) < 2:
            return None
        return 1e3 * (self.deliveries[-1] - self.deliveries[0]) / (self.n_output - 1)


class Target(Protocol):
    """Who answers."""

    async def ask(self, asked: Asked, record: Record) -> str:
        """Answer a request, and note in its record how that went; failures are noted too, and never raised.

        Args:
            asked: the request.
            record: its record: `sent` and all below it are the target's to fill.

        Returns:
            The text of the answer, as far as it came.
        """

    async def count(self, text: str) -> int:
        """How many tokens a text has, for prompts of given lengths."""
