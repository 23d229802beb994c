"""The metric families of a scrape: their names, what they mean, and where their values are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from llama_batch.metrics import Histogram, Metrics
from llama_batch.types import EngineState, RpcServerHealth

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]
Value: TypeAlias = "float | Histogram"
Samples: TypeAlias = Callable[[Metrics], Iterable[tuple[Mapping[str, str], Value]]]

VLLM_REASONS = {
    "stop": ("eog", "stop", "embedded"),
    "length": ("max_tokens", "context_full"),
    "abort": ("cancelled",),
    "error": ("timeout", "error"),
}
"""vLLM's words for how a request ended, and ours."""


@dataclass(frozen=True, slots=True)
class Family:
    """Series of one name.

    Attributes:
        name: its name, behind `llama_batch_`.
        kind: its type.
        help: what it is, in a sentence.
        read: its samples, as labels and values.
        vllm: its name behind `vllm:`, where vLLM has it too.
    """

    name: str
    kind: Kind
    help: str
    read: Samples
    vllm: str = ""


def _one(value: Callable[[Metrics], Value]) -> Samples:
    return lambda metrics: [({}, value(metrics))]


def _each(label: str, values: Callable[[Metrics], Mapping[str, float]]) -> Samples:
    return lambda metrics: [({label: word}, value) for word, value in values(metrics).items()]


def _gauge(name: str, text: str, value: Callable[[Metrics], float], *, vllm: bool = False) -> Family:
    return Family(name, "gauge", text, _one(value), name if vllm else "")


def _counter(name: str, text: str, value: Callable[[Metrics], float], *, vllm: bool = False) -> Family:
    return Family(name, "counter", text, _one(value), name if vllm else "")


def _histogram(name: str, text: str, value: Callable[[Metrics], Histogram], *, vllm: str = "") -> Family:
    return Family(name, "histogram", text, _one(value), vllm or name)


def _success(metrics: Metrics) -> dict[str, float]:
    return {word: sum(metrics.finished[own] for own in ours) for word, ours in VLLM_REASONS.items()}


def _states(metrics: Metrics) -> dict[str, float]:
    return {state: int(metrics.stats.state == state) for state in get_args(EngineState)}


def _seen(metrics: Metrics) -> list[RpcServerHealth]:
    return [server for server in metrics.stats.rpc_servers if server.is_reachable is not None]


def _moved(values: Callable[[Metrics, str], Mapping[str, int]]) -> Samples:
    """By tier and operation."""
    return lambda metrics: [
        ({"tier": tier, "op": op}, n) for tier in metrics.tiers for op, n in values(metrics, tier).items()
    ]


def _hits(metrics: Metrics) -> int:
    return sum(metrics.prefix_cache_hits.values())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_GAUGES = (
    _gauge("num_requests_running", "Requests that hold a slot.", lambda m: m.stats.active_slots, vllm=True),
    _gauge(
        "num_requests_waiting", "Requests that wait for one, parked ones too.", lambda m: m.stats.queue_depth, vllm=True
    ),
    _gauge("num_requests_parked", "Of those, what gave its cells to others.", lambda m: m.stats.parked_requests),
    _gauge("slots", "Requests that can run at once.", lambda m: m.stats.n_parallel),
    _gauge("backend_lost", "1 while a lost backend is being made again.", lambda m: float(m.stats.is_backend_lost)),
    _gauge(
        "backend_slow_seconds",
        "How long the pass under way has taken, once that is over 10 s; 0 else.",
        lambda m: (m.stats.is_backend_slow and m.stats.slow_pass_s) or 0.0,
    ),
    Family(
        "rpc_server_reachable",
        "gauge",
        "1 for a server that was of use when it was last looked at, else 0.",
        _each("endpoint", lambda m: {one.endpoint: float(one.is_reachable or False) for one in _seen(m)}),
    ),
    Family(
        "rpc_server_seen_age_seconds",
        "gauge",
        "How long ago it was last looked at.",
        _each("endpoint", lambda m: {one.endpoint: one.age_s or 0.0 for one in _seen(m)}),
    ),
    _gauge(
        "kv_cache_usage_perc",
        "What running requests hold of the KV cache; 1 is all of it.",
        lambda m: _ratio(m.stats.kv_cells_running, m.stats.kv_cells_total),
        vllm=True,
    ),
    _gauge("kv_cache_cells", "Cells of the KV cache.", lambda m: m.stats.kv_cells_total),
    _gauge("kv_cache_cells_used", "Cells in use, by requests or as a cache.", lambda m: m.stats.kv_cells_used),
    _gauge("kv_cache_cells_running", "Cells that running requests hold.", lambda m: m.stats.kv_cells_running),
    _gauge("cached_sequences", "Sequences kept of finished requests.", lambda m: m.stats.cached_sequences),
    _gauge("ram_cache_bytes", "What the RAM tier takes.", lambda m: m.stats.ram_cache_bytes),
    _gauge("ram_cache_entries", "Blocks in the RAM tier.", lambda m: m.stats.ram_cache_entries),
    _gauge("disk_cache_bytes", "What the prompt cache's folder takes.", lambda m: m.stats.disk_cache_bytes),
    _gauge("disk_cache_entries", "Blocks in the prompt cache's folder.", lambda m: m.stats.disk_cache_entries),
    Family("engine_state", "gauge", "1 for the state that the engine is in, else 0.", _each("state", _states)),
)

_COUNTERS = (
    Family(
        "request_success_total",
        "counter",
        "Requests that ended, by vLLM's reasons.",
        _each("finished_reason", _success),
        "request_success_total",
    ),
    Family("requests_finished_total", "counter", "Requests that ended, by how.", _each("reason", lambda m: m.finished)),
    Family(
        "request_failures_total",
        "counter",
        "Requests that failed or were refused, by the code of the error.",
        _each("code", lambda m: m.failures),
    ),
    _counter(
        "prompt_tokens_total",
        "Tokens of prompts that got a slot, reused ones too.",
        lambda m: m.n_prompt_tokens,
        vllm=True,
    ),
    _counter("prefill_tokens_total", "Tokens of prompts computed.", lambda m: m.stats.n_prefill_tokens),
    _counter("generation_tokens_total", "Tokens generated.", lambda m: m.stats.n_generated_tokens, vllm=True),
    _counter(
        "prefix_cache_queries_total",
        "Tokens of prompts looked for in the cache.",
        lambda m: m.n_prefix_cache_queries,
        vllm=True,
    ),
    _counter("prefix_cache_hits_total", "Of those, tokens found.", _hits, vllm=True),
    Family(
        "cached_tokens_total",
        "counter",
        "Tokens of prompts found in the cache, by where.",
        _each("cache_source", lambda m: m.prefix_cache_hits),
    ),
    _counter(
        "num_preemptions_total", "Times that a request gave its cells to others.", lambda m: m.stats.n_parked, vllm=True
    ),
    _counter(
        "spec_decode_num_draft_tokens_total",
        "Tokens computed on trial, because the text had them before.",
        lambda m: m.stats.n_draft_tokens,
        vllm=True,
    ),
    _counter(
        "spec_decode_num_accepted_tokens_total",
        "Of those, tokens that were then drawn.",
        lambda m: m.stats.n_accepted_tokens,
        vllm=True,
    ),
    _counter("kv_cache_evictions_total", "Cached sequences dropped for room.", lambda m: m.stats.n_evicted),
    Family(
        "cache_tier_tokens_total",
        "counter",
        "Tokens whose state moved in a tier below the KV cells.",
        _moved(lambda m, tier: m.tiers[tier].tokens),
    ),
    Family("cache_tier_bytes_total", "counter", "The size of that state.", _moved(lambda m, tier: m.tiers[tier].bytes)),
    _counter("passes_total", "Forward passes.", lambda m: m.stats.n_ticks),
    _counter("pass_slots_total", "Slots that had rows in a pass, over all passes.", lambda m: m.n_busy_slots),
    _counter("pass_eval_seconds_total", "Time in forward passes.", lambda m: m.eval_s),
    _counter("pass_sample_seconds_total", "Time in the draws after them.", lambda m: m.sample_s),
    _counter("events_dropped_total", "Events that a subscriber was too slow for.", lambda m: m.stats.n_events_dropped),
    _counter("backend_restarts_total", "Lost backends made again.", lambda m: m.stats.n_backend_restarts),
    _counter("backend_slow_passes_total", "Passes that took more than 10 s.", lambda m: m.stats.n_slow_passes),
)

_HISTOGRAMS = (
    _histogram("time_to_first_token_seconds", "From submission to first token.", lambda m: m.time_to_first_token),
    _histogram("inter_token_latency_seconds", "From a token to the next.", lambda m: m.inter_token_latency),
    _histogram("e2e_request_latency_seconds", "From submission to end.", lambda m: m.e2e_request_latency),
    _histogram("request_queue_time_seconds", "Waiting for a slot.", lambda m: m.request_queue_time),
    _histogram("request_inference_time_seconds", "From slot to end.", lambda m: m.request_inference_time),
    _histogram("request_prefill_time_seconds", "From slot to first token.", lambda m: m.request_prefill_time),
    _histogram("request_decode_time_seconds", "From first token to last.", lambda m: m.request_decode_time),
    _histogram("request_prompt_tokens", "Tokens of a prompt.", lambda m: m.request_prompt_tokens),
    _histogram("request_generation_tokens", "Tokens of an answer.", lambda m: m.request_generation_tokens),
    _histogram(
        "iteration_tokens", "Rows of a forward pass.", lambda m: m.iteration_tokens, vllm="iteration_tokens_total"
    ),
)

FAMILIES: tuple[Family, ...] = (*_GAUGES, *_COUNTERS, *_HISTOGRAMS)
"""What a scrape holds."""


def _over(value: Callable[[Metrics], float]) -> Callable[[Sequence[Metrics]], float]:
    return lambda every: sum(value(metrics) for metrics in every)


def _rate(part: Callable[[Metrics], float], whole: Callable[[Metrics], float]) -> Callable[[Sequence[Metrics]], float]:
    return lambda every: _ratio(_over(part)(every), _over(whole)(every))


LLAMACPP: tuple[tuple[str, Kind, str, Callable[[Sequence[Metrics]], float]], ...] = (
    ("prompt_tokens_total", "counter", "Tokens of prompts computed.", _over(lambda m: m.stats.n_prefill_tokens)),
    ("prompt_tokens_cached_total", "counter", "Tokens of prompts reused.", _over(_hits)),
    (
        "prompt_seconds_total",
        "counter",
        "Reading prompts, of requests that ended.",
        _over(lambda m: m.request_prefill_time.sum),
    ),
    ("tokens_predicted_total", "counter", "Tokens generated.", _over(lambda m: m.stats.n_generated_tokens)),
    ("tokens_predicted_seconds_total", "counter", "Generating them.", _over(lambda m: m.inter_token_latency.sum)),
    ("n_decode_total", "counter", "Forward passes.", _over(lambda m: m.stats.n_ticks)),
    ("n_tokens_max", "counter", "The longest request that ended.", lambda every: max(m.n_tokens_max for m in every)),
    (
        "n_busy_slots_per_decode",
        "gauge",
        "Slots that have rows in a pass, on average.",
        _rate(lambda m: m.n_busy_slots, lambda m: m.stats.n_ticks),
    ),
    (
        "prompt_tokens_seconds",
        "gauge",
        "Tokens of a prompt per second, on average since the start.",
        _rate(lambda m: m.stats.n_prefill_tokens, lambda m: m.request_prefill_time.sum),
    ),
    (
        "predicted_tokens_seconds",
        "gauge",
        "Tokens of an answer per second, on average since the start.",
        _rate(lambda m: m.inter_token_latency.count, lambda m: m.inter_token_latency.sum),
    ),
    ("requests_processing", "gauge", "Requests that hold a slot.", _over(lambda m: m.stats.active_slots)),
    ("requests_deferred", "gauge", "Requests that wait for one.", _over(lambda m: m.stats.queue_depth)),
)
"""llama-server's families: name behind `llamacpp:`, type, help, and the value over all engines."""
