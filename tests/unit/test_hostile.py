"""What no caller should do, and some do: a clear error, nothing lost, the engine still serving."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import (
    ChatTemplateError,
    Engine,
    ModelLoadError,
    ModelNotFoundError,
    OptionError,
    PromptError,
    telemetry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch import StrategyView

SIM = "sim:?pass_ms=1&row_ms=0"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(SIM) as engine:
        yield engine


def n_open_files() -> int:
    """Files that this process has open; 0 where the system does not tell."""
    folder = Path("/dev/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value,)
    return value


def test_a_list_that_holds_itself_and_a_deep_tuple_are_wrong_options(engine: Engine) -> None:
    loop: list[Any] = []
    loop.append(loop)
    for options in ({"max_tokens": loop}, {"unknown": loop}, {"session": _nested(50_000)}, {"temp": _nested(50_000)}):
        with pytest.raises(OptionError):
            engine.generate("x", **options)
    with pytest.raises(OptionError):
        Engine(SIM, n_ctx=loop)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_tokens", [2**25, 10**15, 2**62])
def test_a_prompt_that_claims_to_be_endless_fails_alone(engine: Engine, n_tokens: int) -> None:
    with pytest.raises(PromptError):
        engine.generate(range(n_tokens)).result()
    assert engine.generate("x", max_tokens=2).result().text


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_a_name_that_no_thread_can_carry_is_a_wrong_option(name: str) -> None:
    with pytest.raises(OptionError, match="name"):
        Engine(SIM, name=name)


def test_cancelling_a_number_that_none_can_have_does_nothing(engine: Engine) -> None:
    engine.cancel(-1)
    engine.cancel(2**64)


def test_closing_a_generation_ends_the_task_that_drives_it(engine: Engine) -> None:
    async def main() -> str:
        generation = engine.generate("x", max_tokens=100_000)
        task = asyncio.create_task(generation)
        await asyncio.sleep(0.05)
        generation.close()
        return (await asyncio.wait_for(task, 30)).finish_reason

    assert asyncio.run(main()) == "cancelled"


def test_one_stream_of_events_read_in_several_loops_ends_in_all(engine: Engine) -> None:
    events = engine.events(events=["request.done"])
    heard: list[int] = []

    async def read() -> None:
        async for event in events:
            heard.append(int(event.metadata["request_id"]))  # noqa: PERF401 - one by one, as they come

    readers = [threading.Thread(target=lambda: asyncio.run(read()), daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for generation in [engine.generate("x", max_tokens=2) for _ in range(20)]:
        generation.result()
    engine.close()
    for reader in readers:
        reader.join(30)
    assert [reader.is_alive() for reader in readers] == [False] * 3
    assert len(heard) == len(set(heard)) <= 20


def test_prompts_that_raise_do_so_after_the_completions_before_them(engine: Engine) -> None:
    def prompts() -> Iterator[str]:
        yield "a"
        yield "b"
        raise RuntimeError("boom")

    answers = engine.map(prompts(), max_tokens=2)
    assert [next(answers).finish_reason for _ in range(2)] == ["max_tokens"] * 2
    with pytest.raises(RuntimeError, match="boom"):
        next(answers)
    assert list(answers) == []


def test_a_subscriber_that_exits_hears_no_more_and_ends_nobody_else(engine: Engine) -> None:
    heard: list[str] = []

    def leave(_: object) -> None:
        raise SystemExit(3)

    with engine.subscribe(leave), engine.subscribe(lambda event: heard.append(event.name), events=["request.done"]):
        engine.generate("x", max_tokens=2).result()
        engine.close(drain=True)
    assert heard == ["request.done"]


def test_the_interpreter_ends_while_a_strategy_still_works() -> None:
    script = f"""
import time
from llama_batch import Engine

def slow(view):
    end = time.time() + 1
    while time.time() < end:
        pass
    return {{}}

engine = Engine({SIM!r}, batch_strategy=slow)
engine.wait_ready()
stream = engine.stream("x", max_tokens=100_000)
next(stream)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_split_streams_smaller_than_a_token_refuse_prompts_and_live() -> None:
    with Engine(SIM, n_ctx=4, n_parallel=8, kv_unified=False) as engine, pytest.raises(Exception, match="room for"):
        engine.generate("xy", max_tokens=2).result()


def test_an_engine_whose_strategy_refers_to_it_is_collected() -> None:
    class Fair:
        def __init__(self) -> None:
            self.engine = Engine(SIM, batch_strategy=self.share)

        def share(self, view: StrategyView) -> dict[int, int]:
            return dict.fromkeys((r.request_id for r in view.requests), self.engine.stats().n_parallel)

    fair = Fair()
    assert fair.engine.generate("x", max_tokens=3).result().text
    gone = weakref.ref(fair.engine)
    del fair
    gc.collect()
    assert gone() is None


def test_the_interpreter_ends_though_a_strategy_never_does() -> None:
    script = f"""
from llama_batch import Engine

def endless(view):
    while True:
        pass

engine = Engine({SIM!r}, batch_strategy=endless)
next(engine.stream("x", max_tokens=100_000))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_stands_for_one_thing_is_neither_copied_nor_pickled(engine: Engine) -> None:
    with engine.subscribe(print) as subscription:
        unique = (engine, engine.generate("x", max_tokens=1), subscription, engine.events(), engine.map(["x"]))
        for thing in unique:
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    attempt(thing)
    assert engine.generate("x", max_tokens=2).result().text


def test_an_error_of_a_prompt_itself_is_raised_as_it_is(engine: Engine) -> None:
    class Broken(list[int]):
        def __len__(self) -> int:
            raise RuntimeError("boom")

    class Torn(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("boom")

    for prompt in (Broken([1]), Torn([1])):
        with pytest.raises(RuntimeError, match="boom"):
            engine.generate(prompt)
    assert engine.generate("x", max_tokens=2).result().text


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
def test_a_path_that_is_not_utf_8_is_a_path(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")
    with pytest.raises(ModelNotFoundError):
        Engine(path)
    Path(path).write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="cut short"), Engine(path):
        pass


def test_one_generation_is_read_in_several_loops_at_once(engine: Engine) -> None:
    generation = engine.stream("x", max_tokens=2000)
    seen: list[int] = []

    async def read() -> None:
        async for chunk in generation:
            seen.extend(chunk.token_ids)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        readers = [threading.Thread(target=asyncio.run, args=(read(),), daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert [reader.is_alive() for reader in readers] == [False] * 4
    assert len(seen) == 2000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_closed_under_their_readers_leave_nothing_behind(engine: Engine) -> None:
    async def read() -> None:
        async for _ in engine.stream("x", max_tokens=10**6):
            pass

    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []
    n_files = n_open_files()
    for _ in range(10):
        loop = asyncio.new_event_loop()
        task = loop.create_task(read())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        loops.append(weakref.ref(loop))
        del loop, task
    gc.collect()
    assert [loop() for loop in loops] == [None] * 10
    assert engine.generate("y", max_tokens=1).result(10).text
    while engine.stats().in_flight:
        time.sleep(0.01)
    assert n_open_files() <= n_files


def test_loops_that_gave_up_a_request_that_runs_leave_no_files_open(engine: Engine) -> None:
    generation = engine.generate("x", max_tokens=10**6)
    waiter = threading.Thread(target=generation.result)
    waiter.start()

    async def wait() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.002):
                await generation

    asyncio.run(wait())
    n_files = n_open_files()
    for _ in range(30):
        asyncio.run(wait())
    assert n_open_files() <= n_files
    generation.cancel()
    waiter.join()


FORKS = {
    "leaving a with block": """
with Engine(SIM) as engine:
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
""",
    "while a strategy works": """
def slow(view):
    asked.set()
    time.sleep(0.2)
    return {}
engine = Engine(SIM, batch_strategy=slow)
stream = engine.stream("x", max_tokens=100_000)
asked.wait()
if os.fork() == 0:
    if not _core.wait_for_strategies(0.0):
        print("it waits for a thread of its parent")
    sys.exit(0)
os.wait()
""",
    "in a subscriber": """
def fork(event):
    if not asked.is_set():
        asked.set()
        if os.fork() == 0:
            return
        os.wait()
engine = Engine(SIM)
engine.subscribe(fork)
engine.generate("x", max_tokens=2).result()
engine.close(drain=True)
""",
    "in a strategy": """
def fork(view):
    if not asked.is_set():
        asked.set()
        if os.fork() > 0:
            os.wait()
    return {}
engine = Engine(SIM, batch_strategy=fork)
engine.generate("x", max_tokens=2).result()
engine.close(drain=True)
""",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("script", FORKS.values(), ids=FORKS)
def test_a_forked_child_ends_quietly(script: str) -> None:
    head = "import os, sys, threading, time\nfrom llama_batch import Engine, _core\nasked = threading.Event()\n"
    code = f"{head}SIM = {SIM!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_interpreters_end_waits_for_all_slow_subscribers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 0.0, []

    class Slow:
        """A thread that is still calling its subscriber."""

        def join(self, timeout: float) -> None:
            nonlocal now
            now += timeout
            waits.append(timeout)

    monkeypatch.setattr("llama_batch.telemetry._pumps", [Slow() for _ in range(8)])
    monkeypatch.setattr("llama_batch.telemetry.time.monotonic", lambda: now)
    telemetry.join_pumps(1.0)
    assert (len(waits), sum(waits)) == (8, 1.0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFoundError, match="no regular file"):
        Engine(tmp_path / "pipe.gguf")


def test_a_message_says_what_is_wrong_with_it(engine: Engine) -> None:
    with pytest.raises(ChatTemplateError, match=r"^message 1 has no \"content\"$"):
        engine.chat([{"role": "user", "content": "a"}, {"role": "user"}]).result()
    with pytest.raises(ChatTemplateError, match=r"^messages are text or a list of messages, not dict$"):
        engine.chat({"role": "user"}).result()  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="a tuple that holds something else"):
        engine.generate("x", session=(None,))  # type: ignore[arg-type]


def test_a_subscriber_that_raises_is_reported_without_any_setting_up() -> None:
    script = f"""
from llama_batch import Engine
with Engine({SIM!r}) as engine:
    engine.subscribe(lambda event: 1 / 0)
    engine.generate("x", max_tokens=1).result()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "A subscriber raised" in done.stderr
    assert "ZeroDivisionError" in done.stderr
