"""Drafts by prompt lookup on a real model: no text changes by them, and each that is accepted saves a pass.

How many there are is a matter of what rows cost on this machine, and none of these tests: the simulator's are of that.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oracle import Oracle

VERSES = """\
The old lamp of the harbour master burns beside the quiet river.
Seven grey herons walk along the shore and wait for silver fish.
A baker in the narrow street has bread and honey in her window.
Nobody knows why the green door of the tower is never closed.
"""
COPYING = VERSES * 2 + VERSES[:27]
FREE = ["The capital of France is", "Once upon a time there was a", "To make bread you need", "def fibonacci(n):"]


@pytest.fixture(scope="module")
def drafting(smollm2: Path) -> Iterator[Engine]:
    """An engine that has learned what passes cost."""
    with Engine(smollm2, n_parallel=4, n_ctx=4096, cache_prompt=False) as engine:
        engine.generate(FREE[0], max_tokens=8, temp=0, n_draft=0).result()
        yield engine


def test_a_text_that_is_copied_is_what_greedy_decoding_gives_and_takes_a_pass_less_for_each_accepted_draft(
    drafting: Engine, oracle: Oracle
) -> None:
    model = drafting.model
    n_ticks = [drafting.stats().n_ticks]
    for n_draft in (0, 8):
        done = drafting.generate(COPYING, max_tokens=64, temp=0, n_draft=n_draft).result()
        n_ticks.append(drafting.stats().n_ticks)
        oracle.assert_greedy([(model.tokenize(COPYING), done.token_ids)])
        assert done.usage.generated_tokens == 64
        assert done.text.startswith(VERSES[27:60])
    assert done.usage.draft_tokens >= done.usage.accepted_tokens
    n_plain, n_drafted = n_ticks[1] - n_ticks[0], n_ticks[2] - n_ticks[1]
    assert n_plain - n_drafted == done.usage.accepted_tokens


def test_copies_beside_free_texts_are_each_what_greedy_decoding_gives(drafting: Engine, oracle: Oracle) -> None:
    prompts = [COPYING, *FREE[:3]]
    generations = [drafting.generate(prompt, max_tokens=32, temp=0) for prompt in prompts]
    answers = [generation.result() for generation in generations]
    oracle.assert_greedy((drafting.model.tokenize(p), a.token_ids) for p, a in zip(prompts, answers, strict=True))


def test_an_answer_that_ends_within_a_draft_leaves_a_cache_that_the_next_turn_can_go_on_from(
    smollm2: Path, oracle: Oracle
) -> None:
    with Engine(smollm2, n_parallel=1, n_ctx=2048) as engine:
        model = engine.model
        for max_tokens, stop in ((41, None), (64, "river")):
            first = engine.generate(COPYING, max_tokens=max_tokens, min_tokens=24, temp=0, stop=stop).result()
            assert first.finish_reason == ("stop" if stop else "max_tokens")
            history = [*model.tokenize(COPYING), *first.token_ids]
            prompt = [*history, *model.tokenize(" And then", add_special=False)]
            second = engine.generate(prompt, max_tokens=24, temp=0).result()
            # The last token was drawn and never computed; an answer before may have gone the same way and further.
            assert second.usage.prefix_cache_tokens >= len(history) - 1
            oracle.assert_greedy([(prompt, second.token_ids)])


def test_a_grammar_and_what_is_told_of_tokens_hold_with_drafts(drafting: Engine) -> None:
    prompt = "1 2 3 4 5 6 7 8 9\n" * 3
    done = drafting.generate(prompt, max_tokens=40, temp=0, regex="([0-9] ){5,12}[0-9]", logprobs=1).result()
    assert done.text.replace(" ", "").isdigit()
    assert done.logprobs is not None
    assert [told.token_id for told in done.logprobs] == list(done.token_ids)


def test_drafts_and_cancellations_in_many_threads_leave_the_engine_serving(drafting: Engine, oracle: Oracle) -> None:
    def one(n: int) -> tuple[str, tuple[int, ...]]:
        prompt = f"{n}\n{COPYING}"
        generation = drafting.stream(prompt, max_tokens=40, temp=0)
        if n % 3 == 0:
            next(iter(generation))
            generation.cancel()
        return prompt, generation.result().token_ids

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(one, range(12)))
    whole = [(drafting.model.tokenize(prompt), tokens) for prompt, tokens in texts if len(tokens) == 40]
    assert len(whole) >= 8
    oracle.assert_greedy(whole[:2])
    assert drafting.generate(FREE[1], max_tokens=4).result().usage.generated_tokens == 4


@pytest.mark.parametrize("bad", [-1, 65, 2.5, "many"])
def test_what_is_no_number_of_tokens_is_refused_by_name(drafting: Engine, bad: object) -> None:
    with pytest.raises(OptionError, match="n_draft"):
        drafting.generate("Hi", n_draft=bad)  # type: ignore[call-overload]
    assert drafting.generate("Hi", max_tokens=1).result().usage.generated_tokens == 1
