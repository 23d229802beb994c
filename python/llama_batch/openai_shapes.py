"""OpenAI's shapes: chat.completion, text_completion and their chunks, built from completions of the engine.

Plain dicts that JSON can hold, from plain objects: nothing here needs the server or what it is made of.

Example:
    >>> done = engine.chat("Why is the sky blue?").result()
    >>> chat_completion(Head.new("chatcmpl", "smollm2"), done)["choices"][0]["message"]["content"]
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from llama_batch.logprobs import as_openai_completion, first_of_prompt

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from llama_batch.logprobs import Logprob, TokenLogprobs
    from llama_batch.messages import ChatDelta, ChatMessage, ToolCallDelta
    from llama_batch.types import Completion

_REASONS = {"eog": "stop", "stop": "stop", "max_tokens": "length", "context_full": "length", "cancelled": "abort"}


@cache
def system_fingerprint() -> str:
    """What computes: llama.cpp's version behind a b, as llama-server has it, and this package's version."""
    import re

    from llama_batch import LLAMA_CPP_BUILD, __version__

    build = re.match(r"llama\.cpp b?([\w.\-]+)", LLAMA_CPP_BUILD)
    return f"b{build.group(1) if build else 0}-llama-batch-{__version__}"


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of an answer begin with.

    Attributes:
        id: the answer's name.
        created: when it was asked for. Unit: seconds since 1970.
        model: the model's name.
    """

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Head:
        """A new one.

        Args:
            prefix: "chatcmpl" or "cmpl".
            model: the model's name.
        """
        return cls(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model)

    def as_dict(self, kind: str) -> dict[str, Any]:
        """Its members, with the name of the shape."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": system_fingerprint(),
        }


def finish_reason(completion: Completion) -> str:
    """Why an answer ended, in OpenAI's words.

    Args:
        completion: the answer.

    Returns:
        "stop", "length", "tool_calls", or vLLM's "abort" for one that was cancelled.

    Example:
        >>> finish_reason(done)
        'stop'
    """
    return _reason(completion, completion.message)


def _reason(completion: Completion, message: ChatMessage) -> str:
    reason = _REASONS.get(completion.finish_reason, completion.finish_reason)
    return "tool_calls" if reason == "stop" and message.tool_calls else reason


def usage(completions: Iterable[Completion]) -> dict[str, Any]:
    """What a request used, in OpenAI's words. A prompt that has several answers counts once.

    Args:
        completions: one for each prompt.

    Returns:
        A dict with `prompt_tokens`, `completion_tokens`, `total_tokens` and
        `prompt_tokens_details.cached_tokens`: the tokens of the prompt that were not computed.

    Example:
        >>> usage([done])["prompt_tokens_details"]
        {'cached_tokens': 0}
    """
    n_prompt = n_generated = n_cached = 0
    for completion in completions:
        n_prompt += completion.usage.prompt_tokens
        n_cached += completion.usage.prefix_cache_tokens
        n_generated += sum(choice.usage.generated_tokens for choice in completion.choices)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


def timings(completion: Completion) -> dict[str, Any]:
    """When things happened, in llama-server's words.

    Args:
        completion: the answer.

    Returns:
        Its `timings`; `prompt_n` counts the tokens that were computed, `cache_n` the others. Also `queue_ms`, and where
        anything was drafted `draft_n` and `draft_n_accepted`.

    Example:
        >>> timings(done)["predicted_per_second"]
        41.2
    """
    used, took = completion.usage, completion.timings
    n_prompt = used.prompt_tokens - used.prefix_cache_tokens
    prompt_ms, predicted_ms = round(took.prefill_ms, 3), round(took.decode_ms, 3)
    drafts = {"draft_n": used.draft_tokens, "draft_n_accepted": used.accepted_tokens} if used.draft_tokens else {}
    return {
        "cache_n": used.prefix_cache_tokens,
        "prompt_n": n_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, n_prompt),
        "prompt_per_second": _ratio(1e3 * n_prompt, prompt_ms),
        "predicted_n": used.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, used.generated_tokens),
        "predicted_per_second": _ratio(1e3 * used.generated_tokens, predicted_ms),
        "queue_ms": round(took.queue_ms, 3),
        **drafts,
    }


def _ratio(above: float, below: float) -> float:
    return round(above / below, 3) if below else 0.0


def chat_logprobs(logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
    """The `logprobs` of a choice of a chat; None where none were asked for."""
    if logprobs is None:
        return None
    return {"content": [told.as_openai() for told in logprobs], "refusal": None}


def prompt_logprobs(completion: Completion) -> list[dict[str, Any] | None]:
    """How likely the tokens of the prompt were, in vLLM's shape: a dict for each, by token id.

    Args:
        completion: an answer whose request asked for it.

    Returns:
        A list; None stands for the first token.

    Example:
        >>> prompt_logprobs(done)[1]
        {'2502': {'logprob': -7.1, 'rank': 240, 'decoded_token': ' upon'}}
    """
    told = completion.prompt_logprobs or ()
    return [None if each is None else {str(i): _vllm(other) for i, other in each.as_vllm().items()} for each in told]


def _vllm(told: Logprob) -> dict[str, Any]:
    return {"logprob": max(told.logprob, -9999.0), "rank": told.rank, "decoded_token": told.text}


def chat_completion(head: Head, completion: Completion) -> dict[str, Any]:
    """A `chat.completion`.

    Args:
        head: what it begins with.
        completion: the answer, with its further choices.

    Returns:
        The dict, with `usage` and llama-server's `timings`.

    Example:
        >>> chat_completion(Head.new("chatcmpl", "m"), done)["choices"][0]["finish_reason"]
        'stop'
    """
    choices = [
        {
            "index": index,
            "message": {"refusal": None, **message.as_dict()},
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": _reason(choice, message),
        }
        for index, (choice, message) in enumerate((choice, choice.message) for choice in completion.choices)
    ]
    return {
        **head.as_dict("chat.completion"),
        "choices": choices,
        "usage": usage([completion]),
        "timings": timings(completion),
    }


def chat_chunk(
    head: Head, index: int, delta: Mapping[str, Any], *, logprobs: Any = None, finish_reason: str | None = None
) -> dict[str, Any]:
    """A `chat.completion.chunk` of one choice.

    Args:
        head: what it begins with.
        index: the choice.
        delta: what it adds.
        logprobs: of the tokens that it adds.
        finish_reason: why the choice ends with it, where it does.

    Returns:
        The dict.

    Example:
        >>> chat_chunk(head, 0, {"content": "Hel"})["choices"][0]["delta"]
        {'content': 'Hel'}
    """
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**head.as_dict("chat.completion.chunk"), "choices": [choice]}


def chat_delta(piece: ChatDelta) -> dict[str, Any]:
    """What a delta adds, in OpenAI's words; of its members those that say something.

    Args:
        piece: from `Generation.deltas`.

    Returns:
        A dict of `content`, `reasoning_content` and `tool_calls`.

    Example:
        >>> chat_delta(ChatDelta(content="Hel"))
        {'content': 'Hel'}
    """
    delta: dict[str, Any] = {}
    if piece.reasoning_content:
        delta["reasoning_content"] = piece.reasoning_content
    if piece.content:
        delta["content"] = piece.content
    if piece.tool_calls:
        delta["tool_calls"] = [_tool_call(call) for call in piece.tool_calls]
    return delta


def _tool_call(call: ToolCallDelta) -> dict[str, Any]:
    made: dict[str, Any] = {"index": call.index}
    if call.id:
        made |= {"id": call.id, "type": "function"}
    function = {name: getattr(call, name) for name in ("name", "arguments") if getattr(call, name) is not None}
    return {**made, "function": function}


def chat_beginning(head: Head, index: int) -> dict[str, Any]:
    """The first chunk of a choice, which says whose turn it is.

    Args:
        head: what it begins with.
        index: the choice.

    Returns:
        The dict.
    """
    return chat_chunk(head, index, {"role": "assistant", "content": ""})


def chat_ends(
    head: Head, completion: Completion, begun: Container[int], *, include_usage: bool
) -> list[dict[str, Any]]:
    """The last chunks of a chat: why each choice ended, and what all used.

    Args:
        head: what they begin with.
        completion: the answer, with its further choices.
        begun: the choices that have had a chunk.
        include_usage: whether to end with a chunk that has `usage` and no choices.

    Returns:
        The dicts; the last choice's has llama-server's `timings`.
    """
    chunks = []
    for index, choice in enumerate(completion.choices):
        if index not in begun:
            chunks.append(chat_beginning(head, index))
        chunks.append(chat_chunk(head, index, {}, finish_reason=finish_reason(choice)))
    chunks[-1]["timings"] = timings(completion)
    if include_usage:
        used = {"usage": usage([completion]), "timings": timings(completion)}
        chunks.append({**head.as_dict("chat.completion.chunk"), "choices": [], **used})
    return chunks


def text_choice(
    index: int,
    completion: Completion,
    *,
    prompt: str = "",
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None,
    logprobs: bool = True,
) -> dict[str, Any]:
    """A choice of a `text_completion`.

    Args:
        index: which one.
        completion: the answer.
        prompt: what stands before it, where it is to be echoed.
        prompt_logprobs: of its tokens, where `logprobs` is to tell of them too.
        logprobs: whether to tell how likely its tokens were, where the engine was asked.

    Returns:
        The dict.

    Example:
        >>> text_choice(0, done, prompt="Once")["text"]
        'Once upon a time'
    """
    told: list[TokenLogprobs | None] = [*(prompt_logprobs or ()), *(completion.logprobs or ())]
    known = logprobs and (completion.logprobs is not None or bool(told))
    offset, first = (0, first_of_prompt(prompt, prompt_logprobs)) if prompt_logprobs else (len(prompt), "")
    return {
        "index": index,
        "text": prompt + completion.text,
        "logprobs": as_openai_completion(told, text_offset=offset, first=first) if known else None,
        "finish_reason": finish_reason(completion),
        "stop_reason": completion.stop_reason,
    }


def text_completion(
    head: Head, choices: Sequence[Mapping[str, Any]], completions: Sequence[Completion]
) -> dict[str, Any]:
    """A `text_completion`.

    Args:
        head: what it begins with.
        choices: from `text_choice`.
        completions: one for each prompt, for `usage`; of the first one are the `timings`.

    Returns:
        The dict.

    Example:
        >>> text_completion(head, [text_choice(0, done)], [done])["object"]
        'text_completion'
    """
    return {
        **head.as_dict("text_completion"),
        "choices": list(choices),
        "usage": usage(completions),
        "timings": timings(completions[0]),
    }


def text_chunk(
    head: Head, index: int, text: str, *, logprobs: Any = None, finish_reason: str | None = None
) -> dict[str, Any]:
    """A chunk of a `text_completion`, of one choice.

    Args:
        head: what it begins with.
        index: the choice.
        text: what it adds.
        logprobs: of the tokens that it adds.
        finish_reason: why the choice ends with it, where it does.

    Returns:
        The dict.

    Example:
        >>> text_chunk(head, 0, "upon")["choices"][0]["text"]
        'upon'
    """
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**head.as_dict("text_completion"), "choices": [choice]}
