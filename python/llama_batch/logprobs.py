"""How likely tokens were, where a request asks for `logprobs` or `prompt_logprobs`, in the shapes that others use too.

Example:
    >>> done = engine.generate("The sky is", max_tokens=1, logprobs=3).result()
    >>> [(top.text, round(top.probability, 2)) for top in done.logprobs[0].top]
    [(' blue', 0.41), (' the', 0.12), (' a', 0.08)]
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Logprob", "TokenLogprobs", "as_openai_completion"]


class Logprob(NamedTuple):
    """A token, and how likely it was.

    Attributes:
        token_id: the token.
        logprob: the natural logarithm of its probability; `-inf` where it could not be drawn.
        rank: its place among all tokens, from 1.
        bytes: its text in UTF-8, not always whole characters; the name of a control token.
    """

    token_id: int
    logprob: float
    rank: int
    bytes: bytes

    @property
    def text(self) -> str:
        """The token's text; what is no whole character is U+FFFD."""
        return self.bytes.decode("utf-8", "replace")

    @property
    def decoded_token(self) -> str:
        """The same, by vLLM's name."""
        return self.text

    @property
    def probability(self) -> float:
        """The probability, from 0 to 1."""
        return math.exp(self.logprob)


class TokenLogprobs(NamedTuple):
    """How likely one token of a text was, and which ones were likelier.

    Attributes:
        token_id: the token.
        logprob: the natural logarithm of its probability; `-inf` where it could not be drawn.
        rank: its place among all tokens, from 1.
        bytes: its text in UTF-8, not always whole characters; the name of a control token.
        top: the likeliest tokens, likeliest first; as many as the request asked for.
    """

    token_id: int
    logprob: float
    rank: int
    bytes: bytes
    top: tuple[Logprob, ...] = ()

    @property
    def text(self) -> str:
        """The token's text; what is no whole character is U+FFFD."""
        return self.bytes.decode("utf-8", "replace")

    @property
    def decoded_token(self) -> str:
        """The same, by vLLM's name."""
        return self.text

    @property
    def probability(self) -> float:
        """The probability, from 0 to 1."""
        return math.exp(self.logprob)

    def as_vllm(self) -> dict[int, Logprob]:
        """The shape of vLLM: the likeliest tokens and the token itself, by id.

        Returns:
            A dict from token ids to what is known of each.

        Example:
            >>> done.logprobs[0].as_vllm()[done.token_ids[0]].logprob
            -0.89
        """
        return {item.token_id: item for item in (Logprob(*self[:4]), *self.top)}

    def as_openai(self) -> dict[str, Any]:
        """The shape of OpenAI's chat completions: one item of `logprobs.content`.

        Returns:
            A dict that JSON can hold; a token that could not be drawn has -9999.0, as there.

        Example:
            >>> done.logprobs[0].as_openai()["top_logprobs"][0]["token"]
            ' blue'
        """
        return {**_openai_item(self), "top_logprobs": [_openai_item(top) for top in self.top]}


def as_openai_completion(
    logprobs: Iterable[TokenLogprobs | None], *, text_offset: int = 0, first: str = ""
) -> dict[str, Sequence[Any]]:
    """The shape of OpenAI's older completions: lists, one place for each token.

    Args:
        logprobs: what is known of each token; None of the first one of a prompt.
        text_offset: where in the text the first one begins. Unit: characters.
        first: the text of the one that nothing is known of.

    Returns:
        A dict of `tokens`, `token_logprobs`, `top_logprobs` and `text_offset`.

    Example:
        >>> as_openai_completion(done.logprobs)["tokens"]
        [' blue']
    """
    tokens, own, top, offsets = [], [], [], []
    for told in logprobs:
        offsets.append(text_offset)
        tokens.append(first if told is None else told.text)
        own.append(None if told is None else _finite(told.logprob))
        top.append(None if told is None else {item.text: _finite(item.logprob) for item in told.top})
        text_offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}


def first_of_prompt(prompt: str, told: Sequence[TokenLogprobs | None]) -> str:
    """The text of a prompt's first token, of which no logprobs tell: what the others leave of the prompt.

    Args:
        prompt: the prompt's text.
        told: what is known of its tokens.

    Returns:
        The text; none where it is a control token, as BOS is, or where the others are not what the prompt ends with.

    Example:
        >>> first_of_prompt("Once upon", done.prompt_logprobs)
        'Once'
    """
    known = [each for each in told if each is not None]
    rest, whole = b"".join(each.bytes for each in known), prompt.encode()
    if whole.endswith(rest):
        return whole.removesuffix(rest).decode(errors="replace")
    text = "".join(each.text for each in known)  # token ids may spell half a character
    return prompt.removesuffix(text) if prompt.endswith(text) else ""


def _openai_item(item: Logprob | TokenLogprobs) -> dict[str, Any]:
    return {"token": item.text, "logprob": _finite(item.logprob), "bytes": list(item.bytes)}


def _finite(logprob: float) -> float:
    """A number that JSON has."""
    return logprob if math.isfinite(logprob) else -9999.0
