"""Structured output on a real model: what a grammar, schema, pattern or choice says of an answer is true of it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import jsonschema
import pytest
from llama_batch import GrammarError
from pydantic import BaseModel, Field
from schemas import SCHEMAS

if TYPE_CHECKING:
    from llama_batch import Engine


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    mood: Literal["happy", "sad"]


def test_answers_to_real_schemas_validate(engine: Engine) -> None:
    for schema, _ in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    asked = [
        (name, engine.chat(prompt, json_schema=schema, max_tokens=400, seed=seed, temp=temp))
        for name, (schema, prompt) in SCHEMAS.items()
        for seed, temp in ((1, 0.8),)
    ]
    n_whole = 0
    for name, generation in asked:
        done = generation.result()
        if done.finish_reason == "eog":
            n_whole += 1
            schema = SCHEMAS[name][0]
            validator = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            )
            validator.validate(json.loads(done.text))
            assert done.parsed == json.loads(done.text)
        else:
            assert done.finish_reason == "max_tokens"
            assert done.parsed is None
    assert n_whole >= 16


def test_a_class_of_pydantic_gives_its_object(engine: Engine) -> None:
    done = engine.chat("Invent a person.", json_schema=Person, max_tokens=120).result()
    assert isinstance(done.parsed, Person)
    many = engine.chat("Invent a person.", json_schema=Person, max_tokens=120, n=3, seed=2).result()
    assert all(isinstance(choice.parsed, Person) for choice in many.choices)


def test_patterns_choices_and_grammars_hold(engine: Engine) -> None:
    date = engine.generate("Today is ", regex=r"\d{4}-(0[1-9]|1[0-2])-\d\d").result()
    assert re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-\d\d", date.text)
    assert date.finish_reason == "eog"
    for seed in range(5):
        assert engine.generate("Sky?", choice=["yes", "no", "maybe so"], seed=seed).result().text in {
            "yes", "no", "maybe so",
        }  # fmt: skip
    lines = engine.generate("A list:\n", grammar='root ::= ("- " [a-z ]{1,12} "\\n"){3}', max_tokens=80).result()
    assert re.fullmatch(r"(- [a-z ]{1,12}\n){3}", lines.text)
    any_character = engine.generate("Snow: ", grammar='root ::= "☃" [☀-☄] "🦙"', max_tokens=40).result()
    assert re.fullmatch("☃[☀-☄]🦙", any_character.text)


def test_no_pass_is_spent_on_an_answer_that_is_whole(engine: Engine) -> None:
    before = engine.stats().n_generated_tokens
    done = engine.generate("Is it? ", choice=["yes"], logprobs=1).result()
    assert done.text == "yes"
    assert done.finish_reason == "eog"
    assert engine.stats().n_generated_tokens - before == len(done.token_ids)
    assert done.logprobs is not None
    assert tuple(told.token_id for told in done.logprobs) == done.token_ids


def test_what_comes_before_a_trigger_is_free(engine: Engine) -> None:
    prompt = "Say anything.\n"
    plain = engine.generate(prompt, temp=0, max_tokens=30).result()
    free, trigger = plain.text, engine.model.detokenize(plain.token_ids[6:9])
    assert free.count(trigger) == 1
    done = engine.generate(
        prompt, temp=0, max_tokens=40, grammar=f'root ::= {json.dumps(trigger)} "<done>"', grammar_triggers=[trigger]
    ).result()
    assert done.text == free[: free.index(trigger)] + trigger + "<done>"
    assert done.parsed is None


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": "root ::= foo"},
        {"grammar": 'other ::= "a"'},
        {"grammar": 'a ::= "a"', "grammar_root": "b"},
        {"grammar": "root ::= root"},
        {"grammar": "(" * 100_000},
        {"grammar": 'root ::= "' + "a" * 1_048_576 + '"'},
        {"json_schema": "{"},
        {"json_schema": {"type": "nothing"}},
        {"json_schema": {"not": {}}},
        {"json_schema": {"$ref": "#/$defs/missing"}},
        {"json_schema": "[" * 50_000},
        {"regex": "("},
        {"choice": []},
        {"choice": ["a"], "regex": "a"},
        {"grammar_triggers": ["a"]},
    ],
)
def test_what_is_wrong_is_refused_with_its_reason_and_harms_nobody(engine: Engine, options: dict[str, object]) -> None:
    other = engine.generate("Once upon a time", max_tokens=10)
    with pytest.raises(GrammarError) as raised:
        engine.generate("x", max_tokens=2, **options).result(timeout=60)  # type: ignore[call-overload]
    assert len(str(raised.value)) > 10
    assert raised.value.code == "invalid_grammar"
    assert len(other.result().token_ids) == 10


def test_a_grammar_that_costs_too_much_while_it_runs_fails_its_request_alone(engine: Engine) -> None:
    endless = engine.generate("aaaa", regex="((a{1000}){1000}){1000}", max_tokens=10)
    # Each letter doubles what the parser has to keep apart.
    grammar = 'root ::= (x | y)*\nx ::= "a" | "a" x | x1\nx1 ::= "a" y\ny ::= "a" | y1\ny1 ::= "a" x | "a" y'
    others = [engine.generate("Once upon a time", max_tokens=60) for _ in range(3)]
    costly = engine.generate("aaaa", grammar=grammar, max_tokens=3000)
    with suppress(GrammarError):
        assert set(costly.result(timeout=120).text) <= {"a"}
    outcome = costly.outcome()
    assert not isinstance(outcome, Exception) or "complex" in str(outcome)
    assert set(endless.result(timeout=120).text) == {"a"}
    assert all(len(other.result().token_ids) <= 60 for other in others)
