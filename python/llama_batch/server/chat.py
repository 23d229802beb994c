"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from llama_batch import openai_shapes as shapes
from llama_batch.server.asking import (
    beside,
    check_limits,
    check_model,
    check_n_messages,
    check_prompt,
    first_given,
    options_of,
    structure,
    submit,
)
from llama_batch.server.failures import HttpError, not_served
from llama_batch.server.sse import DONE, SseStream, event, text_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from llama_batch.generation import Generation
    from llama_batch.messages import ChatDelta
    from llama_batch.server.progress import Reading
    from llama_batch.server.requests import ChatRequest
    from llama_batch.server.service import Call


async def chat_completions(call: Call, request: ChatRequest) -> dict[str, Any] | None:
    """Answer a chat."""
    call.prompt_field = "messages"
    name = check_model(call, request.model)
    check_n_messages(call, request.messages)
    messages = await beside(call, request.checked_messages)
    options = _options(call, request)
    check_limits(call, options)
    for place, message in enumerate(messages):
        check_prompt(call, message.get("content", ""), f"messages.{place}.content")
    stream_options = request.options_of_stream()
    if call.service.settings.log_prompts:
        call.facts["prompt"] = messages
    head = shapes.Head.new("chatcmpl", name)
    call.facts["id"] = head.id
    with contextlib.ExitStack() as stack:
        stack.enter_context(call.service.admitted(call.client))
        if request.return_progress:
            stack.enter_context(call.service.progress.following())
        chat: Any = call.service.engine.chat
        generation = await submit(call, lambda: chat(messages, **options), options)
        if not request.stream:
            [done] = await call.completions([generation])
            made = shapes.chat_completion(head, done)
            return (
                made if request.prompt_logprobs is None else {**made, "prompt_logprobs": shapes.prompt_logprobs(done)}
            )
        stream = _ChatStream(call, head, generation)
        await stream.send(
            ping_s=ping_s(request.sse_ping_interval),
            progress=bool(request.return_progress),
            usage=bool(stream_options.include_usage),
        )
    return None


def ping_s(asked: int | None) -> float | None:
    """llama-server's `sse_ping_interval` as the stream takes it."""
    return None if asked is None else float(max(0, asked))


def _options(call: Call, request: ChatRequest) -> dict[str, Any]:
    options = options_of(call, request, first_given(request, "max_completion_tokens", "max_tokens", "n_predict"))
    structure(request, options)
    if request.n_probs:
        options["logprobs"] = request.n_probs
    if request.logprobs:
        options["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs:
        name = "top_logprobs"
        raise HttpError(400, f"{name!r} goes with 'logprobs': true", code="invalid_value", param=name)
    if request.prompt_logprobs is not None and request.stream:
        raise not_served("prompt_logprobs", "it is not streamed")
    _template_options(call, request, options)
    _tool_options(request, options)
    return options


def _template_options(call: Call, request: ChatRequest, options: dict[str, Any]) -> None:
    """What the chat template is told, where the engine can tell it."""
    if request.chat_template is not None:
        options["chat_template"] = _own_template(call, request.chat_template)
    if request.enable_thinking is not None:
        options["enable_thinking"] = request.enable_thinking
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort == "none":
        options.setdefault("enable_thinking", False)
    elif request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if variables:
        options["chat_template_kwargs"] = variables
    if request.continue_final_message:
        if request.add_generation_prompt:
            name = "add_generation_prompt"
            raise HttpError(400, f"{name!r} excludes 'continue_final_message'", code="invalid_value", param=name)
        options["continue_final_message"] = True
    elif request.add_generation_prompt is False:
        options["add_generation_prompt"] = False
    if request.reasoning_format == "deepseek-legacy":
        raise not_served("reasoning_format", "reasoning stands in `reasoning_content`, or in the answer")
    if request.reasoning_format == "none":
        options["reasoning_format"] = "none"


def _own_template(call: Call, template: str) -> str:
    """A template that a request brings, where the operator trusts them."""
    name = "chat_template"
    if not call.service.settings.trust_chat_template:
        raise HttpError(403, f"{name!r}: this server renders with the model's own", code=name, param=name)
    if "{" not in template:
        # The engine takes the path of a file too: whoever asks from outside has no say in which files are read.
        message = f"{name!r} is the text of a template, which has a {{ in it"
        raise HttpError(400, message, code="invalid_value", param=name)
    return template


def _tool_options(request: ChatRequest, options: dict[str, Any]) -> None:
    if not request.tools:
        if request.tool_choice not in (None, "none", "auto"):
            raise HttpError(400, "'tool_choice' goes with 'tools'", code="invalid_value", param="tool_choice")
        return
    for place, tool in enumerate(request.tools):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            name = f"tools.{place}"
            raise HttpError(400, f"{name!r} is no function with a name", code="invalid_value", param=name)
    options["tools"] = request.tools
    if request.tool_choice is not None:
        options["tool_choice"] = request.tool_choice
    if request.parallel_tool_calls is not None:
        options["parallel_tool_calls"] = request.parallel_tool_calls


class _ChatStream:
    """A chat's answer, sent as it is made."""

    def __init__(self, call: Call, head: shapes.Head, generation: Generation) -> None:
        self._call, self._head, self._generation = call, head, generation
        self._begun: dict[int, Callable[[str], bytes]] = {}

    async def send(self, *, ping_s: float | None, progress: bool, usage: bool) -> None:
        """Send all of it."""
        generation, call = self._generation, self._call
        out = SseStream(call, ping_s)
        async with out.carrying([generation]):
            async with telling_progress(call, generation, out, self._progress_chunk, wanted=progress) as told_all:
                async for piece in generation.deltas():
                    await told_all()
                    await out.write(self._events_of(piece))
            done = await generation
            if call.is_gone:
                return
            call.told([done])
            ends = shapes.chat_ends(self._head, done, self._begun, include_usage=usage)
            await out.write(b"".join(event(chunk) for chunk in ends) + DONE)

    def _progress_chunk(self, progress: dict[str, Any]) -> dict[str, Any]:
        return {**shapes.chat_chunk(self._head, 0, {}), "prompt_progress": progress}

    def _events_of(self, piece: ChatDelta) -> bytes:
        choice = piece.choice
        before = b"" if choice in self._begun else self._beginning(choice)
        if not (piece.reasoning_content or piece.tool_calls) and piece.logprobs is None:
            return before + self._begun[choice](piece.content) if piece.content else before
        delta = shapes.chat_delta(piece)
        logprobs = shapes.chat_logprobs(piece.logprobs)
        return before + event(shapes.chat_chunk(self._head, choice, delta, logprobs=logprobs))

    def _beginning(self, choice: int) -> bytes:
        """The first chunk of a choice, which says whose turn it is."""
        self._begun[choice] = text_event(lambda text: shapes.chat_chunk(self._head, choice, {"content": text}))
        return event(shapes.chat_beginning(self._head, choice))


@contextlib.asynccontextmanager
async def telling_progress(
    call: Call, generation: Generation, out: SseStream, make: Callable[[dict[str, Any]], Any], *, wanted: bool
) -> AsyncIterator[Callable[[], Any]]:
    """The time in which a stream tells how much of its prompt has been read.

    Args:
        call: the request; it follows the board already.
        generation: the engine's request.
        out: the stream.
        make: makes the value of an event from `prompt_progress`.
        wanted: whether to tell at all.

    Yields:
        To be awaited before each piece of the answer: tells the end, once.
    """
    if not wanted:
        yield _nothing
        return
    progress = _Progress(call, generation, out, make)
    task = asyncio.create_task(progress.tell())
    try:
        yield progress.finish
    finally:
        task.cancel()


async def _nothing() -> None:
    """Tell nothing."""


class _Progress:
    """How much of one prompt has been read, and how much of that was told."""

    def __init__(
        self, call: Call, generation: Generation, out: SseStream, make: Callable[[dict[str, Any]], Any]
    ) -> None:
        self._board, self._request_id = call.service.progress, generation.request_id
        self._out, self._make = out, make
        self._reading: Reading | None = None
        self._is_over = False

    async def tell(self) -> None:
        """Tell each step, until all is told."""
        self._reading = reading = await self._board.reading(self._request_id)
        while not self._is_over:
            await reading.changed.wait()
            reading.changed.clear()
            if not self._is_over:
                self._is_over = reading.n_left <= 0
                await self._out.write(event(self._make(reading.as_dict())))

    async def finish(self) -> None:
        """Tell the end, if that was not told yet: the answer begins."""
        if not self._is_over and self._reading is not None:
            self._reading.n_processed = self._reading.n_total
            self._is_over = True
            await self._out.write(event(self._make(self._reading.as_dict())))
        self._is_over = True
