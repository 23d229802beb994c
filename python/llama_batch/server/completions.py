"""`/v1/completions`."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_batch import openai_shapes as shapes
from llama_batch.errors import QueueFullError
from llama_batch.logprobs import as_openai_completion
from llama_batch.server.asking import (
    beside,
    check_limits,
    check_model,
    check_prompt,
    first_given,
    options_of,
    structure,
    submit,
)
from llama_batch.server.chat import ping_s, telling_progress
from llama_batch.server.failures import HttpError, not_served
from llama_batch.server.fim import fill_in_the_middle
from llama_batch.server.sse import DONE, SseStream, event, text_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_batch.engine import Engine
    from llama_batch.generation import Generation
    from llama_batch.server.requests import CompletionRequest
    from llama_batch.server.service import Call
    from llama_batch.types import Completion


async def completions(call: Call, request: CompletionRequest) -> dict[str, Any] | None:
    """Go on with prompts."""
    call.prompt_field = "prompt"
    name = check_model(call, request.model)
    prompts = _prompts(request)
    plan = _Plan(call, request)
    check_limits(call, plan.options, len(prompts))
    for prompt in prompts:
        check_prompt(call, prompt, "prompt")
    stream_options = request.options_of_stream()
    if call.service.settings.log_prompts:
        call.facts["prompt"] = prompts
    head = shapes.Head.new("cmpl", name)
    call.facts["id"] = head.id
    with contextlib.ExitStack() as stack:
        stack.enter_context(call.service.admitted(call.client))
        if request.return_progress:
            stack.enter_context(call.service.progress.following())
        ready = await beside(call, lambda: [plan.prepared(prompt) for prompt in prompts])
        texts = await beside(call, lambda: [plan.echoed(prompt) for prompt in prompts])
        generations = await submit_all(call, ready, plan.options)
        if not request.stream:
            done = await call.completions(generations)
            return shapes.text_completion(head, plan.choices(done, texts), done)
        stream = _TextStream(call, head, plan, generations, texts)
        await stream.send(usage=bool(stream_options.include_usage), progress=bool(request.return_progress))
    return None


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Each prompt alone."""
    given: Any = request.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise HttpError(400, "'prompt' is an empty list", code="empty_prompt", param="prompt")
    return list(given)


async def submit_all(call: Call, prompts: Sequence[str | list[int]], options: dict[str, Any]) -> list[Generation]:
    """Submit prompts to the engine; if one is refused, none is left.

    Args:
        call: the request.
        prompts: each one.
        options: the options of all.

    Returns:
        The engine's requests, in order.

    Raises:
        LlamaBatchError: one was refused.
    """
    generate: Any = call.service.engine.generate
    generations: list[Generation] = []
    try:
        for prompt in prompts:
            generations.append(await submit(call, partial(generate, prompt, **options), options))  # noqa: PERF401
    except BaseException as error:
        for generation in generations:
            generation.cancel()
        if isinstance(error, QueueFullError):
            _explain_full(call, len(prompts) * options.get("n", 1), error.limit)
        raise
    return generations


def _explain_full(call: Call, n_answers: int, queue: int) -> None:
    """Say so, where no patience helps: more answers are asked for at once than run and wait.

    Raises:
        HttpError: 400.
    """
    slots, _ = call.service.engine.native.capacity
    if queue and n_answers > slots + queue:
        message = f"{n_answers} answers are asked for at once; at most {slots + queue} run and wait here"
        raise HttpError(400, message, code="too_many_choices", param="prompt")


class _Plan:
    """What is asked of the engine for each prompt, and what of it is sent."""

    def __init__(self, call: Call, request: CompletionRequest) -> None:
        self.engine: Engine = call.service.engine
        self.request = request
        self.n = request.n or 1
        self.options = options_of(call, request, first_given(request, "max_tokens", "n_predict"))
        structure(request, self.options)
        self.logprobs: int | None = first_given(request, "logprobs", "n_probs")
        if request.logprobs is None and not request.n_probs:
            self.logprobs = None  # llama-server's way to say so
        if self.logprobs is not None:
            self.options["logprobs"] = self.logprobs
        if request.prompt_logprobs is not None and request.stream:
            raise not_served("prompt_logprobs", "it is not streamed")
        self._plan_best_of()
        if request.echo:
            self._plan_echo()

    def _plan_best_of(self) -> None:
        best_of = self.request.best_of
        if best_of is None or best_of == self.n:
            return
        if best_of < self.n or self.request.stream:
            why = "cannot be streamed" if best_of > self.n else "is less than 'n'"
            raise HttpError(400, f"'best_of' {why}", code="invalid_value", param="best_of")
        self.options["n"] = best_of
        self.options.setdefault("logprobs", 0)

    def _plan_echo(self) -> None:
        if self.request.suffix:
            raise HttpError(400, "'echo' excludes 'suffix'", code="invalid_value", param="echo")
        if self.logprobs is not None:
            if self.request.stream:
                raise not_served("echo", "with 'logprobs' it is not streamed")
            self.options["prompt_logprobs"] = max(self.logprobs, self.request.prompt_logprobs or 0)

    def prepared(self, prompt: str | list[int]) -> str | list[int]:
        """A prompt as the engine gets it."""
        if not self.request.suffix:
            return prompt
        return fill_in_the_middle(self.engine.model, prompt, self.request.suffix)

    def echoed(self, prompt: str | list[int]) -> str:
        """What stands before the answers to a prompt."""
        if not self.request.echo:
            return ""
        return prompt if isinstance(prompt, str) else self.engine.model.detokenize(prompt)

    def choices(self, completions: Sequence[Completion], texts: Sequence[str]) -> list[dict[str, Any]]:
        """The choices of all prompts, in order."""
        rows: list[dict[str, Any]] = []
        for completion, text in zip(completions, texts, strict=True):
            told = completion.prompt_logprobs  # the engine tells of them once, with the first answer
            for choice in self._best(completion.choices):
                row = shapes.text_choice(
                    len(rows),
                    choice,
                    prompt=text,
                    prompt_logprobs=told if self.request.echo else None,
                    logprobs=self.logprobs is not None,
                )
                if self.request.prompt_logprobs is not None:
                    row["prompt_logprobs"] = shapes.prompt_logprobs(completion)
                rows.append(row)
        return rows

    def _best(self, choices: Sequence[Completion]) -> list[Completion]:
        """The likeliest answers, by the mean over their tokens, likeliest first."""
        if len(choices) <= self.n:
            return list(choices)
        return sorted(choices, key=_mean_logprob, reverse=True)[: self.n]


def _mean_logprob(choice: Completion) -> float:
    told = choice.logprobs or ()
    return sum(each.logprob for each in told) / len(told) if told else float("-inf")


class _TextStream:
    """Answers to prompts, sent as they are made."""

    def __init__(
        self, call: Call, head: shapes.Head, plan: _Plan, generations: list[Generation], texts: Sequence[str]
    ) -> None:
        self._call, self._head, self._plan = call, head, plan
        self._generations, self._texts = generations, texts

    async def send(self, *, usage: bool, progress: bool) -> None:
        """Send all of them."""
        out = SseStream(self._call, ping_s(self._plan.request.sse_ping_interval))
        async with out.carrying(self._generations):
            sending = [self._follow(out, place, progress=progress) for place in range(len(self._generations))]
            done = [await sending[0]] if len(sending) == 1 else await together(sending)
            if self._call.is_gone:
                return
            self._call.told(done)
            last = b""
            if usage:
                head = self._head.as_dict("text_completion")
                used = {"usage": shapes.usage(done), "timings": shapes.timings(done[0])}
                last = event({**head, "choices": [], **used})
            await out.write(last + DONE)

    async def _follow(self, out: SseStream, place: int, *, progress: bool) -> Completion:
        generation, n = self._generations[place], self._plan.n
        writers = [self._writer(place * n + choice) for choice in range(n)]
        offsets = [len(self._texts[place])] * n
        if self._texts[place]:
            await generation_begins(generation, out, b"".join(write(self._texts[place]) for write in writers))

        def telling(read: dict[str, Any]) -> dict[str, Any]:
            return {**shapes.text_chunk(self._head, place * n, ""), "prompt_progress": read}

        async with telling_progress(self._call, generation, out, telling, wanted=progress) as told_all:
            async for piece in generation:
                await told_all()
                if piece.logprobs is None:
                    await out.write(writers[piece.choice](piece))
                    continue
                logprobs = as_openai_completion(piece.logprobs, text_offset=offsets[piece.choice])
                offsets[piece.choice] += len(piece)
                index = place * n + piece.choice
                await out.write(event(shapes.text_chunk(self._head, index, piece, logprobs=logprobs)))
        done = await generation
        if not self._call.is_gone:
            await out.write(b"".join(self._end(place * n + i, choice) for i, choice in enumerate(done.choices)))
        return done

    def _writer(self, index: int) -> Callable[[str], bytes]:
        return text_event(lambda text: shapes.text_chunk(self._head, index, text))

    def _end(self, index: int, choice: Completion) -> bytes:
        chunk = shapes.text_chunk(self._head, index, "", finish_reason=shapes.finish_reason(choice))
        chunk["choices"][0]["stop_reason"] = choice.stop_reason
        return event(chunk)


async def generation_begins(generation: Generation, out: SseStream, data: bytes) -> None:
    """Send what stands before an answer, unless it is clear by now that there is none."""
    if not (generation.done() and isinstance(generation.outcome(), Exception)):
        await out.write(data)


async def together(sending: list[Any]) -> list[Completion]:
    """Await all; the first error cancels the others.

    Args:
        sending: coroutines.

    Returns:
        Their results, in order.
    """
    tasks = [asyncio.ensure_future(each) for each in sending]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
