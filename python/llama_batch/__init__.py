"""Continuous batching for llama.cpp inside Python: many callers, one GGUF model, one process.

Example:
    >>> from llama_batch import Engine
    >>> with Engine(n_parallel=8) as engine:
    ...     print(engine.chat("Why is the sky blue?").result())
"""

from __future__ import annotations

import importlib
from typing import Any

from llama_batch import _cpu

_cpu.check()

from llama_batch import _core  # noqa: E402 - only a CPU that can run it may load it
from llama_batch._options import (  # noqa: E402
    EMBED_OPTIONS,
    REQUEST_OPTIONS,
    START_OPTIONS,
    EmbedOptions,
    RequestOptions,
    StartOptions,
)
from llama_batch.calibration import Calibration, Measured  # noqa: E402
from llama_batch.embedding import EmbeddingJob, Embeddings  # noqa: E402
from llama_batch.engine import Engine  # noqa: E402
from llama_batch.errors import (  # noqa: E402
    BackendLostError,
    ChatTemplateError,
    ContextFullError,
    EmptyPromptError,
    EngineClosedError,
    EngineCrashedError,
    EngineForkedError,
    EngineNotReadyError,
    GrammarError,
    InferenceError,
    LlamaBatchError,
    ModelLoadError,
    ModelNotFoundError,
    OptionError,
    PromptError,
    QueueFullError,
    RequestCancelledError,
    RequestTimeoutError,
    RpcError,
    RpcLostError,
    RpcUnavailableError,
    SessionError,
    SessionNotFoundError,
    TextTooLongError,
    UnsupportedError,
)
from llama_batch.generation import Generation  # noqa: E402
from llama_batch.in_process import openai, openai_sync  # noqa: E402
from llama_batch.logprobs import Logprob, TokenLogprobs  # noqa: E402
from llama_batch.mapping import Map  # noqa: E402
from llama_batch.messages import ChatDelta, ChatMessage, ToolCall, ToolCallDelta  # noqa: E402
from llama_batch.metrics import Histogram, Metrics, TierMetrics  # noqa: E402
from llama_batch.model import Model  # noqa: E402
from llama_batch.openai_chat import ChatCompletionStream, PendingChatCompletion  # noqa: E402
from llama_batch.simulation import Simulation, SimulationEvent  # noqa: E402
from llama_batch.telemetry import Event, Subscription, subscribe  # noqa: E402
from llama_batch.types import (  # noqa: E402
    Chunk,
    Completion,
    OptionSpec,
    RpcServerHealth,
    SavedSession,
    Stats,
    StrategyRow,
    StrategyView,
    Timings,
    Usage,
)

__version__: str = _core.__version__

LLAMA_CPP_BUILD: str
"""The llama.cpp inside: its version, and what its kernels use of the processor."""

__all__ = [
    "EMBED_OPTIONS",
    "LLAMA_CPP_BUILD",
    "REQUEST_OPTIONS",
    "START_OPTIONS",
    "BackendLostError",
    "Calibration",
    "ChatCompletionStream",
    "ChatDelta",
    "ChatMessage",
    "ChatTemplateError",
    "Chunk",
    "Completion",
    "ContextFullError",
    "EmbedOptions",
    "EmbeddingJob",
    "Embeddings",
    "EmptyPromptError",
    "Engine",
    "EngineClosedError",
    "EngineCrashedError",
    "EngineForkedError",
    "EngineNotReadyError",
    "Event",
    "Generation",
    "GrammarError",
    "Histogram",
    "InferenceError",
    "LlamaBatchError",
    "Logprob",
    "Map",
    "Measured",
    "Metrics",
    "Model",
    "ModelLoadError",
    "ModelNotFoundError",
    "OptionError",
    "OptionSpec",
    "PendingChatCompletion",
    "PromptError",
    "QueueFullError",
    "RequestCancelledError",
    "RequestOptions",
    "RequestTimeoutError",
    "RpcError",
    "RpcLostError",
    "RpcServerHealth",
    "RpcUnavailableError",
    "SavedSession",
    "SessionError",
    "SessionNotFoundError",
    "Simulation",
    "SimulationEvent",
    "StartOptions",
    "Stats",
    "StrategyRow",
    "StrategyView",
    "Subscription",
    "TextTooLongError",
    "TierMetrics",
    "Timings",
    "TokenLogprobs",
    "ToolCall",
    "ToolCallDelta",
    "UnsupportedError",
    "Usage",
    "openai",
    "openai_sync",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    """What an import alone should not set up: llama.cpp, for `LLAMA_CPP_BUILD`, and `rpc`."""
    if name == "LLAMA_CPP_BUILD":
        return _core.build()
    if name == "rpc":
        return importlib.import_module("llama_batch.rpc")
    raise AttributeError(f"module 'llama_batch' has no attribute {name!r}")
