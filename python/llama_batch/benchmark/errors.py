"""What keeps a measurement from taking place. What goes wrong in one request is a figure, not an error."""

from __future__ import annotations

from typing import ClassVar

from llama_batch.errors import LlamaBatchError

__all__ = ["BenchmarkError"]


class BenchmarkError(LlamaBatchError):
    """The server cannot be asked, a file is not what it should be, or nothing is left to measure."""

    code: ClassVar[str] = "benchmark"
