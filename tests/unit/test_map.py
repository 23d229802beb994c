"""Many prompts at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Completion, EmptyPromptError, Engine, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch import Generation


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("sim:?pass_ms=0", n_parallel=4, max_queue=4)


def test_completions_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    prompts = ["p" * (1 + i % 13) for i in range(200)]
    done = list(engine.map(prompts, max_tokens=3))
    assert [d.usage.prompt_tokens for d in done] == [len(p) for p in prompts]


def test_unordered_completions_all_come(engine: Engine) -> None:
    done = list(engine.map(["p" * (i + 1) for i in range(50)], max_tokens=3, ordered=False))
    assert sorted(d.usage.prompt_tokens for d in done) == list(range(1, 51))


def test_prompts_are_taken_as_there_is_room(engine: Engine) -> None:
    n_taken = 0

    def prompts() -> Iterator[str]:
        nonlocal n_taken
        while True:
            n_taken += 1
            yield "endless"

    completions = engine.map(prompts(), max_tokens=2)
    for _ in range(10):
        next(completions)
    completions.close()
    assert n_taken < 10 + 8 * 4
    assert list(completions) == []


def test_an_error_is_raised_in_its_place_and_ends_the_rest(engine: Engine) -> None:
    completions = engine.map(["a", "", "c"], max_tokens=1)
    assert isinstance(next(completions), Completion)
    with pytest.raises(EmptyPromptError):
        next(completions)
    assert list(completions) == []


def test_errors_can_be_returned_in_their_place(engine: Engine) -> None:
    done = list(engine.map(["a", "", "c"], max_tokens=1, on_error="return"))
    assert [type(d) for d in done] == [Completion, EmptyPromptError, Completion]


def test_a_full_queue_is_waited_for() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=1, max_queue=1) as engine:
        others = [engine.generate("x", max_tokens=20) for _ in range(2)]
        assert len(list(engine.map(["a", "b", "c", "d"], max_tokens=2))) == 4
        assert all(g.result().finish_reason == "max_tokens" for g in others)


def test_two_maps_share_one_small_queue() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=1, max_queue=1) as engine:
        maps = [engine.map(list("abcdef"), max_tokens=2) for _ in range(2)]
        assert [len(list(pair)) for pair in zip(*maps, strict=True)] == [2] * 6


def test_chat_prompts_may_be_messages(engine: Engine) -> None:
    done = list(engine.map(["a", [{"role": "user", "content": "a"}]], chat=True, temp=0, max_tokens=3))
    assert done[0].text == done[1].text


def test_wrong_arguments_are_refused_at_once(engine: Engine) -> None:
    with pytest.raises(TypeError, match="iterable"):
        engine.map(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not one str"):
        engine.map("one text")
    with pytest.raises(ValueError, match="on_error"):
        engine.map(["a"], on_error="ignore")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="max_tokens"):
        engine.map(["a"], max_tokns=3)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="temp"):
        engine.map(["a"], temp=-1.0)


def test_the_progress_bar_counts_completions(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    assert len(list(engine.map(["a"] * 7, max_tokens=1, progress=True))) == 7
    assert "7/7" in capsys.readouterr().err


def test_a_completion_is_given_before_the_next_prompt_is_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_done = 0
    behind = []
    generations: list[Generation] = []
    send = engine._send

    def watched(*args: Any) -> Generation:
        generations.append(send(*args))
        return generations[-1]

    def prompts() -> Iterator[str]:
        for n_taken in range(40):
            behind.append(n_taken - n_done)
            yield "x"
            generations[-1].result()  # every answer is there before the next prompt

    monkeypatch.setattr(engine, "_send", watched)
    for _ in engine.map(prompts(), max_tokens=1):
        n_done += 1
    assert n_done == 40
    assert max(behind) <= 1


def test_a_progress_bar_gives_the_terminal_back_however_it_ends() -> None:
    pytest.importorskip("rich")
    script = """
from llama_batch import Engine
engine = Engine("sim:?pass_ms=0")
for _ in engine.map(["a"] * 20, max_tokens=1, progress=True):
    break
len(dict(zip(range(20), engine.map(["a"] * 20, max_tokens=1, progress=True))))
for _ in engine.map(["a"] * 20, max_tokens=1, progress=True):
    1 / 0
"""
    env = {**os.environ, "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env)
    hidden, shown = done.stderr.count("\x1b[?25l"), done.stderr.count("\x1b[?25h")
    assert (hidden, shown) == (3, 3)
    assert done.stderr.index("Traceback") > done.stderr.rindex("20/20")


def test_a_progress_bar_leaves_what_the_program_prints_alone() -> None:
    pytest.importorskip("rich")
    script = """
from llama_batch import Engine
for _ in Engine("sim:?pass_ms=0").map(["a"] * 20, max_tokens=1, progress=True):
    print("[bold] " + "x" * 200 + " [/INST]", end=" | ", flush=True)
"""
    env = {**os.environ, "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout == ("[bold] " + "x" * 200 + " [/INST] | ") * 20
