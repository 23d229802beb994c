"""The disk tier on the simulated model: what an engine leaves in its folder, and what nobody may make of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Completion, Engine, Event, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ["full", "recurrent", "hybrid", "window:64"]
PROMPT = list(range(10, 210))
GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 12}


def simulated(folder: Path | str, kind: str = "full", **options: Any) -> Engine:
    settings = {"n_ctx": 2048, "prompt_cache_ram_mb": 64, **options}
    return Engine(f"sim:?pass_ms=0&row_ms=0&memory={kind}", prompt_cache_dir=folder, **settings)


def ask(engine: Engine, prompt: list[int] = PROMPT, **options: Any) -> Completion:
    return engine.generate(prompt, **GREEDY, **options).result()


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_engine_goes_on_from_what_the_last_one_left(tmp_path: Path, kind: str, unified: bool) -> None:
    with simulated(tmp_path, kind, kv_unified=unified) as engine:
        first = ask(engine)
        turn = [*PROMPT, *first.token_ids, *range(300, 330)]
    with Engine(f"sim:?pass_ms=0&row_ms=0&memory={kind}", kv_unified=unified) as engine:
        expected = ask(engine, turn).token_ids
    starts: list[Event] = []
    with simulated(tmp_path, kind, kv_unified=unified) as engine:
        assert engine.stats().disk_cache_entries == len(files(tmp_path)) > 0
        assert engine.stats().disk_cache_bytes == sum(file.stat().st_size for file in files(tmp_path))
        with engine.subscribe(starts.append, events=["request.start"]):
            done = ask(engine, turn)
    assert done.usage.prefix_cache_tokens >= len(PROMPT)
    assert done.token_ids == expected
    assert (starts[0].metadata["prefix_source"], starts[0].metadata["prefix_reason"]) == ("disk", "saved")


def test_what_is_on_disk_is_of_its_scope_its_model_and_its_kind_of_context(tmp_path: Path) -> None:
    with simulated(tmp_path) as engine:
        ask(engine, cache_scope="a")
    others: list[tuple[dict[str, Any], str | None, int]] = [
        *(({}, None, 0), ({}, "b", 0), ({"kv_unified": False}, "a", 0), ({}, "a", 192))
    ]
    for options, scope, expected in others:
        with simulated(tmp_path, **options) as engine:
            assert ask(engine, cache_scope=scope).usage.prefix_cache_tokens == expected, (options, scope)
    with simulated(tmp_path, "hybrid") as engine:
        assert ask(engine, cache_scope="a").usage.prefix_cache_tokens == 0


def test_an_engine_that_is_not_asked_to_cache_leaves_nothing(tmp_path: Path) -> None:
    with simulated(tmp_path) as engine:
        ask(engine, cache_prompt=False)
    assert files(tmp_path) == []


def test_the_budget_holds_and_the_latest_stays(tmp_path: Path) -> None:
    # They take twice as much.
    prompts = [[n, *((7 * n + i * (n + 1)) % 450 + 50 for i in range(1919))] for n in range(1, 64)]
    with simulated(tmp_path, prompt_cache_dir_mb=1, prompt_cache_ram_mb=1) as engine:
        for prompt in prompts:
            ask(engine, prompt)
            assert engine.stats().disk_cache_bytes <= 1 << 20
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 1 << 20
    with simulated(tmp_path, prompt_cache_dir_mb=1, prompt_cache_ram_mb=1) as engine:
        assert ask(engine, prompts[-1]).usage.prefix_cache_tokens >= 1856


def test_what_is_damaged_is_computed_again_and_replaced(tmp_path: Path) -> None:
    with simulated(tmp_path) as engine:
        expected = ask(engine)
    n_files = len(files(tmp_path))
    damages: list[Callable[[bytes], bytes]] = [
        lambda content: content[:-1],
        lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
    ]
    for damage in damages:
        for file in files(tmp_path):
            file.write_bytes(damage(file.read_bytes()))
        told: list[Event] = []
        with simulated(tmp_path) as engine, engine.subscribe(told.append, events=["disk_cache"]):
            done = ask(engine)
        assert done.usage.prefix_cache_tokens == 0
        assert done.token_ids == expected.token_ids
        # Who opens the folder sees a length; a state is looked at when it is needed.
        failures = [event for event in told if event.metadata["op"] == "fail"]
        assert all("sum" in event.metadata["reason"] or "damaged" in event.metadata["reason"] for event in failures)
        with simulated(tmp_path) as engine:
            assert ask(engine).usage.prefix_cache_tokens >= 192
        assert len(files(tmp_path)) >= n_files


def test_files_that_vanish_cost_a_computation(tmp_path: Path) -> None:
    with simulated(tmp_path) as engine:
        expected = ask(engine)
    with simulated(tmp_path) as engine:
        for file in files(tmp_path):
            file.unlink()
        done = ask(engine)
        assert (done.usage.prefix_cache_tokens, done.token_ids) == (0, expected.token_ids)
    with simulated(tmp_path) as engine:
        assert ask(engine).usage.prefix_cache_tokens >= 192


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the owner of all may write anywhere")
def test_a_folder_that_can_no_longer_be_written_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    told: list[Event] = []
    with simulated(tmp_path) as engine, engine.subscribe(told.append, events=["disk_cache"]):
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        folder.chmod(0o500)
        assert ask(engine).finish_reason == "max_tokens"
        engine.close(drain=True)
        folder.chmod(0o700)
    assert any(event.metadata["op"] == "fail" and event.metadata["reason"] for event in told)


def test_a_folder_that_is_removed_under_the_engine_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    import shutil

    told: list[Event] = []
    with simulated(tmp_path / "cache") as engine, engine.subscribe(told.append, events=["disk_cache"]):
        shutil.rmtree(tmp_path / "cache")
        assert ask(engine).finish_reason == "max_tokens"
        engine.close(drain=True)
    assert [event.metadata["op"] for event in told] == ["fail"] * len(told)
    assert told[0].metadata["reason"]


def test_engines_that_are_open_at_the_same_time_have_parts_of_their_own(tmp_path: Path) -> None:
    other_prompt = [*PROMPT[100:], *PROMPT[:100]]
    for n_reused in (0, 192):
        with simulated(tmp_path) as first, simulated(tmp_path) as second, simulated(tmp_path, "hybrid") as third:
            assert ask(first).usage.prefix_cache_tokens >= n_reused
            assert ask(second, other_prompt).usage.prefix_cache_tokens >= n_reused
            assert ask(third).usage.prefix_cache_tokens >= n_reused
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 3


def test_what_other_models_left_goes_where_all_take_too_much(tmp_path: Path) -> None:
    prompts = [[n, *((7 * n + i * (n + 1)) % 450 + 50 for i in range(1919))] for n in range(1, 32)]
    for kind in KINDS:
        with simulated(tmp_path, kind, prompt_cache_dir_mb=1) as engine:
            for prompt in prompts:
                ask(engine, prompt)
        with simulated(tmp_path, kind, prompt_cache_dir_mb=1):
            assert sum(file.stat().st_size for file in files(tmp_path)) <= 1 << 20


def test_wrong_folders_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (5, b"x", "", "a\0b", ["x"]):
        with pytest.raises(OptionError, match="prompt_cache_dir must be a path"):
            simulated(folder)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"prompt_cache_dir: .*file is no folder"):
        simulated(file)
    with pytest.raises(OptionError, match="prompt_cache_ram_mb must not be 0"):
        simulated(tmp_path, prompt_cache_ram_mb=0)
    with pytest.raises(OptionError, match="prompt_cache_dir_mb"):
        simulated(tmp_path, prompt_cache_dir_mb=0)
    with pytest.raises(OptionError, match="prompt_cache_dir: "):
        simulated(file / "below").wait_ready()


def test_a_folder_is_made_for_the_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with simulated("~/some/where") as engine:
        ask(engine)
    found = files(tmp_path / "some" / "where")
    assert found
    if os.name != "nt":
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        assert stat.S_IMODE((tmp_path / "some").stat().st_mode) == 0o700


def test_an_engine_that_is_killed_leaves_what_it_had_stored(tmp_path: Path) -> None:
    script = f"""
import os, signal, time
from llama_batch import Engine
engine = Engine("sim:?pass_ms=0&row_ms=0", n_ctx=2048, prompt_cache_ram_mb=64, prompt_cache_dir={str(tmp_path)!r})
engine.generate({PROMPT}, temp=0, max_tokens=12).result()
while engine.stats().disk_cache_entries < 4:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    with simulated(tmp_path) as engine:
        assert ask(engine).usage.prefix_cache_tokens >= 192


ENDS = {
    "close": "engine.close()",
    "drain": "engine.close(drain=True)",
    "nothing": "",
    "exit": "raise SystemExit(3)",
    "exception in with": """
with engine:
    raise ValueError
""",
    "dropped": "del engine",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_every_end_that_is_no_murder_leaves_what_finished_requests_computed(tmp_path: Path, end: str) -> None:
    script = f"""
from llama_batch import Engine
engine = Engine("sim:?pass_ms=0&row_ms=0", n_ctx=2048, prompt_cache_ram_mb=64, prompt_cache_dir={str(tmp_path)!r})
engine.generate({PROMPT}, temp=0, max_tokens=12).result()
{end}
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False, capture_output=True)
    with simulated(tmp_path) as engine:
        assert ask(engine).usage.prefix_cache_tokens >= 192


def test_what_was_asked_for_again_and_again_outlives_what_was_asked_for_once(tmp_path: Path) -> None:
    prompts = [[n, *((7 * n + i * (n + 1)) % 450 + 50 for i in range(255))] for n in range(1, 60)]
    with simulated(tmp_path, n_ctx=16384) as engine:
        for prompt in prompts:
            ask(engine, prompt)
            # From the cells: neither RAM nor disk is asked for it.
            ask(engine, prompts[0])
    hot = files(tmp_path)
    with simulated(tmp_path) as engine:
        assert ask(engine, prompts[0]).usage.prefix_cache_tokens >= 254
    # Less room than for all: what a scan of the folder drops is what its times say.
    total = sum(file.stat().st_size for file in hot)
    assert total < 1 << 20
    padding = [[400, *((3 * n + i * (n + 5)) % 450 + 50 for i in range(1900))] for n in range(100, 140)]
    with simulated(tmp_path, prompt_cache_dir_mb=1, prompt_cache_ram_mb=1) as engine:
        for prompt in padding:
            ask(engine, prompt)
            ask(engine, prompts[0])
    with simulated(tmp_path, prompt_cache_dir_mb=1) as engine:
        assert ask(engine, prompts[0]).usage.prefix_cache_tokens >= 254
        assert ask(engine, prompts[1]).usage.prefix_cache_tokens == 0
        assert ask(engine, padding[-1]).usage.prefix_cache_tokens >= 1856


def test_a_store_that_fails_for_ever_ends(tmp_path: Path) -> None:
    engine = Engine("sim:?pass_ms=0&row_ms=0&refuse_store=1000", prompt_cache_ram_mb=64, prompt_cache_dir=tmp_path)
    ask(engine, list(range(10, 500)))
    assert engine.close(drain=True, timeout=30)


def test_a_moment_without_a_file_descriptor_costs_no_cache(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    with simulated(tmp_path) as engine:
        ask(engine)
    n_files = len(files(tmp_path))
    with simulated(tmp_path) as engine:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            done = ask(engine)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert done.usage.prefix_cache_tokens == 0
    assert len(files(tmp_path)) >= n_files
    with simulated(tmp_path) as engine:
        assert ask(engine).usage.prefix_cache_tokens >= 192
