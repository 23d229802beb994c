"""An engine of this process, measured through its public API."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from llama_batch.errors import LlamaBatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_batch.benchmark.record import Asked, Record
    from llama_batch.engine import Engine

__all__ = ["EngineTarget"]


class EngineTarget:
    """An engine of this process as a target.

    Attributes:
        chat: whether to apply the model's chat template.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        chat: bool = False,
        timeout_s: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask this engine.

        Args:
            engine: it is ready, and stays open.
            chat: whether to apply the model's chat template.
            timeout_s: seconds after which a request is given up; None waits for as long as it takes.
            options: options of all requests.
        """
        self._engine = engine
        self.chat = chat
        self._timeout_s = timeout_s
        self._options = dict(options or {})

    async def count(self, text: str) -> int:
        """How many tokens a text has; without BOS, as servers count it too."""
        return len(self._engine.model.tokenize(text, add_special=False))

    async def ask(self, asked: Asked, record: Record) -> str:
        """Answer a request; see `Target.ask`."""
        parts: list[str] = []
        record.sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._follow(asked, record, parts)
        except TimeoutError:
            record.failure = f"timeout: no whole answer in {self._timeout_s:g} s"
        except LlamaBatchError as error:
            record.failure = f"{error.code}: {error}"
        record.ended = time.perf_counter()
        return "".join(parts)

    async def _follow(self, asked: Asked, record: Record, parts: list[str]) -> None:
        options = {**self._options, "max_tokens": asked.n_output, "ignore_eos": asked.ignore_eos}
        ask: Any = self._engine.chat if self.chat else self._engine.stream
        generation = ask(list(asked.messages) if self.chat else asked.text, **options)
        try:
            async for chunk in generation:
                record.deliveries.append(time.perf_counter())
                parts.append(chunk)
            done = await generation
        finally:
            generation.cancel()  # whoever stops following wants no more of it
        used = done.usage
        record.n_prompt, record.n_output = used.prompt_tokens, used.generated_tokens
        record.n_cached, record.queue_ms = used.prefix_cache_tokens, done.timings.queue_ms
        record.finish_reason = done.finish_reason
        if done.finish_reason == "cancelled":
            record.failure = "cancelled"
