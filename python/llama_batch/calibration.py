"""What was measured of a model on this machine before it was ready, and what was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Calibration", "Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one setting took.

    Attributes:
        flash_attn: whether flash attention was on.
        kv_unified: whether all requests shared one KV buffer.
        n_threads: threads that computed.
        decode_ms: a pass that decodes a row of each request. Unit: milliseconds.
        decode_tokens_per_s: tokens that such passes give, all requests together.
        prefill_tokens_per_s: tokens of a prompt that are read, at the end of such a context; None where time did not
            suffice to measure it.
    """

    flash_attn: bool
    kv_unified: bool
    n_threads: int
    decode_ms: float
    decode_tokens_per_s: float
    prefill_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, and what was chosen.

    Attributes:
        n_rows: requests that decoded at once.
        n_context: tokens that each of them attended to.
        measured: the settings, what llama.cpp takes by itself first.
        chosen: which of them the engine runs with.
        reason: why, in words.
        took_s: what measuring took. Unit: seconds.
        is_noted: whether it was measured at an earlier load, and kept.
    """

    n_rows: int
    n_context: int
    measured: tuple[Measured, ...]
    chosen: Measured
    reason: str
    took_s: float
    is_noted: bool

    @classmethod
    def of_json(cls, text: str) -> Calibration:
        """What the core tells, read."""
        import json  # which an import of the package alone does without

        told = json.loads(text)
        shape = told["shape"]
        measured = tuple(_measured(sample, shape["n_rows"]) for sample in told["samples"])
        return cls(
            n_rows=shape["n_rows"],
            n_context=shape["n_context"],
            measured=measured,
            chosen=measured[told["chosen"]],
            reason=told["reason"],
            took_s=_seconds(told["took"]),
            is_noted=told["is_noted"],
        )


def _measured(sample: dict[str, Any], n_rows: int) -> Measured:
    decode_s, row_s = _seconds(sample["decode"]), _seconds(sample["prefill_row"])
    return Measured(
        flash_attn=sample["setting"]["flash_attn"],
        kv_unified=sample["setting"]["kv_unified"],
        n_threads=sample["n_threads"],
        decode_ms=decode_s * 1e3,
        decode_tokens_per_s=n_rows / decode_s,
        prefill_tokens_per_s=1 / row_s if row_s > 0 else None,
    )


def _seconds(duration: dict[str, int]) -> float:
    return float(duration["secs"] + duration["nanos"] / 1e9)
