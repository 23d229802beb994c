"""llama.cpp in a process of its own, on a real model: all that an engine offers, and what its end is."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from isolated import children, wait_until
from llama_batch import BackendLostError, Engine, ModelLoadError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oracle import Oracle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests look for processes in /proc")

GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 24}
PROMPT = "The capital of France is"
STORY = " ".join(f"In the year {1900 + n} the town of Millbrook had {n * 37 % 91} bakers." for n in range(12))


@pytest.fixture(scope="module")
def apart(smollm2: Path) -> Iterator[Engine]:
    with Engine(smollm2, n_parallel=4, n_ctx=4096, isolate=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def here(smollm2: Path) -> Iterator[Engine]:
    with Engine(smollm2, n_parallel=4, n_ctx=4096) as engine:
        yield engine


def test_greedy_text_is_that_of_this_process(apart: Engine, oracle: Oracle) -> None:
    prompts = [apart.model.tokenize(prompt) for prompt in (PROMPT, "def fibonacci(n):")]
    oracle.assert_greedy([(prompt, apart.generate(prompt, **GREEDY).result().token_ids) for prompt in prompts])


def test_the_model_is_known_here_as_there(apart: Engine, here: Engine) -> None:
    figures = ("n_ctx_train", "n_embd", "n_layer", "n_params", "size_bytes", "n_vocab")
    for name in (*figures, "architecture"):
        assert getattr(apart.model, name) == getattr(here.model, name), name
    assert apart.model.description.startswith("llama")  # without the quantisation
    assert apart.model.metadata == here.model.metadata
    assert apart.model.tokenize(STORY) == here.model.tokenize(STORY)


def test_chat_grammars_embeddings_and_logprobs_work(apart: Engine, here: Engine) -> None:
    assert "Bonjour" in apart.chat("Say hello in French.", **GREEDY).result().text
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    parsed = apart.chat("How old are you?", json_schema=schema, temp=0, max_tokens=60).result().parsed
    assert parsed is not None
    assert "age" in parsed
    assert apart.generate("Is it?", choice=["yes", "no"], **GREEDY).result().text in {"yes", "no"}
    assert len(apart.embed("a town").result().vectors[0]) == here.model.n_embd
    told = apart.generate(PROMPT, logprobs=2, prompt_logprobs=1, **GREEDY).result()
    assert told.logprobs is not None
    assert len(told.logprobs) == told.usage.generated_tokens


def test_sessions_and_the_ram_tier_work(smollm2: Path, tmp_path: Path) -> None:
    with Engine(smollm2, n_parallel=1, n_ctx=1024, prompt_cache_ram_mb=64, isolate=True) as engine:
        prompt = engine.model.tokenize(STORY)
        first = engine.generate(prompt, session="tale", **GREEDY).result()
        kept = engine.save_session("tale", tmp_path / "tale")
        assert kept.n_tokens >= len(prompt)
    with Engine(smollm2, n_parallel=1, n_ctx=1024, isolate=True) as engine:
        loaded = engine.load_session(tmp_path / "tale")
        turn = [*prompt, *first.token_ids, *engine.model.tokenize(" And then")]
        done = engine.generate(turn, session="tale", **GREEDY).result()
        assert done.usage.prefix_cache_tokens == loaded.n_restorable


def test_the_folder_below_outlives_a_backend(smollm2: Path, tmp_path: Path) -> None:
    with Engine(smollm2, n_parallel=1, n_ctx=1024, prompt_cache_dir=str(tmp_path), isolate=True) as engine:
        prompt = engine.model.tokenize(STORY)
        engine.generate(prompt, **GREEDY).result()
        wait_until(lambda: engine.stats().disk_cache_entries > 3)
        os.kill(max(children()), signal.SIGKILL)
        wait_until(lambda: engine.stats().n_backend_restarts == 1)
        assert engine.generate(prompt, **GREEDY).result().usage.prefix_cache_tokens > 100


def test_a_cancelled_request_ends_and_others_go_on(apart: Engine) -> None:
    long = apart.stream(PROMPT, temp=0, max_tokens=2000, ignore_eos=True)
    next(iter(long))
    other = apart.generate(PROMPT, **GREEDY)
    long.cancel()
    assert long.result(60).finish_reason == "cancelled"
    assert other.result(60).finish_reason in {"max_tokens", "eog"}


def test_a_killed_llama_cpp_is_an_error_and_the_next_request_is_answered(smollm2: Path) -> None:
    with Engine(smollm2, n_parallel=2, n_ctx=2048, isolate=True) as engine:
        running = [engine.stream(PROMPT, temp=0, max_tokens=1500, ignore_eos=True) for _ in range(2)]
        for job in running:
            next(iter(job))
        waiting = engine.generate(PROMPT, **GREEDY)
        os.kill(max(children()), signal.SIGABRT)  # the youngest is this engine's
        for job in running:
            with pytest.raises(BackendLostError, match="signal 6"):
                job.result(120)
        assert "Paris" in waiting.result(120).text


def test_what_computes_elsewhere_is_not_scored_here(apart: Engine) -> None:
    with pytest.raises(UnsupportedError, match="isolate"):
        apart.model._native.score([1, 2, 3], 1, 8)


def test_a_file_that_is_none_is_a_load_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelLoadError), Engine(path, isolate=True):
        pass


def test_an_option_that_does_not_fit_is_told_by_the_process(smollm2: Path) -> None:
    from llama_batch import OptionError

    with pytest.raises(OptionError, match="flash"), Engine(smollm2, isolate=True, type_v="q8_0", flash_attn="off"):
        pass
