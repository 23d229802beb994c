r"""llama-cpp-python's `Llama`, over an engine.

One `Llama` serves any number of threads at once: their calls share each forward pass.

Example:
    >>> from llama_batch.compat.llama_cpp import Llama
    >>> llm = Llama(model_path="model.gguf", n_ctx=2048)
    >>> llm("Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:", "\n"], echo=True)
"""

from llama_batch.compat.llama_cpp.formats import CHAT_FORMATS
from llama_batch.compat.llama_cpp.grammar import LlamaGrammar
from llama_batch.compat.llama_cpp.llama import Llama

__all__ = ["CHAT_FORMATS", "Llama", "LlamaGrammar"]
