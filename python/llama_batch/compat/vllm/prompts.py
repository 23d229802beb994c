"""What vLLM takes for prompts and for conversations, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from llama_batch.errors import ContextFullError, OptionError, PromptError

if TYPE_CHECKING:
    from typing import NotRequired

    from llama_batch.compat.vllm.params import SamplingParams
    from llama_batch.model import Model


class TextPrompt(TypedDict):
    """A prompt that is text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt that is token ids, and perhaps their text."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready.

    Attributes:
        text: as it was given.
        token_ids: its tokens.
        options: what it says beside itself, as options of the engine.
    """

    text: str | None
    token_ids: list[int]
    options: Mapping[str, Any]


def each_prompt(prompts: Any) -> list[Any]:
    """A prompt, or several, as a list.

    Args:
        prompts: text, token ids, a dict, or a list of them.

    Returns:
        The list.

    Raises:
        PromptError: it is none of these.

    Example:
        >>> each_prompt([1, 2, 3])
        [[1, 2, 3]]
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise PromptError(f"prompts are text, token ids, dicts, or a list of them, not {type(prompts).__name__}")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return list(prompts)


def each_conversation(messages: Any) -> list[Any]:
    """A conversation, or several, as a list.

    Args:
        messages: a list of messages, or a list of such lists.

    Returns:
        The conversations.

    Raises:
        PromptError: it is neither.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError(f"messages are a list of messages, or a list of such lists, not {type(messages).__name__}")
    return [messages] if not messages or isinstance(messages[0], Mapping) else list(messages)


def ready(given: Any, model: Model) -> Prompt:
    """A prompt as tokens.

    Args:
        given: text, token ids, or a dict.
        model: tokenises it.

    Returns:
        The prompt.

    Raises:
        PromptError: it is none of these.
        OptionError: the dict holds what is not supported.
    """
    if isinstance(given, str):
        return Prompt(given, model.tokenize(given), {})
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        return Prompt(None, _ids(given), {})
    if not isinstance(given, Mapping):
        raise PromptError(f"a prompt is text, token ids or a dict, not {type(given).__name__}")
    for name, value in given.items():
        if name not in {"prompt", "prompt_token_ids", "cache_salt"} and value is not None:
            raise OptionError(f"a prompt with {name!r} is not supported: give 'prompt' or 'prompt_token_ids'")
    options = {} if given.get("cache_salt") is None else {"cache_scope": given["cache_salt"]}
    text, token_ids = given.get("prompt"), given.get("prompt_token_ids")
    if token_ids is not None:
        return Prompt(text, _ids(token_ids), options)
    if not isinstance(text, str):
        raise PromptError("a prompt that is a dict has text as 'prompt', or token ids as 'prompt_token_ids'")
    return Prompt(text, model.tokenize(text), options)


def fitted(prompt: Prompt, params: SamplingParams, options: dict[str, Any], limit: int | None) -> Prompt:
    """A prompt within what one request may use; what may be generated is cut to what is left of that.

    Args:
        prompt: the prompt.
        params: may ask for the prompt to be cut.
        options: of the request; `max_tokens` may become less.
        limit: `max_model_len`. Unit: tokens.

    Returns:
        The prompt, perhaps cut.

    Raises:
        OptionError: `truncate_prompt_tokens` is no length.
        ContextFullError: the prompt leaves no room.
    """
    keep: Any = params.truncate_prompt_tokens
    if keep is not None:
        if isinstance(keep, bool) or not isinstance(keep, int) or (keep < 1 and keep != -1):
            raise OptionError(f"truncate_prompt_tokens must be -1 or at least 1, not {keep!r}")
        keep = (limit - 1 if limit is not None else 0) if keep == -1 else keep
        prompt = Prompt(prompt.text, prompt.token_ids[-keep:], prompt.options)
    if limit is None:
        return prompt
    n_prompt = len(prompt.token_ids)
    if n_prompt >= limit:
        message = f"the prompt has {n_prompt} tokens, which leaves nothing of max_model_len={limit}"
        raise ContextFullError(message, n_prompt_tokens=n_prompt, n_ctx=limit)
    if isinstance(options["max_tokens"], int):
        options["max_tokens"] = min(options["max_tokens"], limit - n_prompt)
    return prompt


def _ids(given: Any) -> list[int]:
    if isinstance(given, str | bytes) or not all(isinstance(token, int) for token in given):
        raise PromptError("token ids are a list of integers")
    return list(given)
