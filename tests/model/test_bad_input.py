"""Bad input gets its typed error, at once, and the engine goes on serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import (
    ContextFullError,
    EmptyPromptError,
    Engine,
    LlamaBatchError,
    ModelLoadError,
    ModelNotFoundError,
    OptionError,
    PromptError,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temprature": 0.5}, "did you mean"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temp": float("nan")}, "temp"),
        ({"temp": float("inf")}, "temp"),
        ({"top_p": 1.5}, "top_p"),
        ({"timeout": -3}, "timeout"),
        ({"cache_prompt": 1}, "cache_prompt"),
        ({"temp": 0.5, "temperature": 0.6}, "twice"),
    ],
)
def test_a_wrong_option_is_named_by_the_call_itself(engine: Engine, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        engine.generate("Hello", **options)


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("", EmptyPromptError),
        ([], EmptyPromptError),
        ([1, 2, 49152], PromptError),
        ([-1], PromptError),
        ([10**12], PromptError),
        ("a lone \ud800 surrogate", PromptError),
        ("word " * 9000, ContextFullError),
    ],
)
def test_a_prompt_that_cannot_be_fails_alone(engine: Engine, prompt: Any, error: type[LlamaBatchError]) -> None:
    with pytest.raises(error):
        engine.generate(prompt, max_tokens=2).result()
    assert engine.generate("Hello", max_tokens=2).result().usage.generated_tokens > 0


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(engine: Engine) -> None:
    with pytest.raises(ContextFullError) as caught:
        engine.generate("word " * 9000).result()
    assert caught.value.n_prompt_tokens > 8192
    assert caught.value.n_ctx == 8192


def test_nul_in_a_text_is_text(engine: Engine) -> None:
    assert engine.generate("a\0b", max_tokens=2).result().usage.prompt_tokens >= 2


def test_files_that_are_no_model_say_what_they_are(tmp_path: Path, smollm2: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        Engine(tmp_path / "missing.gguf")
    with pytest.raises(LlamaBatchError):
        Engine(tmp_path).wait_ready()
    (tmp_path / "text.gguf").write_text("this is no model")
    with pytest.raises(ModelLoadError, match="GGUF"):
        Engine(tmp_path / "text.gguf").wait_ready()
    whole = smollm2.read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match="cut short"):
        Engine(tmp_path / "short.gguf").wait_ready()
    at = whole.index(b"general.architecture") + len(b"general.architecture") + 4 + 8
    (tmp_path / "strange.gguf").write_bytes(whole[:at] + b"llamb" + whole[at + 5 :])
    with pytest.raises(ModelLoadError, match="llamb"):
        Engine(tmp_path / "strange.gguf").wait_ready()


def test_a_context_that_cannot_fit_in_memory_is_refused_before_it_is_allocated(smollm2: Path) -> None:
    with pytest.raises(ModelLoadError, match="memory"):
        Engine(smollm2, n_ctx=16_000_000).wait_ready()


def test_requests_to_a_model_that_failed_to_load_fail_with_its_reason() -> None:
    engine = Engine("sim:?load_error=gone")
    with pytest.raises(ModelLoadError, match="gone"):
        engine.generate("Hello").result()
    with pytest.raises(ModelLoadError, match="gone"):
        engine.wait_ready()
    assert engine.state == "failed"
