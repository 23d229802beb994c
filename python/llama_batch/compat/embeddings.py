"""Vectors of texts, for the classes of both projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.engine import Engine


def embedded(engine: Engine, texts: Sequence[Any], *, normalize: bool) -> tuple[list[list[float]], int]:
    """A vector for each text.

    Args:
        engine: the engine.
        texts: text or token ids, each.
        normalize: make vectors of length 1.

    Returns:
        The vectors, and how many tokens all texts have.
    """
    made = engine.embed(list(texts), normalize=normalize).result()
    return [vector.tolist() for vector in made.vectors], made.usage.prompt_tokens
