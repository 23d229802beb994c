"""The bodies of requests: every field that is honoured, with its type, and every one that is known and is not."""

from llama_batch.server.requests.base import Body, engine_options, read
from llama_batch.server.requests.chat import ChatRequest
from llama_batch.server.requests.completion import CompletionRequest
from llama_batch.server.requests.native import NativeRequest
from llama_batch.server.requests.other import (
    ApplyTemplateRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)

__all__ = [
    "ApplyTemplateRequest",
    "Body",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "NativeRequest",
    "TokenizeRequest",
    "engine_options",
    "read",
]
