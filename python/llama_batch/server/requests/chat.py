"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from llama_batch.server.failures import HttpError, not_served
from llama_batch.server.requests.base import Body, GenerationBody, StreamOptions, Unserved, nested

MAX_TOP_LOGPROBS = 20

_NO_STORE = "answers are not kept"
_SLOTS = "the engine chooses; `session` makes a conversation prefer its own"
_NO_SHIFT = "contexts are not shifted: an answer ends where its context is full"

LLAMA_SERVER: Unserved = {
    "id_slot": ((-1,), _SLOTS),
    "n_keep": ((0,), _NO_SHIFT),
    "n_discard": ((0,), _NO_SHIFT),
    "n_indent": ((0,), "lines of less indentation do not end an answer"),
    "min_keep": ((0,), "the sampling chain keeps one token at least"),
    "n_cache_reuse": ((0,), "prefixes are reused whole"),
    "t_max_predict_ms": ((0, -1), "`timeout` limits the whole request"),
    "lora": (([],), "adapters are not loaded"),
    "image_data": (([],), "images are not read"),
    "timings_per_token": ((False,), "`timings` stand in the last chunk"),
    "backend_sampling": ((False,), "tokens are drawn on the CPU"),
    "grammar_lazy": ((False,), "`grammar_triggers` make a grammar wait"),
    "preserved_tokens": (([],), "the text of control tokens is not shown"),
    "adaptive_target": ((-1, -1.0), "the adaptive sampler is not there"),
    "adaptive_decay": ((), "the adaptive sampler is not there"),
    "verbose": ((False,), "what was asked is not repeated"),
    "speculative.n_max": ((0,), "nothing is speculated"),
    "speculative.n_min": ((0,), "nothing is speculated"),
    "speculative.p_min": ((), "nothing is speculated"),
}
"""What llama-server takes and this server does not."""

VLLM: Unserved = {
    "use_beam_search": ((False,), "tokens are drawn"),
    "length_penalty": ((1, 1.0), "tokens are drawn"),
    "skip_special_tokens": ((True,), "the text of control tokens is not shown"),
    "spaces_between_special_tokens": ((True,), "the text of control tokens is not shown"),
    "truncate_prompt_tokens": ((), "prompts are read whole, or refused"),
    "kv_transfer_params": ((), "there is one engine"),
    "return_tokens_as_token_ids": ((False,), "`return_tokens` of /completion gives ids"),
    "return_token_ids": ((False,), "`return_tokens` of /completion gives ids"),
    "mm_processor_kwargs": ((), "images are not read"),
    "logits_processors": ((), "no code comes in by requests"),
    "request_id": ((), "the header X-Request-Id names a request"),
    "vllm_xargs": ((), "there is none of vLLM's extensions"),
    "thinking_token_budget": ((), "`max_tokens` limits the whole answer"),
    "repetition_detection": ((), "`dry_multiplier` keeps answers from repeating themselves"),
}
"""What vLLM takes and this server does not."""

OPENAI: Unserved = {
    "store": ((False,), _NO_STORE),
    "metadata": (({},), _NO_STORE),
    "service_tier": (("auto", "default"), "`priority` says who goes first"),
    "prompt_cache_options": ((), "`cache_prompt` and `session` say what is reused"),
    "prompt_cache_retention": (("in_memory",), "the operator decides what is kept"),
    "moderation": ((), "answers are not judged"),
}
"""What OpenAI takes and this server does not."""


_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "additionalProperties": False,
}
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": _TEXT_PART},
                {"type": "null"},
            ]
        },
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": {"type": "string"},
        "reasoning_content": {"type": "string"},
        "name": {"type": "string"},
    },
}
"""What `/openapi.json` says of messages, which are checked one by one, so that what is wrong has a place."""


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    unserved: ClassVar[Unserved] = {
        "refusal": (("",), "a refusal is part of `content`"),
        "annotations": (([],), "answers have none"),
        "audio": ((), "audio is not heard"),
        "function_call": ((), "`tool_calls` is its successor"),
        "prefix": ((False,), "`continue_final_message` goes on with a message"),
        "phase": ((), "answers have one phase"),
    }


class ChatRequest(GenerationBody):
    """A chat that wants its next message."""

    messages: list[dict[str, Any]] = Field(
        min_length=1,
        description="The chat so far, oldest message first.",
        json_schema_extra={"items": MESSAGE_SCHEMA},
    )
    stream_options: dict[str, Any] | None = Field(None, description="`include_usage` ends the stream with `usage`.")
    max_tokens: int | None = Field(
        None, ge=-1, le=2_147_483_647, description="Tokens generated at most; by default what is left of the context."
    )
    max_completion_tokens: int | None = Field(None, ge=0, le=2_147_483_647, description="OpenAI's name for it.")
    n_predict: int | None = Field(None, ge=-2, le=2_147_483_647, description="llama-server's name for it.")
    logprobs: bool | None = Field(None, description="Tell how likely each token was.")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS, description="And so many of the likeliest.")
    n_probs: int | None = Field(None, ge=0, le=1000, description="llama-server's name for both.")
    response_format: dict[str, Any] | None = Field(
        None, description="`text`, `json_object`, or `json_schema` with a schema that the answer keeps to."
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description="vLLM's: `json`, `regex`, `choice` or `grammar`."
    )
    tools: list[dict[str, Any]] | None = Field(None, description="Functions that the model may call.")
    tool_choice: str | dict[str, Any] | None = Field(None, description="Whether it may, must, or which one.")
    parallel_tool_calls: bool | None = Field(None, description="Whether it may call several at once.")
    enable_thinking: bool | None = Field(None, description="Whether a model that can reason does.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="How much it does, for templates that know of it; `none` is `enable_thinking: false`."
    )
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] | None = Field(
        None, description="`none` leaves reasoning in the answer; otherwise it stands in `reasoning_content`."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the chat template.")
    chat_template: str | None = Field(None, description="A template of one's own, where the operator trusts them.")
    continue_final_message: bool | None = Field(None, description="Go on with the last message.")
    add_generation_prompt: bool | None = Field(None, description="End the chat with what begins the answer.")
    user: str | None = Field(None, max_length=512, description="Who asks; stands in the log.")
    safety_identifier: str | None = Field(None, max_length=512, description="OpenAI's newer name for it.")
    prompt_cache_key: str | None = Field(None, max_length=512, description="OpenAI's name for `session`.")

    unserved: ClassVar[Unserved] = {
        **OPENAI,
        **LLAMA_SERVER,
        **VLLM,
        "audio": ((), "answers are text"),
        "modalities": ((["text"],), "answers are text"),
        "prediction": ((), "answers are not predicted"),
        "verbosity": (("medium",), "the messages say how long an answer should be"),
        "web_search_options": ((), "the web is not searched"),
        "functions": (([],), "`tools` is its successor"),
        "function_call": (("none", "auto"), "`tool_choice` is its successor"),
        "thinking_forced_open": ((False,), "the template decides"),
        "reasoning_budget_tokens": ((-1,), "`max_tokens` limits the whole answer"),
        "echo": ((False,), "a chat is not repeated"),
        "documents": ((), "put them into a message"),
        "parse_tool_calls": ((True,), "`tool_choice: none` asks for none"),
        "reasoning_in_content": ((False,), "reasoning stands in `reasoning_content`"),
        "reasoning_budget": ((-1,), "`max_tokens` limits the whole answer"),
        "return_tokens": ((False,), "/completion serves it"),
        "include_reasoning": ((True,), "reasoning stands in `reasoning_content`"),
        "response_fields": (([],), "the whole answer is sent"),
    }

    def options_of_stream(self) -> StreamOptions:
        """`stream_options`, checked."""
        return stream_options(self.stream_options, stream=bool(self.stream))

    def checked_messages(self) -> list[dict[str, Any]]:
        """The messages as the engine takes them: text where parts of text were, no empty members.

        Raises:
            HttpError: a message is wrong, or has what is not read here, such as an image.
        """
        return [_message(message, f"messages.{place}") for place, message in enumerate(self.messages)]


def stream_options(given: dict[str, Any] | None, *, stream: bool) -> StreamOptions:
    """Options of a stream, checked; they belong to one.

    Args:
        given: the field.
        stream: whether the answer is one.
    """
    if given is None:
        return StreamOptions()
    if not stream:
        name = "stream_options"
        raise HttpError(400, f"{name!r} goes with 'stream': true", code="invalid_value", param=name)
    return nested(StreamOptions, given, "stream_options")


def _message(given: Any, place: str) -> dict[str, Any]:
    message = nested(Message, given, place)
    made = message.model_dump(exclude_none=True)
    if message.role == "developer":
        made["role"] = "system"  # what templates know
    if isinstance(message.content, list):
        made["content"] = "\n".join(_text(part, f"{place}.content.{i}") for i, part in enumerate(message.content))
    if "content" not in made and "tool_calls" not in made:
        name = f"{place}.content"
        raise HttpError(400, f"{name!r} is missing", code="invalid_value", param=name)
    return made


def _text(part: dict[str, Any], place: str) -> str:
    """A part's text."""
    kind = part.get("type")
    if kind in {"text", "refusal"}:
        text = part.get(kind)
        if isinstance(text, str) and set(part) <= {"type", kind}:
            return text
        raise HttpError(400, f"{place!r} must have a text, and nothing else", code="invalid_value", param=place)
    if kind in {"image_url", "input_audio", "file", "video_url", "audio_url"}:
        raise not_served(f"{place}.{kind}", "messages are text")
    raise HttpError(400, f"{place!r} is no part of type 'text'", code="invalid_value", param=place)
