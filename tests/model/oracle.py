"""The oracle of real models: teacher forcing.

The shape of a batch alone moves logits, so that equal text proves nothing and unequal text disproves nothing. Instead
each token of a greedy text is put to the model again, alone and uncached: it must be the likeliest there, within the
noise between fresh computations of the same logits: one token a pass or all in one, with flash attention or without.
(Chunks alone show no noise on short texts, while the place of a sequence among others in the KV cache does.)
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_batch import Model


class Oracle:
    """Judges texts by a model that two engines hold: one with flash attention, one without."""

    def __init__(self, flash: Model, plain: Model) -> None:
        self._flash = flash
        self._plain = plain

    def gaps(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """How far each token is from the likeliest at its place, in logits; 0 where it is the likeliest."""
        return self._flash.score([*prompt, *tokens], len(prompt))

    def assert_greedy(self, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Assert that each text is what greedy decoding of its prompt gives, and return the noise that was allowed."""
        texts = list(texts)
        allowed = 2 * max(self._noise(prompt, tokens) for prompt, tokens in texts)
        assert allowed < 2, "so much noise would hide anything"
        for prompt, tokens in texts:
            gaps = self.gaps(prompt, tokens)
            worst = max(gaps)
            assert worst <= allowed, f"token {tokens[gaps.index(worst)]} is {worst:.2f} off, {allowed:.2f} is allowed"
        return allowed

    def _noise(self, prompt: Sequence[int], tokens: Sequence[int]) -> float:
        """How much the same logits differ between fresh computations.

        Measured on the text turned round, since a text that all find likeliest has gaps of 0 in all.
        """
        turned = [*prompt, *tokens[::-1]]
        ways = [(self._flash, 512), (self._flash, 1), (self._plain, 512)]
        computed = [model.score(turned, len(prompt), chunk=chunk) for model, chunk in ways]
        pairs = (zip(one, other, strict=True) for one, other in combinations(computed, 2))
        return max(abs(a - b) for pair in pairs for a, b in pair)
