"""Vectors of texts, for the classes of both projects, where the engine makes them."""

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

    Raises:
        NotImplementedError: the engine makes no embeddings.
    """
    embed: Any = getattr(engine, "embed", None)
    if embed is None:
        from llama_batch import __version__

        raise NotImplementedError(f"llama-batch {__version__} makes no embeddings: a later version's Engine.embed will")
    made = embed(list(texts), normalize=2 if normalize else -1).result()
    return [[float(number) for number in vector] for vector in made.vectors], int(made.usage.prompt_tokens)
