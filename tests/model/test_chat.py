"""Conversations on a real model: templates, tools, thoughts; answers read whole and as they come."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, assert_type

import jsonschema
import pytest
import templates
from llama_batch import ChatMessage, ChatTemplateError, Completion, Engine, Generation, OptionError
from llama_batch._proof import refusal
from llama_batch._reading import read, reader
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from pathlib import Path


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": parameters}}


TOOLS = [
    tool("weather", city={"type": "string", "maxLength": 20}, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("time", zone={"$ref": "#/$defs/zone"}),
]
TOOLS[1]["function"]["parameters"]["$defs"] = {"zone": {"type": "string", "maxLength": 12}}
BY_NAME = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}
TEMPLATES: dict[str, dict[str, Any]] = {"by hand": {}, "native": {"chat_template": templates.TOOLS}}


def check_calls(done: Completion) -> None:
    """Every call is one of the tools', with arguments of its schema."""
    assert done.message.tool_calls
    for call in done.message.tool_calls:
        jsonschema.validate(json.loads(call.arguments), BY_NAME[call.name])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_required_call_is_made(engine: Engine, template: str) -> None:
    for seed in range(4):
        asked: dict[str, Any] = {"max_tokens": 200, "seed": seed, "tool_choice": "required", **TEMPLATES[template]}
        done = engine.chat("What is the weather in Rome?", tools=TOOLS, parallel_tool_calls=False, **asked).result()
        if done.finish_reason == "eog":
            check_calls(done)
            assert done.message.content == ""
    named = {"type": "function", "function": {"name": "time"}}
    done = engine.chat("Hello", tools=TOOLS, tool_choice=named, max_tokens=200, **TEMPLATES[template]).result()
    assert done.finish_reason != "eog" or {call.name for call in done.message.tool_calls} == {"time"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_deltas_make_the_message_that_the_completion_has(engine: Engine, template: str) -> None:
    for choice in ("auto", "required", "none"):
        generation = engine.chat(
            "What is the weather in Rome?",
            tools=TOOLS,
            tool_choice=choice,
            max_tokens=80,
            temp=0,
            **TEMPLATES[template],
        )
        deltas = list(generation.deltas())
        message = generation.result().message
        assert "".join(delta.content for delta in deltas) == message.content
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [call.name for call in calls if call.name] == [call.name for call in message.tool_calls]
        assert "".join(call.arguments for call in calls) == "".join(call.arguments for call in message.tool_calls)
        assert choice != "none" or not message.tool_calls


def native(engine: Engine, template: str, **asked: Any) -> str:
    """The syntax of answers under a template."""
    from llama_batch._messages import conversation

    _, _, syntax = engine.model._native.render_chat(conversation("Hi", {"chat_template": template, **asked}))
    return str(syntax)


def pieced(syntax: str, text: str, size: int) -> tuple[ChatMessage, int]:
    """A text read in pieces, and how many of them told something."""
    reading = reader(syntax)
    added = [reading.feed(text[i : i + size]) for i in range(0, len(text), size)]
    n_told = sum(map(bool, added))
    added.append(reading.finish())
    calls: dict[int, list[str]] = {}
    for delta in (delta for one in added for delta in one.calls):
        call = calls.setdefault(delta.index, [delta.id or "", delta.name or "", ""])
        call[2] += delta.arguments
    told = ChatMessage("".join(one.content for one in added), "".join(one.reasoning for one in added))
    assert [call[2] for call in calls.values()] == [call.arguments for call in read(syntax, text).tool_calls]
    return told, n_told


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "celsius"}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_thoughts_and_calls_are_told_apart_in_pieces_of_any_size(engine: Engine, size: int) -> None:
    thinking = native(engine, templates.THOUGHTS)
    text = "<think>\nLet me see: 2 < 3.\n</think>\n\nIt is a < b, as <b>said</b>."
    told, n_told = pieced(thinking, text, size)
    assert told == read(thinking, text) == ChatMessage("It is a < b, as <b>said</b>.", "Let me see: 2 < 3.")
    assert size > 7 or n_told > len(text) / size / 3, "told as it comes"
    calling = native(engine, templates.TOOLS, tools=TOOLS)
    text = f"I look it up.\n{CALL}"
    pieced(calling, text, size)
    message = read(calling, text)
    assert (message.content, [call.name for call in message.tool_calls]) == ("I look it up.", ["weather"])
    assert json.loads(message.tool_calls[0].arguments) == {"city": "Rome", "unit": "celsius"}


def streamed(syntax: str, text: str) -> ChatMessage:
    """What a stream tells of a text, a character at a time."""
    reading = reader(syntax)
    added = [*map(reading.feed, text), reading.finish()]
    return ChatMessage("".join(one.content for one in added), "".join(one.reasoning for one in added))


THINKS_AND_CALLS = templates.TOOLS.replace(
    "- message.content }",
    "- ('<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' if message.reasoning_content else '')"
    " + message.content }",
)


@pytest.mark.parametrize("template", [templates.TOOLS, THINKS_AND_CALLS], ids=["calls", "thoughts and calls"])
def test_what_cannot_be_read_is_what_was_said(engine: Engine, template: str) -> None:
    calling = native(engine, template, tools=TOOLS)
    for text in (
        "",
        "<tool_call>",
        "<tool_call>\n{",
        "<tool_call>\nno json\n</tool_call>",
        "<tool_call>\n[1, 2]\n</tool_call>",
        '<tool_call>\n{"name": "weather"}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
        "</tool_call>",
        "I call: <tool_call>\nno json\n</tool_call> It is é.",
        "one <tool_call> two <tool_call>\nno json",
    ):
        message = read(calling, text)
        assert (message.content.rstrip(), message.tool_calls) == (text.rstrip(), ()), text
        assert streamed(calling, text).content.rstrip() == text.rstrip(), text


@pytest.mark.parametrize("template", [templates.TOOLS, THINKS_AND_CALLS], ids=["calls", "thoughts and calls"])
def test_a_call_that_an_answer_only_begins_is_what_was_said(engine: Engine, template: str) -> None:
    calling = native(engine, template, tools=TOOLS)
    for ending in (
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>\n{",
        '<tool_call>\n{"name',
        "<tool_c",
        "<",
        "<tool_call>\n<",
    ):
        for before in ("", "Hello ", "Hello.\n", "<b> is < "):
            text = before + ending
            assert read(calling, text) == streamed(calling, text) == ChatMessage(text), text
    if template == THINKS_AND_CALLS:
        for said in ("<tool_call>", "Hello <tool_call>", 'Hello\n<tool_call>\n{"name', "a <"):
            text = f"<think>\nHm.\n</think>\n\n{said}"
            assert read(calling, text) == streamed(calling, text) == ChatMessage(said, "Hm."), text
    cut = read(calling, 'Hello\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ro')
    assert (cut.content, [call.name for call in cut.tool_calls]) == ("Hello", ["weather"])


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (" It is done.", "It is done."),
        ("\n<tool_call>\nno json", "<tool_call>\nno json"),
        ("\n</tool_call>\n", ""),
    ],
)
def test_a_call_is_not_lost_by_what_comes_behind_it(engine: Engine, behind: str, said: str, size: int) -> None:
    calling = native(engine, templates.TOOLS, tools=TOOLS)
    text = f"I look it up.\n{CALL}{behind}"
    message = read(calling, text)
    assert [call.name for call in message.tool_calls] == ["weather"]
    assert message.content == f"I look it up.\n{said}".rstrip()
    assert pieced(calling, text, size)[0].content == message.content


def test_thoughts_stay_thoughts_where_a_call_goes_wrong(engine: Engine) -> None:
    both = native(engine, THINKS_AND_CALLS, tools=TOOLS)
    text = "<think>\nHm.\n</think>\n\n<tool_call>\nno json"
    assert read(both, text) == streamed(both, text) == ChatMessage("<tool_call>\nno json", "Hm.")
    for silent in ("<think>", "<think>\n", "<think>\n\n</think>\n\n"):
        assert read(both, silent) == ChatMessage()


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def test_a_schema_holds_behind_thoughts(engine: Engine) -> None:
    generation = engine.chat(
        "Name a person.", json_schema=Person, chat_template=templates.THOUGHTS, enable_thinking=False, max_tokens=80
    )
    done = assert_type(generation, Generation[Person]).result()
    if done.finish_reason == "eog":
        person = assert_type(done.parsed, Person | None)
        assert person is not None
        assert 0 <= person.age <= 120
        assert Person.model_validate_json(done.message.content) == person


def test_a_conversation_goes_on_behind_calls(engine: Engine) -> None:
    first = engine.chat(
        "Weather in Rome?", tools=TOOLS, tool_choice="required", max_tokens=200, seed=1, temp=0
    ).result()
    call = first.message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [{"role": "user", "content": "Weather in Rome?"}, first.message.as_dict(), result]
    for template in TEMPLATES.values():
        done = engine.chat(messages, tools=TOOLS, max_tokens=20, **template).result()
        assert done.usage.generated_tokens > 0


def test_an_answer_can_be_gone_on_with(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3,"}]
    prompt = engine.model.apply_chat_template(messages, continue_final_message=True)
    assert prompt.endswith("1, 2, 3,")
    done = engine.chat(messages, continue_final_message=True, max_tokens=6, temp=0).result()
    assert "4" in done.text


def test_hostile_templates_end_in_their_own_process(engine: Engine, tmp_path: Path) -> None:
    for hostile in (templates.ENDLESS, templates.GREEDY, templates.DEEP):
        with pytest.raises(ChatTemplateError, match="not used"):
            engine.chat("Hi", chat_template=hostile).result()
    wrong = tmp_path / "template.jinja"
    wrong.write_text("{% for m in messages %}{{ m.content }}")
    with pytest.raises(ChatTemplateError, match="parse"):
        engine.chat("Hi", chat_template=wrong).result()
    with pytest.raises(OptionError, match="neither a template nor a file"):
        engine.chat("Hi", chat_template=tmp_path / "none.jinja")
    assert refusal(templates.TOOLS) is None
    assert engine.chat("Hi", max_tokens=2).result().usage.generated_tokens > 0


def test_the_command_talks(smollm2: Path, tmp_path: Path) -> None:
    kept = tmp_path / "talk.json"
    said = f"What is 2 plus 2?\n/stats\n/nope\nAnd one\\\nmore?\n/save {kept}\n/undo\n/again\n"
    command = [sys.executable, "-m", "llama_batch.cli", "chat", str(smollm2), "--max-tokens", "12", "--temp", "0"]
    done = subprocess.run([*command, "-s", "Be brief."], input=said, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "generated" in done.stdout
    assert "no command /nope" in done.stderr
    messages = json.loads(kept.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "And one\nmore?"
    more = subprocess.run(
        [*command, "--load", str(kept)], input="/again\n", capture_output=True, text=True, timeout=120
    )
    assert more.returncode == 0
    assert more.stdout.strip()
