"""What `LLM` gives, in vLLM's shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.compat.vllm.params import SamplingParams
    from llama_batch.logprobs import Logprob
    from llama_batch.model import Model
    from llama_batch.types import Completion

_REASONS = {"eog": "stop", "stop": "stop", "max_tokens": "length", "context_full": "length", "cancelled": "abort"}


@dataclass
class CompletionOutput:
    """One answer to a prompt.

    Attributes:
        index: which answer it is, from 0.
        text: the answer.
        token_ids: its tokens, without the one that ends it.
        cumulative_logprob: the sum of its tokens' log probabilities; None where they were not asked for.
        logprobs: for each token, what is known of it and of the likeliest ones, by token id; None as above.
        finish_reason: "stop", "length" or "abort".
        stop_reason: the stop string or token that ended it, if one did.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None

    def finished(self) -> bool:
        """Whether it is over."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """When things happened to a request. Unit: seconds, from its submission on.

    Attributes:
        time_in_queue: waiting for its turn.
        first_token_latency: to the first token.
        finished_time: to the end.
        num_generation_tokens: tokens of all its answers.
    """

    time_in_queue: float
    first_token_latency: float
    finished_time: float
    num_generation_tokens: int


@dataclass
class RequestOutput:
    """The answers to a prompt.

    Attributes:
        request_id: names the request in its `LLM`.
        prompt: the text; None where token ids were given.
        prompt_token_ids: its tokens.
        prompt_logprobs: what is known of each of them, where that was asked for; None of the first.
        outputs: the answers.
        finished: True.
        metrics: when things happened.
        num_cached_tokens: tokens of the prompt that were reused instead of computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    lora_request: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None


@dataclass
class EmbeddingOutput:
    """A text as a vector.

    Attributes:
        embedding: the vector.
    """

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """What a text was turned into.

    Attributes:
        request_id: names the request in its `LLM`.
        outputs: the vector.
        prompt_token_ids: the text's tokens.
        finished: True.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


def request_output(
    request_id: str,
    prompt: str | None,
    prompt_token_ids: Sequence[int],
    done: Completion[Any],
    params: SamplingParams,
    model: Model,
) -> RequestOutput:
    """A finished request.

    Args:
        request_id: names it.
        prompt: its text.
        prompt_token_ids: its tokens.
        done: its answers.
        params: how they were drawn.
        model: writes control tokens, where that was asked for.

    Returns:
        The output.
    """
    told = done.prompt_logprobs
    return RequestOutput(
        request_id,
        prompt,
        list(prompt_token_ids),
        None if told is None else [None if each is None else each.as_vllm() for each in told],
        [_answer(choice, params, model) for choice in done.choices],
        metrics=RequestMetrics(
            done.timings.queue_ms / 1e3,
            done.timings.ttft_ms / 1e3,
            done.timings.total_ms / 1e3,
            sum(choice.usage.generated_tokens for choice in done.choices),
        ),
        num_cached_tokens=done.usage.prefix_cache_tokens,
    )


def _answer(choice: Completion[Any], params: SamplingParams, model: Model) -> CompletionOutput:
    told = choice.logprobs
    return CompletionOutput(
        choice.index,
        _text(choice, params, model),
        list(choice.token_ids),
        None if told is None else sum(each.logprob for each in told),
        None if told is None else [each.as_vllm() for each in told],
        _REASONS.get(choice.finish_reason, choice.finish_reason),
        choice.stop_reason,
    )


def _text(choice: Completion[Any], params: SamplingParams, model: Model) -> str:
    """The text, with or without control tokens."""
    if not params.detokenize:
        return ""
    if params.skip_special_tokens:
        return choice.text
    text = model.detokenize(choice.token_ids, special=True)
    stop = choice.stop_reason
    if isinstance(stop, str) and not params.include_stop_str_in_output and stop in text:
        # The tokens of a stop string are told of, its text is not.
        text = text[: text.rindex(stop)]
    return text
