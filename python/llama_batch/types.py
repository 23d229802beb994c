"""What an engine hands out: completions, chunks and figures. All of it is immutable.

Example:
    >>> print((done := engine.generate("Once upon a time").result()), done.finish_reason, done.timings.ttft_ms)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path  # noqa: TC003 - for those who read the annotations
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias

from llama_batch._generic import T
from llama_batch.stats import EngineState, RpcServerHealth, Stats
from llama_batch.strategy import StrategyRow, StrategyView

if TYPE_CHECKING:
    from uuid import UUID

    import numpy as np

    from llama_batch.logprobs import TokenLogprobs
    from llama_batch.messages import ChatMessage


__all__ = [
    "BatchStrategy",
    "Chunk",
    "Completion",
    "Embeddable",
    "EngineState",
    "FinishReason",
    "Key",
    "Message",
    "ModelSource",
    "OptionSpec",
    "Prompt",
    "RpcServerHealth",
    "Sampler",
    "SavedSession",
    "Stats",
    "StrategyRow",
    "StrategyView",
    "Timings",
    "Usage",
]


Key: TypeAlias = "str | int | bytes | UUID | tuple[Key, ...]"
"""What can name a session or a scope; equal ones are the same."""

FinishReason: TypeAlias = Literal["eog", "stop", "max_tokens", "context_full", "cancelled", "timeout"]
"""Why a request ended. `timeout` stands only in the partial completion of a `RequestTimeoutError`."""

Prompt: TypeAlias = str | Sequence[int]
"""Text (BOS as the vocabulary says, special tokens parsed) or token ids."""

Embeddable: TypeAlias = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""One text, or several: each as text or as token ids."""

Message: TypeAlias = Mapping[str, Any]
"""One message of a chat: `{"role": "user", "content": "..."}`."""

ModelSource: TypeAlias = str | PathLike[str]
"""The path of a GGUF file, or a URI: `pypi:`, `hf:owner/repo[:quant]`, `ollama:name`, `sim:`."""


class Chunk(str):
    """A piece of a streamed answer: text, in whole characters, that knows which tokens made it.

    Attributes:
        index: its place in the stream, from 0.
        token_ids: the tokens that it was made from; several, where a character took several or the reader was slow.
        logprobs: how likely each token was, where that was asked for.
        choice: which answer it is a part of, where there are several (`n`), from 0.

    Example:
        >>> for chunk in engine.stream("Tell me a story"):
        ...     print(chunk, end="", flush=True)
    """

    __slots__ = ("choice", "index", "logprobs", "token_ids")

    index: int  # type: ignore[assignment]  # the place in the stream; `str.index` has no use on a chunk
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    choice: int

    def __new__(
        cls,
        text: str = "",
        index: int = 0,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        choice: int = 0,
    ) -> Self:
        """Make a chunk.

        Args:
            text: what it adds to the answer.
            index: its place in the stream, from 0.
            token_ids: the tokens that made it.
            logprobs: how likely each token was.
            choice: which answer it is a part of.
        """
        self = str.__new__(cls, text)
        self.index = index
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.choice = choice
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Survive pickling."""
        return (str(self), self.index, self.token_ids, self.logprobs, self.choice)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request used. Unit: tokens.

    Attributes:
        prompt_tokens: of the prompt.
        generated_tokens: generated, the end-of-generation token excepted.
        prefix_cache_tokens: of the prompt, reused instead of computed.
        draft_tokens: computed on trial, because the text had them before (`n_draft`).
        accepted_tokens: of those, drawn then; they are among the generated ones.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens together."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened to a request, from its submission on. Unit: milliseconds.

    Attributes:
        queue_ms: waiting for a slot, and for the model where that was still loading.
        ttft_ms: to the first token, the queue included; to the end, if none came.
        total_ms: to the end.
        prefill_ms: reading the prompt, from the slot to the first token.
        decode_ms: from the first token to the last.
    """

    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion(Generic[T]):
    """A finished answer. `str(completion)` is its text.

    Attributes:
        request_id: the number of the request.
        text: the answer.
        token_ids: its tokens; without the token that ended it, with those of the stop string that did.
        finish_reason: why it ended: `eog` (the model was done), `stop` (a stop string or token), `max_tokens`,
            `context_full` (the request alone filled its context) or `cancelled`. The text until then is kept in every
            case.
        stop_reason: the stop string or the token that ended it, where `finish_reason` is `stop`.
        usage: what it used.
        timings: when things happened.
        seed: the seed of its draws; the same seed gives the same draws.
        logprobs: how likely each token was, where that was asked for.
        prompt_logprobs: the same of the prompt's tokens, where that was asked for; None of the first.
        index: which answer it is, where there are several, from 0.
        others: the other answers, where there are several and this is the first.
        parser: turns the answer to a `json_schema` into a value; see `parsed`.
        syntax: how the answer to a conversation is read; see `message`.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    index: int = 0
    others: tuple[Completion[T], ...] = ()
    parser: Callable[[str], T] | None = field(default=None, repr=False, compare=False)
    syntax: str | None = field(default=None, repr=False, compare=False)

    @property
    def choices(self) -> tuple[Completion[T], ...]:
        """All answers to the prompt, as many as `n`: this one, and the others."""
        return (self, *self.others)

    @property
    def message(self) -> ChatMessage:
        """The answer to a conversation, taken apart: what is said, what is thought, which functions are called."""
        from llama_batch._reading import read

        return read(self.syntax, self.text, self.index)

    @property
    def parsed(self) -> T | None:
        """The value of an answer to a `json_schema`: what JSON gives, or an object of the class that was the schema.

        None where there was no schema, or the answer was ended before it was whole (`finish_reason`). A class of
        pydantic may raise its `ValidationError` here, where it asks for more than its schema says.
        """
        if self.parser is None or self.finish_reason != "eog":
            return None
        return self.parser(self.text if self.syntax is None else self.message.content)

    def __str__(self) -> str:
        """The text."""
        return self.text


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session in a file.

    Attributes:
        session: its name, as it was saved or loaded.
        path: the file.
        n_tokens: the tokens of its last request: its prompt, and what was generated.
        n_restorable: those of them whose KV state is there too; the rest is computed again.
    """

    session: Key
    path: Path
    n_tokens: int
    n_restorable: int


BatchStrategy: TypeAlias = Callable[[StrategyView], Mapping[int, int]]
"""A custom batch strategy: from the view to the rows that each request gets, by request id.

It runs on a helper thread and has 50 ms; if it fails, is late or answers what cannot be, `decode_maximal` stands in.
"""


Sampler: TypeAlias = "Callable[[np.ndarray[Any, np.dtype[np.float32]]], int | None]"
"""A sampler of one's own: from the logits of one row to the token that is drawn, by its id.

Where it returns None, the sampling chain draws from what it left in the array. Biases, bans, penalties and the grammar
are in the logits already: what is -inf cannot be drawn. Each call has a thread of its own.

Example:
    >>> engine.generate("Once upon a time", sampler=lambda logits: int(logits.argmax()))
"""


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One row of an option table.

    Attributes:
        name: the canonical name.
        type: its type, as an annotation writes it.
        default: its default.
        doc: what it does.
        optional: whether `None` is a value of its own.
        minimum: the smallest number accepted.
        maximum: the largest number accepted.
        unit: the number's unit.
        choices: the words accepted.
        aliases: other names that are accepted.
    """

    name: str
    type: str
    default: Hashable
    doc: str
    optional: bool = False
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
