"""Tools, reasoning, templates: what an engine that has them is handed, and what is made of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient
from llama_batch import Completion, Engine
from llama_batch.server import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_batch.generation import Generation

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    content: str
    reasoning_content: str
    tool_calls: tuple[Call, ...]
    role: str = "assistant"

    def as_dict(self) -> dict[str, Any]:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.tool_calls
        ]
        reasoning = {"reasoning_content": self.reasoning_content}
        return {"role": self.role, "content": self.content or None, **reasoning, "tool_calls": calls}


@dataclass(frozen=True)
class CallDelta:
    index: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


@dataclass(frozen=True)
class Delta:
    choice: int = 0
    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[CallDelta, ...] = ()
    logprobs: Any = None
    token_ids: tuple[int, ...] = ()


MESSAGE = Message("", "It asks for the sky.", (Call("call_1", "weather", '{"city":"Rome"}'),))
DELTAS = (
    Delta(reasoning_content="It asks "),
    Delta(reasoning_content="for the sky."),
    Delta(tool_calls=(CallDelta(0, "call_1", "weather", ""),)),
    Delta(tool_calls=(CallDelta(0, arguments='{"city":'),)),
    Delta(tool_calls=(CallDelta(0, arguments='"Rome"}'),)),
    Delta(content="é\n"),
)


@dataclass(frozen=True)
class Told(Completion):
    """A completion that is a message too."""

    message: Message | None = None  # type: ignore[assignment]


class Thinking(Engine):
    """An engine whose chats have tools; it notes what it was asked."""

    asked: dict[str, Any]

    def chat(  # type: ignore[override,unused-ignore]
        self,
        messages: Any,
        *,
        tools: Any = None,
        tool_choice: Any = None,
        parallel_tool_calls: Any = None,
        enable_thinking: Any = None,
        chat_template_kwargs: Any = None,
        chat_template: Any = None,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
        reasoning_format: Any = None,
        **options: Any,
    ) -> Generation:
        given = {
            "tools": tools,
            "tool_choice": tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "enable_thinking": enable_thinking,
            "chat_template_kwargs": chat_template_kwargs,
            "chat_template": chat_template,
            "continue_final_message": continue_final_message or None,
            "add_generation_prompt": None if add_generation_prompt else False,
            "reasoning_format": reasoning_format,
        }
        self.asked = {name: value for name, value in given.items() if value is not None}
        generation = super().chat(messages, **options)
        return Deltas(generation)  # type: ignore[return-value]


class Deltas:
    """A request whose answer is a message."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generation, name)

    def __await__(self) -> Any:
        done = yield from self._generation.__await__()
        fields = {name: getattr(done, name) for name in Completion.__dataclass_fields__}
        return Told(**{**fields, "finish_reason": "eog", "message": MESSAGE})

    async def deltas(self) -> AsyncIterator[Delta]:
        for delta in DELTAS:
            yield delta


@pytest.fixture
def thinking() -> Any:
    with Thinking("sim:") as engine:
        yield engine


async def test_calls_and_reasoning_come_in_openais_shape(thinking: Thinking) -> None:
    client = AsgiClient(create_app(thinking))
    body = {
        "messages": HELLO,
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 3,
    }
    [choice] = (await client.post(PATH, body)).json()["choices"]
    assert thinking.asked == {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"refusal": None, **MESSAGE.as_dict()}


async def test_streams_carry_them_piece_by_piece(thinking: Thinking) -> None:
    client = AsgiClient(create_app(thinking))
    answer = await client.post(PATH, {"messages": HELLO, "tools": [TOOL], "max_tokens": 3, "stream": True})
    deltas = [event["choices"][0]["delta"] for event in answer.events]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "It asks "},
        {"reasoning_content": "for the sky."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
        {"content": "é\n"},
        {},
    ]
    assert answer.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_templates_are_told_is_passed_on(thinking: Thinking) -> None:
    client = AsgiClient(create_app(thinking, trust_chat_template=True))
    for fields, asked in (
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}),
        ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
        ({"chat_template": "{{ x }}"}, {"chat_template": "{{ x }}"}),
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"reasoning_format": "deepseek"}, {}),
    ):
        assert (await client.post(PATH, {"messages": HELLO, "max_tokens": 1, **fields})).status == 200
        assert thinking.asked == asked


async def test_templates_of_requests_need_the_operators_trust(thinking: Thinking) -> None:
    client = AsgiClient(create_app(thinking))
    answer = await client.post(PATH, {"messages": HELLO, "chat_template": "{{ x }}"})
    assert (answer.status, answer.error["param"]) == (403, "chat_template")


@pytest.mark.parametrize("path", ["/etc/hostname", "template.jinja", "", "a b"])
async def test_a_template_from_outside_is_never_a_file(thinking: Thinking, path: str) -> None:
    client = AsgiClient(create_app(thinking, trust_chat_template=True))
    answer = await client.post(PATH, {"messages": HELLO, "chat_template": path})
    assert (answer.status, answer.error["param"]) == (400, "chat_template")
    assert not hasattr(thinking, "asked")


async def test_tools_that_are_wrong_are_refused(thinking: Thinking) -> None:
    client = AsgiClient(create_app(thinking, max_schema_bytes=1000))
    large = {**TOOL, "function": {"name": "f", "description": "x" * 2000}}
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"tools": [TOOL, {"type": "custom", "custom": {}}]}, "tools.1"),
        ({"tools": [large]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ]
    for wrong, param in wrongs:
        answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 1, **wrong})
        assert (answer.status, answer.error["param"]) == (400, param)
    assert (
        await client.post(PATH, {"messages": HELLO, "tools": [], "tool_choice": "none", "max_tokens": 1})
    ).status == 200


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": "no name"}}]}, "tools.1"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [TOOL], "grammar": "root ::= [0-9]"}, "tools"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"tools": [TOOL], "tool_choice": "none", "regex": "("}, "regex"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_chats_name_the_field_that_is_wrong(wrong: dict[str, Any], param: str, stream: bool) -> None:
    with Engine("sim:") as engine:
        client = AsgiClient(create_app(engine, trust_chat_template=True))
        answer = await client.post(PATH, {"messages": HELLO, "max_tokens": 1, "stream": stream, **wrong})
    assert (answer.status, answer.error["param"]) == (400, param), answer.text
