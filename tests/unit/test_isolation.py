"""A backend in a process of its own: what its end is to requests, engines and this process. On the simulated model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from isolated import children, n_files, wait_until
from llama_batch import BackendLostError, Engine, InferenceError, LlamaBatchError, ModelLoadError, OptionError
from llama_batch.errors import EngineClosedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests look for processes in /proc")

SIM = "sim:?pass_ms=2&row_ms=0"


def isolated(model: str = SIM, **options: Any) -> Engine:
    engine = Engine(model, isolate=True, **options)
    engine.wait_ready(60)
    return engine


def test_the_answer_is_the_one_of_a_backend_in_this_process() -> None:
    with Engine(SIM) as here, isolated() as there:
        prompts = [f"Tell me {n} tales." for n in range(8)]
        want = [here.generate(p, seed=n, max_tokens=30).result() for n, p in enumerate(prompts)]
        jobs = [there.generate(p, seed=n, max_tokens=30) for n, p in enumerate(prompts)]
        assert [job.result().text for job in jobs] == [done.text for done in want]
        assert there.model.tokenize("Tell me") == here.model.tokenize("Tell me")


def test_a_killed_backend_is_an_error_of_who_ran_and_of_nobody_else() -> None:
    with isolated(n_parallel=1) as engine:
        events = engine.events(events=["backend.*"])
        running = engine.stream("Once", max_tokens=100_000)
        next(iter(running))
        waiting = engine.generate("Twice", max_tokens=5)
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(BackendLostError, match="signal 9") as raised:
            running.result(60)
        assert raised.value.retryable
        assert raised.value.code == "backend_lost"
        assert isinstance(raised.value, InferenceError)
        assert waiting.result(60).usage.generated_tokens == 5
        assert engine.state == "ready"
        stats = engine.stats()
        assert (stats.n_backend_restarts, stats.is_backend_lost) == (1, False)
        assert [next(events).name for _ in range(3)] == ["backend.lost", "backend.retry", "backend.restored"]


def test_who_waits_fails_where_that_is_chosen() -> None:
    with isolated("sim:?pass_ms=2&load_ms=300", n_parallel=1, on_backend_loss="fail") as engine:
        running = engine.stream("Once", max_tokens=100_000)
        next(iter(running))
        waiting = engine.generate("Twice", max_tokens=5)
        os.kill(children()[0], signal.SIGKILL)
        for lost in (running, waiting):
            with pytest.raises(BackendLostError):
                lost.result(60)
        with pytest.raises(BackendLostError, match="on_backend_loss"):
            engine.generate("Thrice").result(60)
        wait_until(lambda: not engine.stats().is_backend_lost)
        assert engine.generate("Again", max_tokens=5).result(60).usage.generated_tokens == 5


def test_a_hung_backend_is_killed_after_its_time() -> None:
    with isolated(backend_timeout=5) as engine:
        running = engine.stream("Once", max_tokens=100_000)
        next(iter(running))
        os.kill(children()[0], signal.SIGSTOP)
        with pytest.raises(BackendLostError, match="backend_timeout"):
            running.result(60)
        assert engine.generate("Again", max_tokens=3).result(60).usage.generated_tokens == 3


def test_awaiting_requests_hear_of_the_loss_too() -> None:
    async def ask(engine: Engine) -> None:
        generation = engine.stream("Once", max_tokens=100_000)
        await anext(aiter(generation))
        task = asyncio.ensure_future(generation)
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(BackendLostError):
            await task
        assert (await engine.generate("Again", max_tokens=3)).usage.generated_tokens == 3

    with isolated() as engine:
        asyncio.run(ask(engine))


def test_an_engine_whose_backend_cannot_be_made_again_fails_for_good() -> None:
    engine = isolated(max_backend_restarts=0)
    os.kill(children()[0], signal.SIGKILL)
    wait_until(lambda: engine.state == "failed")
    with pytest.raises(ModelLoadError, match="max_backend_restarts"):
        engine.generate("Once").result(60)
    engine.close()


def test_a_python_sampler_is_refused_and_the_engine_goes_on() -> None:
    def likeliest(logits: Any) -> int:
        return int(logits.argmax())

    with isolated() as engine:
        for call in (engine.generate, engine.stream):
            with pytest.raises(OptionError, match="isolate"):
                call("Once", sampler=likeliest)
        with pytest.raises(OptionError, match="isolate"):
            list(engine.map(["a", "b"], sampler=likeliest))
        assert engine.generate("Once", max_tokens=3).result(60).usage.generated_tokens == 3


def test_a_python_batch_strategy_works() -> None:
    seen = []

    def strategy(view: Any) -> dict[int, int]:
        seen.append(view)
        return {row.request_id: min(row.n_remaining, 4) for row in view.requests}

    with isolated(batch_strategy=strategy) as engine:
        assert engine.generate("Once upon a time", max_tokens=5).result(60).usage.generated_tokens == 5
    assert seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolate": "perhaps"}, '"auto", "on", "off", True or False'),
        ({"isolate": 1}, "not int"),
        ({"on_backend_loss": "panic"}, "must be one of"),
        ({"max_backend_restarts": -1}, "between 0"),
        ({"backend_timeout": 0}, "between 0.01"),
        ({"backend_timeout": float("nan")}, "finite"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine(SIM, **options)


def test_a_load_that_fails_says_why() -> None:
    with pytest.raises(ModelLoadError, match="made of cheese"):
        isolated("sim:?load_error=made of cheese")
    wait_until(lambda: not children())


def test_without_an_interpreter_to_start_isolation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(OptionError, match="isolate"):
        Engine(SIM, isolate=True)


def test_nothing_is_left_of_closed_engines() -> None:
    isolated().close()
    before = n_files()
    for drain in (True, False):
        engine = isolated()
        job = engine.generate("Once", max_tokens=20 if drain else 100_000)
        engine.close(drain=drain)
        assert job.done()
    assert not children()
    assert n_files() == before


def test_closing_in_a_reload_ends_at_once_and_cancels() -> None:
    engine = isolated("sim:?load_ms=400")
    os.kill(children()[0], signal.SIGKILL)
    wait_until(lambda: engine.stats().is_backend_lost)
    waiting = engine.generate("Once")
    engine.close()
    assert waiting.result(60).finish_reason == "cancelled"
    assert not children()


def test_a_session_cannot_be_saved_while_there_is_no_backend(tmp_path: Path) -> None:
    with isolated("sim:?load_ms=2000&pass_ms=1") as engine:
        engine.generate("Once", max_tokens=3, session="tale").result(60)
        engine.save_session("tale", tmp_path / "tale")
        os.kill(children()[0], signal.SIGKILL)
        wait_until(lambda: engine.stats().is_backend_lost)
        with pytest.raises(BackendLostError):
            engine.save_session("tale", tmp_path / "other")
        with pytest.raises(BackendLostError):
            engine.load_session(tmp_path / "tale")
        wait_until(lambda: not engine.stats().is_backend_lost)
        assert engine.load_session(tmp_path / "tale").n_tokens > 0


def test_interrupts_and_terminations_are_the_parents_affair() -> None:
    with isolated() as engine:
        process = children()[0]
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process, sent)
        assert engine.generate("Once", max_tokens=3).result(60).usage.generated_tokens == 3
        assert engine.stats().n_backend_restarts == 0
        assert os.getpgid(process) != os.getpgid(0)


def test_it_ends_with_an_interpreter_that_is_killed() -> None:
    code = (
        "import os, signal, sys; from llama_batch import Engine; from isolated import children; "
        f"engine = Engine({SIM!r}, isolate=True); engine.wait_ready(60); print(children()[0], flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    process = int(done.stdout)

    def is_over() -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_until(is_over)


def test_the_process_cannot_be_had_with_descriptors_that_are_none() -> None:
    from llama_batch import _core

    for pair in ((0, 1), (5, 5), (-1, 7)):
        with pytest.raises(ValueError, match="descriptors"):
            _core.serve_isolated(*pair)


def test_losses_in_a_row_end_each_request_once() -> None:
    with isolated(n_parallel=2) as engine:
        outcomes: list[str] = []
        for _ in range(4):
            jobs = [engine.generate("Once", max_tokens=400) for _ in range(6)]
            wait_until(lambda: engine.stats().active_slots == 2)
            os.kill(children()[0], signal.SIGKILL)
            for job in jobs:
                try:
                    outcomes.append(job.result(60).finish_reason)
                except (LlamaBatchError, EngineClosedError) as error:
                    outcomes.append(error.code)
        assert len(outcomes) == 24
        assert set(outcomes) == {"max_tokens", "backend_lost"}
        assert outcomes.count("max_tokens") >= 16
