"""What the generated methods of the engine stand on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from llama_batch.embedding import EmbeddingJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence

    from llama_batch import _core
    from llama_batch.generation import Generation
    from llama_batch.mapping import Map
    from llama_batch.openai_chat import ChatCompletionStream, PendingChatCompletion
    from llama_batch.types import Embeddable, Message, ModelSource, Prompt


def given(
    method: Callable[..., Any], options: dict[str, Any], aliases: dict[str, Any], unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """What a caller passed: values that are not the default, aliases that are not None, and unknown names.

    Unknown names reach the Rust side, whose `OptionError` suggests the nearest known one; a type checker refuses them
    because of the `Never` in the signature.
    """
    defaults: Mapping[str, Any] = method.__kwdefaults__ or {}
    passed = {name: value for name, value in options.items() if value is not defaults[name]}
    passed.update((alias, value) for alias, value in aliases.items() if value is not None)
    passed.update(unknown)
    return passed


class Submits(ABC):
    """The work behind the generated methods."""

    native: _core.Engine

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name."""

    def _embed(self, texts: Embeddable, options: dict[str, Any]) -> EmbeddingJob:
        return EmbeddingJob(self, self.native.embed(texts, options))

    @abstractmethod
    def _start(
        self, model: ModelSource | None, model_path: ModelSource | None, name: str | None, options: dict[str, Any]
    ) -> None: ...

    @abstractmethod
    def _submit(
        self,
        mode: Literal["generate", "stream"],
        prompt: Prompt,
        options: dict[str, Any],
    ) -> Generation[Any]: ...

    @abstractmethod
    def _converse(
        self, messages: str | Sequence[Message], chat: Mapping[str, Any], options: dict[str, Any]
    ) -> Generation[Any]: ...

    def _completion_of(self, generation: Generation[Any]) -> PendingChatCompletion:
        from llama_batch.openai_chat import PendingChatCompletion

        return PendingChatCompletion(self, generation._ticket, self.name)

    def _chunks_of(self, generation: Generation[Any], include_usage: bool) -> ChatCompletionStream:
        from llama_batch.openai_chat import ChatCompletionStream

        return ChatCompletionStream(generation, self.name, include_usage=include_usage)

    @abstractmethod
    def _map(
        self,
        prompts: Iterable[Any] | AsyncIterable[Any],
        options: dict[str, Any],
        *,
        ordered: bool,
        on_error: Literal["raise", "return"],
        progress: bool,
        chat: bool,
    ) -> Map[Any]: ...
