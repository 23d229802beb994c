"""Filling in the middle: the prompt of a model that was trained to write what stands between two texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_batch.server.failures import not_served

if TYPE_CHECKING:
    from llama_batch.model import Model

# Where GGUF files name the three tokens, and how models whose files do not are known to spell them.
_KEYS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id")
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek's bars
)


def fill_in_the_middle(model: Model, prefix: str | list[int], suffix: str) -> list[int]:
    """The prompt that asks for what stands between two texts.

    Args:
        model: the model.
        prefix: what comes before.
        suffix: what comes behind.

    Returns:
        Token ids.

    Raises:
        HttpError: 501, the model has no tokens for it.

    Example:
        >>> fill_in_the_middle(engine.model, "def add(a, b): return ", " # the sum")
    """
    tokens = fim_tokens(model)
    if tokens is None:
        raise not_served("suffix", "the model has no tokens to fill in the middle with")
    before, behind, middle = tokens
    begin = model.tokenize("", add_special=True)[:1]  # BOS, where the vocabulary wants one
    text = model.tokenize(prefix, add_special=False, parse_special=False) if isinstance(prefix, str) else list(prefix)
    rest = model.tokenize(suffix, add_special=False, parse_special=False)
    return [*begin, before, *text, behind, *rest, middle]


def fim_tokens(model: Model) -> tuple[int, int, int] | None:
    """The tokens that stand before the prefix, before the suffix, and before the middle.

    Args:
        model: the model.

    Returns:
        The three; None if the model has none.

    Example:
        >>> fim_tokens(engine.model)
        (151659, 151661, 151660)
    """
    metadata = model.metadata
    named = [metadata.get(key, "") for key in _KEYS]
    if all(value.isdecimal() for value in named):
        before, behind, middle = (int(value) for value in named)
        return before, behind, middle
    for spelling in _SPELLINGS:
        ids = [model.tokenize(text, add_special=False, parse_special=True) for text in spelling]
        if all(len(each) == 1 for each in ids) and len({each[0] for each in ids}) == 3:
            return ids[0][0], ids[1][0], ids[2][0]
    return None
