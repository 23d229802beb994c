"""Options of sampling: what is accepted, what is refused, and that both leave the engine serving."""

from __future__ import annotations

from typing import Any

import pytest
from llama_batch import Completion, Engine, OptionError

SIM = "sim:?pass_ms=0&row_ms=0"
PROMPT = list(range(10, 30))


def ask(engine: Engine, **options: Any) -> Completion:
    return engine.generate(PROMPT, **{"temp": 0, "max_tokens": 40, **options}).result(timeout=60)


@pytest.fixture
def whole() -> Completion:
    """The answer without any rule."""
    with Engine(SIM) as engine:
        return ask(engine)


def test_banned_tokens_are_not_drawn_however_they_are_named(whole: Completion) -> None:
    banned = whole.token_ids[0]
    with Engine(SIM) as engine:
        for rule in (
            {"banned_token_ids": [banned]},
            {"logit_bias": {banned: float("-inf")}},
            {"logit_bias": {banned: False}},
        ):
            done = ask(engine, **rule)
            assert len(done.token_ids) == 40, rule
            assert banned not in done.token_ids, rule
        assert ask(engine).token_ids == whole.token_ids


def test_allowed_tokens_alone_are_drawn(whole: Completion) -> None:
    allowed = sorted(set(range(300)) - set(whole.token_ids[:3]))
    with Engine(SIM) as engine:
        done = ask(engine, allowed_token_ids=allowed)
        assert set(done.token_ids) <= set(allowed)
        assert len(done.token_ids) == 40


def test_a_text_is_banned_only_as_a_whole() -> None:
    # The simulated tokenizer reads bytes: the prompt ends with the beginning of the word.
    with Engine(SIM) as engine:
        tokens = engine.model.tokenize("ab")
        assert len(tokens) == 2
        allowed = [*tokens, 300]
        done = engine.generate(tokens[:1], temp=0, max_tokens=60, allowed_token_ids=allowed, bad_words="ab").result()
        pairs = list(zip((tokens[0], *done.token_ids), done.token_ids, strict=False))
        assert (tokens[0], tokens[1]) not in pairs


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"logit_bias": {10**6: 1.0}}, "logit_bias holds 1000000, which is no token"),
        ({"banned_token_ids": [10**6]}, "banned_token_ids holds 1000000"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids holds 1000000"),
        ({"allowed_token_ids": []}, "leaves no token"),
        ({"allowed_token_ids": [7], "banned_token_ids": [7]}, "leaves no token"),
        ({"logit_bias": [1]}, "must be a dict"),
        ({"logit_bias": {"": 1.0}}, "empty text"),
        ({"logit_bias": {1: "x"}}, "a bias that must be a number or False, not str"),
        ({"logit_bias": {1: True}}, "a bias that must be a number or False, not bool"),
        ({"logit_bias": {1: float("nan")}}, "between -1e6 and 1e6"),
        ({"logit_bias": {1: float("inf")}}, "between -1e6 and 1e6"),
        ({"logit_bias": {1.5: 1}}, "a token that must be an integer"),
        ({"logit_bias": {None: 1}}, "a token that must be an integer"),
        ({"logit_bias": {(1, 2): 1}}, "a token that must be an integer"),
        ({"samplers": "top_k"}, "samplers must be a list"),
        ({"samplers": ["top_q"]}, "must hold names of"),
        ({"samplers": ["top_k", "top_k"]}, "twice"),
        ({"samplers": ["typ_p", "typical_p"]}, "twice"),
        ({"mirostat": 3}, "mirostat must be between 0 and 2"),
        ({"typical_p": 1.5}, "typical_p must be between"),
        ({"dry_multiplier": -1}, "dry_multiplier must be between"),
        ({"dry_sequence_breakers": [""]}, "must not be empty text"),
        ({"bad_words": [3]}, "bad_words"),
        ({"n": 0}, "n must be between"),
        ({"logprobs": 1001}, "logprobs must be between"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with Engine(SIM) as engine:
        with pytest.raises(OptionError, match=reason):
            ask(engine, **options)
        assert len(ask(engine).token_ids) == 40


@pytest.mark.parametrize(
    "options",
    [
        {"samplers": []},
        {"samplers": ["temp", "typ_p", "top_k"]},
        {"typ_p": 0.9},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n", "."]},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"logit_bias": {}},
        {"bad_words": []},
        {"n_probs": 2},
        {"top_logprobs": 2},
    ],
)
def test_other_names_and_empty_lists_are_accepted(options: dict[str, Any]) -> None:
    with Engine(SIM) as engine:
        assert len(ask(engine, **options).token_ids) == 40


def test_a_rule_that_is_wrong_while_the_model_loads_fails_its_request_alone() -> None:
    engine = Engine("sim:?pass_ms=0&row_ms=0&load_ms=200")
    wrong = engine.generate(PROMPT, max_tokens=3, banned_token_ids=[10**6], n=3)
    right = engine.generate(PROMPT, max_tokens=3)
    with engine:
        with pytest.raises(OptionError, match="banned_token_ids"):
            wrong.result(timeout=60)
        assert len(right.result(timeout=60).token_ids) == 3
