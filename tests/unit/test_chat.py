"""Conversations on the simulated model: what is asked, and how answers are read piece by piece."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_batch import ChatMessage, ChatTemplateError, Engine, OptionError
from llama_batch._reading import read, reader

if TYPE_CHECKING:
    from collections.abc import Iterator

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("sim:", n_parallel=4) as engine:
        yield engine


def by_hand(in_call: bool = False) -> str:
    return json.dumps({"kind": "by_hand", "key": "0123456789abcdef", "in_call": in_call})


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


TEXTS = st.one_of(
    st.text(alphabet='<tool_ca>/{}"\\: n,1', max_size=40),
    st.builds(
        lambda said, arguments, after: (
            said + '<tool_call>\n{"name": "f", "arguments": ' + json.dumps(arguments) + "}" + after
        ),
        st.text(alphabet="<tool ", max_size=10),
        st.dictionaries(st.text(max_size=4), st.one_of(st.text(max_size=6), st.integers(), st.none()), max_size=3),
        st.sampled_from(["", "\n</tool_call>", "}}"]),
    ),
)


@given(TEXTS, st.lists(st.integers(0, 100)), st.booleans())
def test_an_answer_reads_alike_in_any_pieces(text: str, cuts: list[int], in_call: bool) -> None:
    whole = read(by_hand(in_call), text)
    reading = reader(by_hand(in_call))
    added = [*map(reading.feed, pieces(text, cuts)), reading.finish()]
    assert "".join(one.content for one in added) == whole.content
    calls: dict[int, list[Any]] = {}
    for delta in (delta for one in added for delta in one.calls):
        call = calls.setdefault(delta.index, [delta.id, delta.name, ""])
        call[2] += delta.arguments
    assert [(call.id, call.name, call.arguments) for call in whole.tool_calls] == [
        tuple(call) for call in calls.values()
    ]


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=3))
def test_a_call_is_taken_out_of_what_is_said(arguments: dict[str, str]) -> None:
    text = 'Let me see.\n<tool_call>\n{"name": "f\\u0041", "arguments": ' + json.dumps(arguments) + "}\n</tool_call>"
    message = read(by_hand(), text)
    assert message.content == "Let me see."
    assert message.tool_calls[0].name == "fA"
    assert json.loads(message.tool_calls[0].arguments) == arguments
    assert message.as_dict()["tool_calls"][0]["function"]["arguments"] == message.tool_calls[0].arguments


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call> is a thing",
        "it begins <tool_c",
        "it ends \n<tool_call>",
        "it ends <tool_call>\n ",
        "<tool_call>",
        '<tool_call>\n{"name": "f", ',
    ],
)
def test_a_begun_call_that_is_none_is_what_was_said(text: str) -> None:
    assert read(by_hand(), text) == ChatMessage(text)


@pytest.mark.parametrize("text", ["", " ", '{"na', '{"name": "f", "argum'])
def test_a_required_call_that_is_none_is_what_was_said_and_no_more(text: str) -> None:
    assert read(by_hand(in_call=True), text) == ChatMessage(text)


def test_a_call_that_is_cut_keeps_what_it_has() -> None:
    cut = read(by_hand(), '<tool_call>{"name": "f", "arguments": {"x": "ab')
    assert (cut.tool_calls[0].name, cut.tool_calls[0].arguments) == ("f", '{"x": "ab')


def test_a_required_call_is_a_call_with_arguments_of_its_schema(engine: Engine) -> None:
    for seed in range(8):
        done = engine.chat("Rome?", tools=[WEATHER], tool_choice="required", max_tokens=300, seed=seed, temp=1).result()
        if done.finish_reason != "eog":
            continue
        (call,) = done.message.tool_calls
        assert call.name == "weather"
        arguments = json.loads(call.arguments)
        assert set(arguments) <= {"city", "days"}
        assert len(arguments["city"]) <= 8
        assert call.id.startswith("call_")


def test_deltas_make_the_message(engine: Engine) -> None:
    for options in ({}, {"tool_choice": "required"}, {"n": 2}):
        generation = engine.chat("Rome?", tools=[WEATHER], max_tokens=60, seed=3, **options)
        deltas = list(generation.deltas())
        for answer in generation.result().choices:
            mine = [delta for delta in deltas if delta.choice == answer.index]
            assert "".join(delta.content for delta in mine) == answer.message.content
            assert [token for delta in mine for token in delta.token_ids] == list(answer.token_ids)
            calls = [call for delta in mine for call in delta.tool_calls]
            told = "".join(call.arguments for call in calls)
            assert told == "".join(call.arguments for call in answer.message.tool_calls)
            assert [call.id for call in calls if call.id] == [call.id for call in answer.message.tool_calls]


@pytest.mark.anyio
async def test_deltas_come_to_async_readers_too(engine: Engine, anyio_backend: str) -> None:
    generation = engine.chat("Rome?", max_tokens=20, seed=3)
    said = [str(delta) async for delta in generation.deltas()]
    assert "".join(said) == (await generation).text


def test_what_no_chat_can_be_is_refused_and_the_engine_serves_on(engine: Engine) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tools": "weather"}, "list of tools"),
        ({"tools": {}}, "list of tools"),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"chat_template_kwargs": [1]}, "mapping"),
        ({"chat_template": "/no/such/file"}, "neither a template"),
        ({"enable_thinking": "yes"}, "True or False"),
        ({"parallel_tool_calls": 1}, "True or False"),
    ]
    for options, reason in wrong:
        with pytest.raises(OptionError, match=reason):
            engine.chat("Hi", **options)
    wrong = [
        ({"tools": [{"type": "retrieval"}]}, "function"),
        ({"tools": [1]}, "function"),
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "regex": "a+"}, "together"),
        ({"tools": [WEATHER], "tool_choice": object()}, "not JSON"),
    ]
    for options, reason in wrong:
        with pytest.raises(ChatTemplateError, match=reason):
            engine.chat("Hi", **options).result()
    assert engine.chat("Hi", max_tokens=2).result().usage.generated_tokens == 2


def test_calls_and_results_go_back_into_the_conversation(engine: Engine) -> None:
    first = engine.chat("Rome?", tools=[WEATHER], tool_choice="required", max_tokens=300, seed=1).result()
    call = first.message.tool_calls[0]
    messages = [
        {"role": "user", "content": "Rome?"},
        first.message.as_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    prompt = engine.model.apply_chat_template(messages, tools=[WEATHER])
    assert "weather" in prompt
    assert "sunny" in prompt
    assert engine.chat(messages, tools=[WEATHER], max_tokens=4).result().usage.generated_tokens == 4
