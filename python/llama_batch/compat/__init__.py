"""The classes of other projects, over an engine: code that was written for them runs by changing its import.

`llama_batch.compat.llama_cpp` has llama-cpp-python's `Llama`, `llama_batch.compat.vllm` has vLLM's `LLM` and
`SamplingParams`. They take the originals' arguments with the originals' defaults. An argument that cannot be honoured
raises `OptionError`, which names what to use instead; `docs/compat.md` lists them all.

Example:
    >>> from llama_batch.compat.llama_cpp import Llama
    >>> Llama(model_path="model.gguf")("Q: Name the planets. A:", max_tokens=32)["choices"][0]["text"]
"""
