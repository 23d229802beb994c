"""The check of a source distribution finds what it is for."""

from __future__ import annotations

import sdist


def test_a_complete_source_distribution_passes() -> None:
    assert sdist.problems({*sdist.NEEDED, "src/core/mod.rs"}) == []


def test_what_a_build_needs_is_missed() -> None:
    assert sdist.problems(sdist.NEEDED - {"Cargo.lock"}) == ["missing: Cargo.lock"]


def test_what_a_build_leaves_behind_is_found() -> None:
    held = {*sdist.NEEDED, "python/llama_batch/_core.abi3.so", "python/llama_batch/cpu-features.txt"}
    assert len(sdist.problems(held)) == 2
