"""Instructor over OpenAI's client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from reach import TOO_LONG, Reach, Report

instructor = pytest.importorskip("instructor", reason="instructor is not installed: tools/contract.py")
exceptions = pytest.importorskip("instructor.core")

MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"]
TEXT = "It is 21 degrees in Rome."


def made(reach: Reach, mode: str) -> Any:
    return instructor.from_openai(reach.client, mode=instructor.Mode[mode]).chat.completions


def asked(reach: Reach, text: str = TEXT, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    given = {"model": "m", "messages": messages, "seed": 1, "max_tokens": reach.shaped_tokens}
    given["temperature"] = 0 if reach.is_real else 1  # the likeliest of a simulated model is white space, for ever
    return {**given, "max_retries": 0, **more}


@pytest.mark.parametrize("mode", MODES)
def test_answers_keep_to_a_class(reach: Reach, mode: str) -> None:
    report, raw = made(reach, mode).create_with_completion(response_model=Report, **asked(reach))
    assert isinstance(report, Report)
    assert raw.choices[0].finish_reason == ("stop" if mode == "JSON_SCHEMA" else "tool_calls")
    assert 0 < raw.usage.completion_tokens < reach.shaped_tokens
    assert raw.usage.total_tokens == raw.usage.prompt_tokens + raw.usage.completion_tokens


@pytest.mark.parametrize("mode", MODES)
def test_answers_grow(reach: Reach, mode: str) -> None:
    steps = [step.model_dump() for step in made(reach, mode).create_partial(response_model=Report, **asked(reach))]
    assert Report(**steps[-1]).city == steps[-1]["city"]
    known = [sum(value is not None for value in step.values()) for step in steps]
    assert known == sorted(known)
    assert known[0] < known[-1] == 2


def test_lists_come_one_by_one(reach: Reach) -> None:
    # Its own schema of a list takes an empty object for an answer, so ours is asked for, by a field of ours.
    class Reports(BaseModel):
        model_config = ConfigDict(extra="forbid")
        tasks: list[Report] = Field(min_length=2, max_length=2)

    given = asked(reach, extra_body={"json_schema": Reports.model_json_schema()})
    reports = list(made(reach, "MD_JSON").create_iterable(response_model=Report, **given))
    assert [type(report).__name__ for report in reports] == ["Report", "Report"]


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_a_refused_answer_is_asked_for_again(reach: Reach, mode: str) -> None:
    refused: list[str] = []

    class Doubted(Report):
        @field_validator("city")
        @classmethod
        def doubt(cls, city: str) -> str:
            if not refused:
                refused.append(city)
                raise ValueError("look again")
            return city

    counted: list[list[Any]] = []
    client = instructor.from_openai(reach.client, mode=instructor.Mode[mode])
    client.on("completion:kwargs", lambda *_, **given: counted.append([*given["messages"]]))
    report = client.chat.completions.create(response_model=Doubted, **asked(reach, max_retries=1))
    assert isinstance(report, Doubted)
    assert len(refused) == 1
    first, second = counted
    assert "look again" in str(second[-1])
    assert len(second) > len(first)


def test_answers_to_asyncio(reach: Reach) -> None:
    async def main() -> list[Any]:
        client = instructor.from_openai(reach.async_client).chat.completions
        return await asyncio.gather(*(client.create(response_model=Report, **asked(reach)) for _ in range(2)))

    assert all(isinstance(report, Report) for report in asyncio.run(main()))


def test_errors_are_told(reach: Reach) -> None:
    for more, said in (
        ({"extra_body": {"tempratur": 1}}, "did you mean 'temperature'"),
        ({"messages": [{"role": "user", "content": TOO_LONG}]}, "maximum context length"),
    ):
        with pytest.raises(exceptions.InstructorRetryException, match=said) as caught:
            made(reach, "TOOLS").create(response_model=Report, **asked(reach, **more))
        chain: list[BaseException] = [caught.value]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        assert any(isinstance(error, openai.BadRequestError) for error in chain)
