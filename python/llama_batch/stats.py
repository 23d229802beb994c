"""What `Engine.stats` tells: figures of one moment, and sums since the engine's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EngineState", "RpcServerHealth", "Stats"]

EngineState: TypeAlias = Literal["loading", "ready", "failed", "closed"]
"""The states of an engine."""


@dataclass(frozen=True, slots=True)
class RpcServerHealth:
    """How a server of `rpc_servers` was when it was last looked at.

    That is when the model was loaded; in a pass that takes over 10 s, once for each load, where it is only seen whether
    the server takes connections, since it serves one client at a time; and after a backend was lost, where it is asked.

    Attributes:
        endpoint: the server, as `"host:port"`.
        is_reachable: whether it was of use; None before anybody has looked.
        trouble: what was wrong with it; None where nothing was.
        age_s: how long ago that was. Unit: seconds.
    """

    endpoint: str
    is_reachable: bool | None
    trouble: str | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one moment, and sums since the engine's start.

    Attributes:
        state: the engine's state.
        active_slots: slots taken.
        idle_slots: slots free.
        prefilling_slots: slots whose request still reads its prompt.
        queue_depth: requests that wait for a slot.
        n_parallel: slots in total.
        n_batch: rows of one forward pass at most. Unit: tokens.
        ram_cache_entries: blocks of 64 tokens in the RAM tier, or whole sequences where the memory has no blocks.
        ram_cache_bytes: their size. Unit: bytes.
        disk_cache_entries: what `prompt_cache_dir` holds of the same.
        disk_cache_bytes: the size of its files. Unit: bytes.
        parked_requests: requests that gave up their cells and wait to go on.
        cached_sequences: sequences kept of finished requests.
        kv_cells_used: cells of the KV cache in use, shared ones once. Unit: tokens; sequences of a recurrent model.
        kv_cells_running: of those, what running requests hold; the rest is cached. Unit: tokens.
        kv_cells_total: cells of the KV cache. Unit: tokens.
        n_ticks: forward passes that were done.
        n_submitted: requests taken in.
        n_finished: requests that ended, however.
        n_failed: requests that ended by an error.
        n_cancelled: requests that ended by cancellation.
        n_prefill_tokens: prompt tokens computed, what is computed again after a park included.
        n_prefix_cache_tokens: prompt tokens reused.
        n_generated_tokens: tokens generated.
        n_draft_tokens: tokens computed on trial (`n_draft`).
        n_accepted_tokens: of those, tokens that were then drawn.
        n_parked: times a request was parked.
        n_evicted: cached sequences dropped for room.
        embedding_requests: requests for embeddings that run or wait; they take no slot.
        n_embedded_texts: texts that became vectors.
        n_embedded_tokens: tokens computed for them.
        pass_cost_ns: what a forward pass costs, whatever is in it, as learned from those that were done; 0 until then.
            Unit: nanoseconds.
        decode_row_cost_ns: what the row of a running request adds. Unit: nanoseconds.
        prefill_row_cost_ns: what a row of a prompt adds. Unit: nanoseconds.
        context_cost_ns: what 1,000 tokens of context add to each row that attends to them. Unit: nanoseconds.
        n_threads: threads that compute passes of few rows, where that is left to the engine (the option `n_threads` is
            0): fewer while other work wants the cores. 0 where the option gives it.
        n_threads_batch: the same of passes of 32 rows and more, which prompts make.
        in_flight: requests that run or wait.
        n_events_dropped: events that were lost because a subscriber was too slow.
        load_progress: how much of the model is loaded, from 0 to 1.
        load_s: how long loading took, once it is done. Unit: seconds.
        n_backend_restarts: times that a lost backend (`isolate`) was made again.
        is_backend_lost: whether there is none at the moment, because it was lost.
        n_slow_passes: passes of an isolated backend, or steps of moving state, that took more than 10 s.
        is_backend_slow: whether such a one is under way.
        slow_pass_s: how long the last of them took, or has taken so far; None before the first. Unit: seconds.
        rpc_servers: how the servers that the model is spread over were when they were last looked at, in their order.
    """

    state: EngineState
    active_slots: int = 0
    idle_slots: int = 0
    prefilling_slots: int = 0
    queue_depth: int = 0
    n_parallel: int = 0
    n_batch: int = 0
    ram_cache_entries: int = 0
    ram_cache_bytes: int = 0
    disk_cache_entries: int = 0
    disk_cache_bytes: int = 0
    parked_requests: int = 0
    cached_sequences: int = 0
    kv_cells_used: int = 0
    kv_cells_running: int = 0
    kv_cells_total: int = 0
    n_ticks: int = 0
    n_submitted: int = 0
    n_finished: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    n_prefill_tokens: int = 0
    n_prefix_cache_tokens: int = 0
    n_generated_tokens: int = 0
    n_draft_tokens: int = 0
    n_accepted_tokens: int = 0
    n_parked: int = 0
    n_evicted: int = 0
    embedding_requests: int = 0
    n_embedded_texts: int = 0
    n_embedded_tokens: int = 0
    pass_cost_ns: int = 0
    decode_row_cost_ns: int = 0
    prefill_row_cost_ns: int = 0
    context_cost_ns: int = 0
    n_threads: int = 0
    n_threads_batch: int = 0
    in_flight: int = 0
    n_events_dropped: int = 0
    load_progress: float = 0.0
    load_s: float | None = None
    n_backend_restarts: int = 0
    is_backend_lost: bool = False
    n_slow_passes: int = 0
    is_backend_slow: bool = False
    slow_pass_s: float | None = None
    rpc_servers: tuple[RpcServerHealth, ...] = ()

    @classmethod
    def from_native(cls, native: Mapping[str, Any]) -> Self:
        """Make them of what the extension module gives.

        Args:
            native: the fields by name; each server as the fields of its health.

        Returns:
            The figures.

        Example:
            >>> Stats.from_native(engine.native.stats())
        """
        return cls(**{**native, "rpc_servers": tuple(RpcServerHealth(*server) for server in native["rpc_servers"])})
