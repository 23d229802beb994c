"""Answers as they come in: one for each prompt, all at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from llama_batch.errors import EmptyPromptError, EngineCrashedError, LlamaBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_batch import Engine
    from llama_batch.types import Completion


@dataclass(slots=True)
class Answer:
    """One prompt and what has come of its answer.

    Attributes:
        prompt: the prompt, as the user gave it.
        text: the answer so far.
        n_tokens: tokens so far.
        completion: the finished answer.
        error: why there is none.
    """

    prompt: str
    text: str = ""
    n_tokens: int = 0
    completion: Completion | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether no more will come."""
        return self.completion is not None or self.error is not None


@dataclass(slots=True)
class Answers:
    """All answers of one run.

    Attributes:
        items: one for each prompt, in the order of the prompts.
        started: when the prompts were submitted, by `time.monotonic`. Unit: seconds.
        ended: when the last answer had ended.
    """

    items: list[Answer]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __iter__(self) -> Iterator[Answer]:
        """The answers, in the order of the prompts."""
        return iter(self.items)

    @property
    def n_tokens(self) -> int:
        """Tokens generated so far, for all."""
        return sum(answer.n_tokens for answer in self.items)

    @property
    def n_done(self) -> int:
        """Answers that have ended, failed ones too."""
        return sum(answer.done for answer in self.items)

    @property
    def n_failed(self) -> int:
        """Answers that have ended with an error."""
        return sum(answer.error is not None for answer in self.items)

    @property
    def seconds(self) -> float:
        """Time since the prompts were submitted, until all answers had ended. Unit: seconds."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def notify(self) -> None:
        """Wake whoever waits for a change."""
        if self.ended is None and self.n_done == len(self.items):
            self.ended = time.monotonic()
        self._changed.set()

    async def changed(self) -> None:
        """Wait until something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()


def submitter(engine: Engine, raw: bool) -> Callable[..., Any]:
    """The method that answers a prompt as its user expects: through the chat template of a model that has one.

    Args:
        engine: A ready engine.
        raw: Take prompts as they are.

    Returns:
        The method, by prompt and options. It raises `EmptyPromptError` where the template would make a prompt of none.
    """
    if raw or not engine.model.chat_template:
        return cast("Callable[..., Any]", engine.stream)

    def chat(prompt: str, **options: Any) -> Any:
        if not prompt:
            raise EmptyPromptError("the prompt is empty")
        return engine.chat(prompt, **options)

    return chat


async def follow(answer: Answer, generation: Any, changed: Callable[[], None]) -> None:
    """Collect an answer until it ends, however it does."""
    try:
        async for chunk in generation:
            answer.text += chunk
            answer.n_tokens += len(chunk.token_ids)
            changed()
        answer.completion = await generation
        answer.n_tokens = answer.completion.usage.generated_tokens
    except EngineCrashedError:
        raise
    except LlamaBatchError as error:
        answer.error = error
    finally:
        changed()


async def answer_all(
    prompts: list[str], submit: Callable[..., Any], options: dict[str, Any], show: Callable[[Answers], Any]
) -> Answers:
    """Submit all prompts at once and show the answers as they come.

    Args:
        prompts: The prompts.
        submit: The engine's method.
        options: Request options, for all of them.
        show: Called with the answers; what it returns is awaited beside them, and ends when they have.

    Returns:
        The answers, all of them ended.
    """
    answers = Answers([Answer(prompt) for prompt in prompts])
    generations = [_begin(answer, submit, options) for answer in answers]
    async with asyncio.TaskGroup() as tasks:
        for answer, generation in zip(answers, generations, strict=True):
            if generation is not None:
                tasks.create_task(follow(answer, generation, answers.notify))
        await show(answers)
    return answers


def _begin(answer: Answer, submit: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Submit a prompt. An empty one fails alone; an option that is wrong is so for all, and ends the run."""
    try:
        return submit(answer.prompt, **options)
    except EmptyPromptError as error:
        answer.error = error
        return None
