"""The bodies of the routes that generate nothing."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from llama_batch.server.requests.base import Body, Unserved
from llama_batch.server.requests.chat import MESSAGE_SCHEMA


class TokenizeRequest(Body):
    """Text to tokens: llama-server's `content`, vLLM's `prompt`, or a chat."""

    content: str | None = Field(None, description="llama-server's: the text.")
    prompt: str | None = Field(None, description="vLLM's: the text.")
    messages: list[dict[str, Any]] | None = Field(None, description="vLLM's: a chat, by the model's template.")
    model: str | None = None
    add_special: bool | None = Field(None, description="Add BOS and EOS as the vocabulary says; by default not.")
    add_special_tokens: bool | None = Field(None, description="vLLM's; by default for a prompt and not for a chat.")
    parse_special: bool | None = Field(None, description="Read the text of control tokens as those; by default yes.")
    with_pieces: bool | None = Field(None, description="Give each token's text too.")
    return_token_strs: bool | None = Field(None, description="vLLM's: give a list of their texts.")
    add_generation_prompt: bool | None = Field(None, description="End a chat with what begins the answer.")

    unserved: ClassVar[Unserved] = {
        "continue_final_message": ((False,), "chats are rendered whole"),
        "chat_template": ((), "the model's template renders"),
        "chat_template_kwargs": (({},), "the model's template renders"),
        "mm_processor_kwargs": ((), "images are not read"),
        "tools": (([],), "chats are rendered without tools"),
    }


class DetokenizeRequest(Body):
    """Tokens to text."""

    tokens: list[int] = Field(description="Token ids.")
    model: str | None = None


class ApplyTemplateRequest(Body):
    """A chat to the prompt that it makes."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="The chat, oldest message first.", json_schema_extra={"items": MESSAGE_SCHEMA}
    )
    model: str | None = None
    add_generation_prompt: bool | None = Field(None, description="End with what begins the answer; by default yes.")

    unserved: ClassVar[Unserved] = {
        "tools": (([],), "chats are rendered without tools"),
        "chat_template_kwargs": (({},), "the model's template renders"),
        "continue_final_message": ((False,), "chats are rendered whole"),
    }


class EmbeddingRequest(Body):
    """Texts to vectors."""

    input: str | list[str] | list[int] | list[list[int]] | None = Field(
        None, description="Text, token ids, or a list of either: a vector for each."
    )
    content: str | list[str] | list[int] | list[list[int]] | None = Field(None, description="llama-server's name.")
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = Field(None, description="Numbers, or little-endian floats.")
    embd_normalize: int | None = Field(
        None, ge=-1, le=1_000_000, description="The p-norm that vectors get: 2 by default; -1 leaves them as they are."
    )
    pooling: Literal["auto", "mean", "cls", "last", "none"] | None = Field(
        None, description="How the vectors of tokens become one; by default as the model has it."
    )
    priority: int | None = Field(
        None, ge=-1_000_000, le=1_000_000, description="Lower goes first; at least what the API key begins with."
    )
    timeout: float | None = Field(None, ge=0, le=1e9, description="Time for the whole request, in seconds.")
    user: str | None = Field(None, max_length=512, description="Who asks; stands in the log.")

    unserved: ClassVar[Unserved] = {
        "dimensions": ((), "vectors are as wide as the model's"),
        "truncate_prompt_tokens": ((), "texts are read whole, or refused"),
        "add_special_tokens": ((True,), "send token ids to decide about them"),
        "normalize": ((True,), "`embd_normalize` says how"),
    }
