"""Real answers of a real model: batched, cached, parked, and the same as alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oracle import Oracle

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "The three primary colours are",
    "Water boils at",
    "In 1969, the first man on the moon",
    "To make bread you need",
    "The sun rises in the",
    "A triangle has",
    "The opposite of hot is",
    "Roses are red, violets are",
    "The largest planet of the solar system is",
    "import numpy as np\n",
    "Dear Sir or Madam,",
    "The quick brown fox",
    "Two plus two is",
]


def test_sixteen_prompts_in_one_batch_get_the_answers_that_they_get_alone(engine: Engine, oracle: Oracle) -> None:
    model = engine.model
    generations = [engine.generate(prompt, max_tokens=32, temp=0, cache_prompt=False) for prompt in PROMPTS]
    answers = [generation.result() for generation in generations]
    texts = [(model.tokenize(p), a.token_ids) for p, a in zip(PROMPTS, answers, strict=True)]
    allowed = oracle.assert_greedy(texts)
    assert "Paris" in answers[0].text
    # The oracle can say no: another text's tokens are not what this prompt gives.
    assert max(oracle.gaps(texts[0][0], texts[5][1])) > allowed


def test_the_next_turn_of_a_chat_reuses_its_history_and_answers_the_same(engine: Engine, oracle: Oracle) -> None:
    first = engine.generate(" ".join(PROMPTS), max_tokens=24, temp=0).result()
    history = [*engine.model.tokenize(" ".join(PROMPTS)), *first.token_ids]
    prompt = [*history, *engine.model.tokenize(" And then", add_special=False)]
    second = engine.generate(prompt, max_tokens=24, temp=0).result()
    assert second.usage.prefix_cache_tokens >= len(history) - 1
    oracle.assert_greedy([(prompt, second.token_ids)])


def test_prompts_longer_than_a_chunk_are_read_in_chunks(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_parallel=2, n_ctx=2048, chunk_size=64) as engine:
        text = " ".join(PROMPTS * 4)
        ticks: list[int] = []
        with engine.subscribe(lambda tick: ticks.append(int(tick.measurements["prefill_tokens"])), events=["tick"]):
            answers = [engine.generate(f"{n} {text}", max_tokens=8, temp=0) for n in range(2)]
            done = [answer.result() for answer in answers]
        prompts = [engine.model.tokenize(f"{n} {text}") for n in range(2)]
        oracle.assert_greedy(zip(prompts, (d.token_ids for d in done), strict=True))
        assert max(ticks) <= 128


def test_twice_as_many_tokens_as_the_kv_cache_holds_all_complete(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_parallel=8, n_ctx=512) as engine:
        generations = [engine.generate(prompt, max_tokens=120, temp=0) for prompt in PROMPTS[:8]]
        answers = [generation.result() for generation in generations]
        stats = engine.stats()
        texts = [(engine.model.tokenize(p), a.token_ids) for p, a in zip(PROMPTS, answers, strict=False)]
        assert all(answer.finish_reason in {"eog", "max_tokens"} for answer in answers)
        assert stats.n_parked > 0, "the run was tight enough to park"
        oracle.assert_greedy(texts)


@pytest.fixture(scope="module")
def bare(smollm2: Path) -> Iterator[Engine]:
    """An engine that holds nothing else: where others lie among the KV cells moves the logits, and so what is drawn."""
    with Engine(smollm2, n_parallel=1, n_ctx=1024) as engine:
        yield engine


def test_a_seed_gives_the_same_text_again(bare: Engine) -> None:
    def draw(seed: int) -> str:
        return (
            bare.generate("My favourite animal", max_tokens=24, temp=1.2, seed=seed, cache_prompt=False).result().text
        )

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_a_request_without_a_seed_reports_the_one_it_drew(bare: Engine) -> None:
    done = bare.generate("My favourite animal", max_tokens=24, temp=1.2, cache_prompt=False).result()
    again = bare.generate("My favourite animal", max_tokens=24, temp=1.2, seed=done.seed, cache_prompt=False)
    assert again.result().text == done.text


def test_chat_applies_the_models_template(engine: Engine) -> None:
    done = engine.chat("What is the capital of France? Answer with one word.", max_tokens=16, temp=0).result()
    assert "Paris" in done.text
    assert done.finish_reason == "eog"
    assert "<|im_end|>" not in done.text


def test_emoji_and_chinese_arrive_in_whole_characters(engine: Engine) -> None:
    for text in ["🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙", "你好你好你好你好你好你好你好你好"]:
        stream = engine.stream(text, max_tokens=24, temp=0)
        chunks = list(stream)
        assert "".join(chunks) == stream.result().text
        assert any(ord(character) > 0x2000 for character in stream.result().text), "it goes on in that script"
        assert "\ufffd" not in stream.result().text.rstrip("\ufffd")
        model = engine.model
        assert model.detokenize(model.tokenize(text, add_special=False)) == text
