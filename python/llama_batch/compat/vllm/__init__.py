"""vLLM's `LLM` and `SamplingParams`, over an engine.

Example:
    >>> from llama_batch.compat.vllm import LLM, SamplingParams
    >>> llm = LLM(model="model.gguf")
    >>> outputs = llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8, top_p=0.95))
    >>> outputs[0].outputs[0].text
"""

from llama_batch.compat.vllm.llm import LLM
from llama_batch.compat.vllm.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput
from llama_batch.compat.vllm.params import GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from llama_batch.compat.vllm.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "GuidedDecodingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]
