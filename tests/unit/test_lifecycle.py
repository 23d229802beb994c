"""An engine from its start to its end, however that comes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from llama_batch import (
    Engine,
    EngineClosedError,
    EngineForkedError,
    EngineNotReadyError,
    ModelLoadError,
    Stats,
)


def script(body: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a script of its own; nothing may be printed that it does not print."""
    command = [sys.executable, "-X", "faulthandler", "-c", body]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_with_waits_for_the_model_and_serves_what_is_under_way() -> None:
    with Engine("sim:?load_ms=50&pass_ms=5", name="bert") as engine:
        assert (engine.state, engine.name) == ("ready", "bert")
        generation = engine.generate("x", max_tokens=20)
    assert generation.done()
    assert generation.result().finish_reason == "max_tokens"
    assert engine.state == "closed"


def test_leaving_with_by_an_exception_cancels() -> None:
    with pytest.raises(ZeroDivisionError), Engine("sim:?pass_ms=20") as engine:  # noqa: PT012
        generation = engine.generate("x", max_tokens=10_000)
        raise ZeroDivisionError
    assert generation.result().finish_reason == "cancelled"


def test_the_model_is_there_once_it_is_loaded_and_not_before() -> None:
    engine = Engine("sim:?load_ms=1000")
    with pytest.raises(EngineNotReadyError):
        _ = engine.model
    assert str(engine.state) == "loading"
    assert engine.wait_ready(timeout=0.001) is False
    assert engine.wait_ready() is True
    assert engine.state == "ready"
    assert engine.model.n_vocab > 0
    assert engine.stats().load_s is not None
    engine.close()
    with pytest.raises(EngineClosedError):
        _ = engine.model
    with pytest.raises(EngineClosedError):
        engine.wait_ready()


def test_a_failed_load_raises_from_every_use() -> None:
    engine = Engine("sim:?load_ms=20&load_error=unknown architecture")
    generation = engine.generate("x")
    with pytest.raises(ModelLoadError, match="unknown architecture"):
        generation.result(timeout=10)
    for use in (engine.wait_ready, lambda: engine.model, lambda: engine.generate("y").result()):
        with pytest.raises(ModelLoadError):
            use()
    assert engine.state == "failed"
    with pytest.raises(ModelLoadError), Engine("sim:?load_error=x"):
        pass


def test_a_closed_engine_refuses_and_can_be_closed_again() -> None:
    engine = Engine("sim:?pass_ms=20", n_parallel=1)
    running, waiting = (engine.generate("x", max_tokens=10_000) for _ in range(2))
    assert engine.close() is True
    assert {running.result().finish_reason, waiting.result().finish_reason} == {"cancelled"}
    assert engine.close(drain=True) is True
    with pytest.raises(EngineClosedError):
        engine.generate("x").result()
    assert isinstance(engine.stats(), Stats)
    assert repr(engine) == "<Engine 'sim:?pass_ms=20' closed>"


def test_a_drain_that_takes_too_long_is_cut() -> None:
    engine = Engine("sim:?pass_ms=20")
    generation = engine.generate("x", max_tokens=100_000)
    assert engine.close(drain=True, timeout=0.1) is False
    assert generation.result(timeout=10).finish_reason == "cancelled"
    assert engine.close() is True


def test_an_engine_that_nobody_holds_closes() -> None:
    engine = Engine("sim:?pass_ms=5")
    generation = engine.stream("x", max_tokens=100_000)
    next(generation)
    gone = weakref.ref(engine)
    before = threading.active_count()
    del engine
    assert gone() is not None, "a running request keeps its engine"
    del generation
    gc.collect()
    assert gone() is None
    assert threading.active_count() <= before


def test_the_end_of_the_interpreter_with_running_streams_is_clean() -> None:
    done = script(
        "import threading, llama_batch\n"
        "engine = llama_batch.Engine('sim:?pass_ms=5')\n"
        "engine.subscribe(lambda event: None)\n"
        "streams = [engine.stream('x', max_tokens=100000) for _ in range(4)]\n"
        "next(streams[0])\n"
        "threading.Thread(target=lambda: list(streams[1]), daemon=True).start()\n"
        "other = llama_batch.Engine('sim:?load_ms=100000')\n"
        "waiting = other.generate('x')\n"
        "print('end')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_end_of_a_loop_with_running_streams_is_clean() -> None:
    done = script(
        "import asyncio, llama_batch\n"
        "async def main():\n"
        "    engine = llama_batch.Engine('sim:?pass_ms=5')\n"
        "    tasks = [asyncio.create_task(engine.generate('x', max_tokens=100000)) for _ in range(3)]\n"
        "    stream = engine.stream('x', max_tokens=100000)\n"
        "    print(len(await anext(stream)) > 0)\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_a_clear_error_and_ends_cleanly() -> None:
    done = script(
        "import os, llama_batch, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "engine = llama_batch.Engine('sim:?pass_ms=5')\n"
        "stream = engine.stream('x', max_tokens=100000)\n"
        "next(stream)\n"
        "events = engine.events()\n"
        "job = engine.embed(['x'] * 100000)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for use in (lambda: engine.generate('x'), engine.stats, engine.metrics, stream.result,\n"
        "                engine.wait_ready, lambda: list(events), lambda: engine.embed('x'), job.result):\n"
        "        try:\n"
        "            use()\n"
        "            print('used')\n"
        "        except llama_batch.EngineForkedError as error:\n"
        "            print(error.code)\n"
        "    del stream, job, engine\n"
        "    with llama_batch.Engine('sim:') as own:\n"
        "        print(own.generate('x', max_tokens=1).result().finish_reason)\n"
        "else:\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    print(os.waitstatus_to_exitcode(status), stream.done())\n"
    )
    assert done.stderr == ""
    assert done.stdout == "forked\n" * 8 + "max_tokens\n0 False\n"
    assert done.returncode == 0
    assert issubclass(EngineForkedError, EngineClosedError)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal to send")
@pytest.mark.parametrize(
    "wait",
    [
        "generation.result()",
        "list(generation)",
        "list(engine.map(['x']*9, max_tokens=9999))",
        "engine.embed(['x']*99999).result()",
    ],
)
def test_ctrl_c_ends_a_wait(wait: str) -> None:
    body = (
        "import llama_batch\n"
        "engine = llama_batch.Engine('sim:?pass_ms=5')\n"
        "engine.wait_ready()\n"
        "generation = engine.generate('x', max_tokens=100000)\n"
        "print('waiting', flush=True)\n"
        f"try:\n    {wait}\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', generation.done())\n"
    )
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "interrupted False\n")


def test_an_import_loads_no_optional_dependency() -> None:
    done = script(
        "import sys, llama_batch\n"
        "print(sorted({'click', 'rich', 'platformdirs', 'numpy', 'asyncio', 'trio', 'json'} & set(sys.modules)))\n"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_streams_open_and_close_without_growth() -> None:
    before = threading.active_count()
    with Engine("sim:?pass_ms=0&row_ms=0", n_parallel=4, max_queue=0) as engine:
        for _ in range(1000):
            for _chunk in engine.stream("x", max_tokens=50):
                break
        engine.generate("x", max_tokens=1).result()
        stats = engine.stats()
        assert stats.n_finished >= 900
        assert stats.in_flight == 0
        assert stats.queue_depth == 0
    gc.collect()
    assert threading.active_count() <= before
