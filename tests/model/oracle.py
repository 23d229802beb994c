"""The oracle of real models: teacher forcing.

The shape of a batch alone moves logits, so that equal text proves nothing and unequal text disproves nothing. Instead
each token of a greedy text is put to the model again, alone and uncached: it must be the likeliest there, within the
noise that two fresh computations in different chunks show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_batch import Model


def gaps(model: Model, prompt: Sequence[int], tokens: Sequence[int], chunk: int) -> list[float]:
    """How far each token was from the likeliest, in logits; computed alone, `chunk` tokens at a time."""
    return model.score([*prompt, *tokens], len(prompt), chunk=chunk)


def assert_greedy(model: Model, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Assert that each text is what greedy decoding of its prompt gives, and return the noise that was allowed."""
    texts = list(texts)
    whole = [gaps(model, prompt, tokens, 512) for prompt, tokens in texts]
    single = [gaps(model, prompt, tokens, 1) for prompt, tokens in texts]
    noise = max(abs(a - b) for one, other in zip(whole, single, strict=True) for a, b in zip(one, other, strict=True))
    allowed = 2 * noise  # the text's own passes had a third shape
    for (_, tokens), text_gaps in zip(texts, whole, strict=True):
        worst = max(text_gaps)
        assert worst <= allowed, f"token {tokens[text_gaps.index(worst)]} is {worst:.2f} off, noise is {noise:.2f}"
    return allowed
