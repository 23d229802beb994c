"""Sampling on a real model: what is told of tokens agrees however it was computed, and rules hold in real answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from llama_batch import Completion, Engine, TokenLogprobs

PROMPT = "The sky is blue because"
# The same token, computed in chunks of another shape: see ARCHITECTURE.md on what moves logits.
CLOSE = 0.35


def told(done: Completion) -> tuple[TokenLogprobs, ...]:
    assert done.logprobs is not None
    return done.logprobs


def test_what_is_told_while_generating_is_told_of_the_same_text_as_a_prompt(engine: Engine) -> None:
    prompt = engine.model.tokenize(PROMPT)
    done = engine.generate(prompt, temp=0, max_tokens=24, logprobs=5).result()
    again = engine.generate([*prompt, *done.token_ids], max_tokens=0, prompt_logprobs=5).result()
    assert again.prompt_logprobs is not None
    assert len(again.prompt_logprobs) == len(prompt) + 24
    for drawn, read in zip(told(done), again.prompt_logprobs[len(prompt) :], strict=True):
        assert read is not None
        assert read.token_id == drawn.token_id
        assert math.isclose(read.logprob, drawn.logprob, abs_tol=CLOSE)
        assert drawn.rank == 1
        assert drawn.top[0].token_id == drawn.token_id
        assert drawn.top[0].logprob == drawn.logprob
        assert [top.rank for top in drawn.top] == [1, 2, 3, 4, 5]
        assert sorted((top.logprob for top in drawn.top), reverse=True) == [top.logprob for top in drawn.top]
        assert drawn.bytes.decode() == engine.model.detokenize([drawn.token_id]) or drawn.text.startswith(" ")


def test_all_probabilities_together_are_one(engine: Engine) -> None:
    one = engine.generate(PROMPT, temp=0, max_tokens=1, logprobs=1000).result()
    total = sum(top.probability for top in told(one)[0].top)
    assert 0.8 < total <= 1.0001
    some = engine.generate(PROMPT, top_k=7, top_p=1, min_p=0, max_tokens=1, logprobs=20, post_sampling_logprobs=True)
    left = told(some.result())[0].top
    assert len(left) == 7
    assert math.isclose(sum(top.probability for top in left), 1, abs_tol=1e-4)


def test_a_prompt_of_many_tokens_is_told_of_beside_others(engine: Engine) -> None:
    long = engine.model.tokenize("All work and no play makes Jack a dull boy. " * 30)
    others = [engine.generate(PROMPT, max_tokens=40) for _ in range(6)]
    done = engine.generate(long, max_tokens=1, prompt_logprobs=0).result()
    assert done.prompt_logprobs is not None
    assert [t and t.token_id for t in done.prompt_logprobs] == [None, *long[1:]]
    # The model knows by then how it goes on.
    last = [t.logprob for t in done.prompt_logprobs[-50:] if t]
    assert sum(last) / len(last) > -0.3
    for other in others:
        other.result()


def test_rules_for_tokens_hold_in_real_answers(engine: Engine) -> None:
    plain = engine.generate(PROMPT, temp=0, max_tokens=20).result()
    word = engine.model.detokenize(plain.token_ids[:1]).strip()
    biased = engine.generate(PROMPT, temp=0, max_tokens=20, logit_bias={plain.token_ids[0]: -100}).result()
    assert plain.token_ids[0] not in biased.token_ids
    banned = engine.generate(PROMPT, temp=0, max_tokens=20, bad_words=[word]).result()
    assert banned.token_ids[0] != plain.token_ids[0]
    only = engine.generate(PROMPT, max_tokens=10, allowed_token_ids=[*engine.model.tokenize(" yes"), 2]).result()
    assert set(only.token_ids) <= {*engine.model.tokenize(" yes")}
    wished = engine.generate(PROMPT, temp=0, max_tokens=6, logit_bias={" wish": 100}).result()
    assert wished.text == " wish" * 6


def test_dry_ends_a_repetition_that_goes_on_without_it(engine: Engine) -> None:
    prompt = "one two three four five six. " * 6
    same = engine.generate(prompt, temp=0, max_tokens=24).result().text
    other = engine.generate(prompt, temp=0, max_tokens=24, dry_multiplier=2.0, dry_penalty_last_n=-1).result().text

    def share_of_new(text: str) -> float:
        pieces = [text[i : i + 8] for i in range(len(text) - 8)]
        return len(set(pieces)) / len(pieces)

    assert share_of_new(same) < 0.5 < share_of_new(other)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_s_surprise_comes_near_its_target(engine: Engine, version: int) -> None:
    surprises = {}
    for tau in (1.5, 5.0):
        done = engine.generate(PROMPT, mirostat=version, mirostat_tau=tau, temp=1, max_tokens=150, ignore_eos=True,
                               logprobs=0, seed=3).result()  # fmt: skip
        bits = [-t.logprob / math.log(2) for t in told(done)]
        surprises[tau] = sum(bits) / len(bits)
    assert abs(surprises[1.5] - 1.5) < 0.8
    assert surprises[1.5] + 1 < surprises[5.0]


def test_answers_to_one_prompt_are_those_of_their_seeds(engine: Engine) -> None:
    done = engine.generate(PROMPT, n=4, max_tokens=8, seed=11, temp=1.2).result()
    assert len({choice.text for choice in done.choices}) > 1
    n_prompt = len(engine.model.tokenize(PROMPT))
    assert all(choice.usage.prompt_tokens == n_prompt for choice in done.choices)
