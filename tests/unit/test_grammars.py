"""Grammars in the engine, on simulated tokens: what goes with them, and what the simulated answers keep to."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from llama_batch import Engine, GrammarError, OptionError
from llama_batch._structured import settle
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator

SIM = "sim:?pass_ms=0&row_ms=0"


class Point(BaseModel):
    x: int
    y: int

    @field_validator("x")
    @classmethod
    def never(cls, value: int) -> int:
        if value != 12345:
            raise ValueError("not that")
        return value


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [True, 7, "x"]},
        json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}),
        TypeAdapter(bool),
    ],
)
def test_an_answer_is_a_value_of_its_schema(schema: Any) -> None:
    with Engine(SIM) as engine:
        done = engine.generate([1, 2, 3], json_schema=schema, max_tokens=2000).result()
        assert done.finish_reason == "eog"
        assert done.parsed == json.loads(done.text)


def test_a_class_that_asks_for_more_than_its_schema_raises_when_the_value_is_taken() -> None:
    with Engine(SIM) as engine:
        done = engine.generate([1, 2, 3], json_schema=Point, max_tokens=400).result()
        if done.finish_reason == "eog":
            assert set(json.loads(done.text)) == {"x", "y"}
            with pytest.raises(ValidationError, match="not that"):
                _ = done.parsed


def test_a_class_adds_no_properties_of_its_own() -> None:
    class Line(BaseModel):
        points: list[Point]
        const: dict[str, int] = {}

    text = settle({"json_schema": Line})[0]["json_schema"]
    schema = json.loads(text)
    assert schema["additionalProperties"] is schema["$defs"]["Point"]["additionalProperties"] is False
    assert schema["properties"]["const"]["additionalProperties"] == {"type": "integer"}
    plain: dict[str, Any] = {"type": "object", "properties": {}}
    assert json.loads(settle({"json_schema": plain})[0]["json_schema"]) == plain


def test_an_answer_that_is_cut_has_no_value() -> None:
    with Engine(SIM) as engine:
        done = engine.generate([1, 2, 3], json_schema={"const": "x" * 50}, max_tokens=9).result()
        assert (done.finish_reason, done.parsed) == ("max_tokens", None)
        plain = engine.generate([1, 2, 3], max_tokens=9).result()
        assert plain.parsed is None


def test_every_answer_of_several_and_every_prompt_of_a_map_keeps_to_it() -> None:
    with Engine(SIM) as engine:
        done = engine.generate([1, 2, 3], choice=["yes", "no"], n=8).result()
        assert {choice.text for choice in done.choices} <= {"yes", "no"}
        for one in engine.map([[1], [2], [3]], json_schema={"type": "boolean"}):
            assert one.parsed in {True, False}


def test_what_would_end_an_answer_too_early_waits_and_a_whole_one_ends_whatever_is_banned() -> None:
    with Engine(SIM) as engine:
        done = engine.generate([1, 2], choice=["yes"], ignore_eos=True, min_tokens=50).result()
        assert (done.text, done.finish_reason) == ("yes", "eog")


def test_rules_that_contradict_a_grammar_fail_their_request_alone() -> None:
    with Engine(SIM) as engine:
        other = engine.generate([5], max_tokens=30)
        with pytest.raises(GrammarError):
            engine.generate([1, 2], choice=["yes"], banned_token_ids=[ord("y")]).result()
        assert len(other.result().token_ids) == 30


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"grammar": "root ::= foo"}, GrammarError, "`foo` is not defined"),
        ({"json_schema": {"not": {}}}, GrammarError, "not"),
        ({"json_schema": {"a": object()}}, OptionError, "cannot be written as JSON"),
        ({"json_schema": {"const": float("nan")}}, OptionError, "cannot be written as JSON"),
        ({"json_schema": 3}, OptionError, "must be a dict"),
        ({"json_schema": "{"}, GrammarError, "no JSON"),
        ({"choice": []}, GrammarError, "no texts"),
        ({"choice": [""]}, OptionError, "empty"),
        ({"choice": "a", "regex": "b"}, GrammarError, "has one"),
        ({"grammar": 3}, OptionError, "grammar must be text"),
        ({"grammar_triggers": "x"}, GrammarError, "without a grammar"),
    ],
)
def test_what_is_wrong_is_refused(options: dict[str, Any], error: type[Exception], reason: str) -> None:
    with Engine(SIM) as engine:
        with pytest.raises(error, match=reason):
            engine.generate([1], max_tokens=3, **options).result()
        assert len(engine.generate([1], max_tokens=3).result().token_ids) == 3
    waiting = Engine(SIM + "&load_ms=100")
    with waiting, pytest.raises(error, match=reason):
        waiting.generate([1], max_tokens=3, **options).result()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": '^[^"]$'},
        {"type": "string", "pattern": r"^[^\\]$"},
        {"type": "string", "pattern": r"^[\x00-!#-\x7f]$"},
        {"type": "string", "pattern": r'^(?:[^"\\]|a)$'},
        {"type": "object", "patternProperties": {'^[^"]$': {"type": "null"}}, "additionalProperties": False},
        {"type": "number", "maximum": -1, "exclusiveMaximum": -100},
        {"type": "number", "maximum": 255, "exclusiveMinimum": 0.001},
    ],
)
def test_what_a_schema_excludes_is_in_no_answer(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    with Engine(SIM, n_parallel=16, max_queue=0) as engine:
        asked = [engine.generate("x", json_schema=schema, max_tokens=60, seed=seed) for seed in range(600)]
        whole = [done for done in (g.result() for g in asked) if done.finish_reason == "eog"]
        assert len(whole) > 20
        for done in whole:
            assert validator.is_valid(done.parsed), done.text


def test_a_step_that_takes_too_long_to_compile_is_refused() -> None:
    with Engine(SIM) as engine:
        done = engine.generate("x", json_schema={"type": "integer", "multipleOf": 100}, max_tokens=40).result()
        assert done.parsed is None or done.parsed % 100 == 0
        with pytest.raises(GrammarError, match="multipleOf"):
            engine.generate("x", json_schema={"type": "integer", "multipleOf": 123456789}).result(timeout=60)
