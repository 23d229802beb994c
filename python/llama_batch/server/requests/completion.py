"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from llama_batch.server.requests.base import GenerationBody, StreamOptions, Unserved
from llama_batch.server.requests.chat import LLAMA_SERVER, OPENAI, VLLM, stream_options


class CompletionRequest(GenerationBody):
    """Text, or several texts, to go on with."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="Text, token ids, or a list of either: an answer, or `n`, to each."
    )
    suffix: str | None = Field(None, description="What comes after the answer, for models that fill in the middle.")
    stream_options: dict[str, Any] | None = Field(None, description="`include_usage` ends the stream with `usage`.")
    max_tokens: int | None = Field(
        None, ge=-1, le=2_147_483_647, description="Tokens generated at most; by default what is left of the context."
    )
    n_predict: int | None = Field(None, ge=-2, le=2_147_483_647, description="llama-server's name for it.")
    best_of: int | None = Field(None, ge=1, le=128, description="Answers made, of which the `n` likeliest are sent.")
    echo: bool | None = Field(None, description="Begin the answer with the prompt; `logprobs` tell of it too.")
    logprobs: int | None = Field(None, ge=0, le=1000, description="Tell how likely each token was, and so many others.")
    n_probs: int | None = Field(None, ge=0, le=1000, description="llama-server's name for it.")
    response_format: dict[str, Any] | None = Field(None, description="As for chats.")
    structured_outputs: dict[str, Any] | None = Field(None, description="As for chats.")
    user: str | None = Field(None, max_length=512, description="Who asks; stands in the log.")
    safety_identifier: str | None = Field(None, max_length=512, description="OpenAI's newer name for it.")
    prompt_cache_key: str | None = Field(None, max_length=512, description="OpenAI's name for `session`.")

    unserved: ClassVar[Unserved] = {
        **OPENAI,
        **LLAMA_SERVER,
        **VLLM,
        "prompt_embeds": ((), "prompts are text or tokens"),
        "response_fields": (([],), "the whole answer is sent; /completion serves it"),
        "return_tokens": ((False,), "/completion serves it"),
        "add_special_tokens": ((True,), "send token ids to decide about them"),
    }

    def options_of_stream(self) -> StreamOptions:
        """`stream_options`, checked."""
        return stream_options(self.stream_options, stream=bool(self.stream))
