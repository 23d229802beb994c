"""What a custom batch strategy sees."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StrategyRow", "StrategyView"]


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """What a custom batch strategy sees of one running request.

    Attributes:
        request_id: which request.
        seq_id: its sequence.
        decoding: whether it generates; otherwise it still reads its prompt.
        n_remaining: tokens that could be computed now: 1 while decoding, the rest of the prompt otherwise.
        n_computed: tokens computed so far.
        priority: the request's; lower goes first.
        n_left_out: passes since its prompt last had a row.
    """

    request_id: int
    seq_id: int
    decoding: bool
    n_remaining: int
    n_computed: int
    priority: int = 0
    n_left_out: int = 0


@dataclass(frozen=True, slots=True)
class StrategyView:
    """What a custom batch strategy sees: a copy.

    Attributes:
        requests: the running requests, oldest first.
        budget: rows to share out.
        chunk_size: rows of one prompt at most.
        queue_depth: requests that wait for a slot.
    """

    requests: tuple[StrategyRow, ...]
    budget: int
    chunk_size: int
    queue_depth: int
