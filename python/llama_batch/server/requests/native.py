"""The body of llama-server's `/completion`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from llama_batch.server.requests.base import GenerationBody, Unserved
from llama_batch.server.requests.chat import LLAMA_SERVER


class NativeRequest(GenerationBody):
    """A prompt, or several, in llama-server's words."""

    prompt: Any = Field(
        description="Text, token ids, a list in which both are mixed, or a list of these: an answer to each."
    )
    n_predict: int | None = Field(
        None, ge=-2, le=2_147_483_647, description="Tokens generated at most; -1: what is left of the context."
    )
    max_tokens: int | None = Field(None, ge=-1, le=2_147_483_647, description="OpenAI's name for it.")
    n_cmpl: int | None = Field(None, ge=1, le=128, description="llama-server's name for `n`.")
    n_probs: int | None = Field(None, ge=0, le=1000, description="Tell of so many of the likeliest tokens.")
    logprobs: int | None = Field(None, ge=0, le=1000, description="The same.")
    return_tokens: bool | None = Field(None, description="Send token ids too.")
    response_fields: list[str] | None = Field(
        None, description="The members of the answer that are wanted; a/b is member b of a."
    )

    unserved: ClassVar[Unserved] = {
        **{name: row for name, row in LLAMA_SERVER.items() if name != "response_fields"},
        "penalize_nl": ((False,), "line breaks are tokens as others are"),
        "multimodal_data": (([],), "prompts are text or tokens"),
        "stream_options": (({},), "/v1/completions serves it"),
        "input_prefix": ((), "/v1/completions has `suffix`"),
        "input_suffix": ((), "/v1/completions has `suffix`"),
        "input_extra": (([],), "/v1/completions has `suffix`"),
    }
