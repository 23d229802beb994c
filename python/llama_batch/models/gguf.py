"""Reading the head of a GGUF file: what a model is, without loading it."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_batch.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SHOWN_ARRAY_LENGTH = 512
_LENGTH_MAX = 1 << 32
_DEPTH_MAX = 4
_DIMS_MAX = 8


@dataclass(frozen=True, slots=True)
class Array:
    """An array in a model's metadata, of which only the length is kept because it is long."""

    length: int

    def __str__(self) -> str:
        """As a reader wants to see it."""
        return f"({self.length:,} values)"


@dataclass(frozen=True, slots=True)
class Header:
    """What stands at the head of a GGUF file.

    Attributes:
        version: of the format.
        metadata: all keys and values; long arrays by their length alone.
        n_tensors: tensors in this file.
        n_params: numbers in those tensors.
    """

    version: int
    metadata: dict[str, Any]
    n_tensors: int
    n_params: int

    @property
    def architecture(self) -> str:
        """The model's architecture, as llama.cpp names it."""
        return str(self.metadata.get("general.architecture", "unknown"))

    def number(self, name: str) -> int | None:
        """A whole number of the architecture, such as `context_length`; None where there is none."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def per_layer(self, name: str) -> list[int] | None:
        """A whole number of the architecture for each layer, where it gives one for all or one for each."""
        n_layers = self.number("block_count")
        value = self.metadata.get(f"{self.architecture}.{name}")
        if n_layers is None or not 0 < n_layers < 1 << 16:
            return None
        if isinstance(value, list):
            return value if len(value) == n_layers and all(isinstance(n, int) for n in value) else None
        return [value] * n_layers if isinstance(value, int) else None


def read_header(path: Path) -> Header:
    """Read the head of a GGUF file.

    Args:
        path: The file.

    Returns:
        Its metadata and how large its tensors are.

    Raises:
        ModelLoadError: The file is no GGUF file, is cut short or is damaged.

    Example:
        >>> read_header(resolve(None)).architecture
        'llama'
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelLoadError(f"{path} is no GGUF file")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data, size).header()
        except struct.error:
            raise ModelLoadError(f"{path} is cut short or damaged: it ends within its header") from None
        except (ValueError, OverflowError) as error:
            raise ModelLoadError(f"{path} is cut short or damaged: {error}") from error


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.at = data, size, 4

    def header(self) -> Header:
        """All of it."""
        version = self.scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} of the format is not known")
        n_tensors, n_values = self.scalar("Q"), self.scalar("Q")
        metadata = {}
        for _ in range(n_values):
            key = self.text()
            metadata[key] = self.value(self.scalar("I"), 0)
        n_params, last = 0, 0
        for _ in range(n_tensors):
            self.text()
            count, n_dims = 1, self.scalar("I")
            if n_dims > _DIMS_MAX:
                raise ValueError(f"a tensor of {n_dims:,} dimensions at byte {self.at:,}")
            for _ in range(n_dims):
                count *= self.scalar("Q")
            self.scalar("I")
            n_params, last = n_params + count, max(last, self.scalar("Q"))
        if n_tensors and self.at + last >= self.size:
            raise ValueError(f"it has {self.size:,} bytes, and its last tensor begins at {self.at + last:,}")
        return Header(version, metadata, n_tensors, n_params)

    def scalar(self, code: str) -> Any:
        """A number or a truth value."""
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def length(self) -> int:
        """A length that the file can hold."""
        length = int(self.scalar("Q"))
        if length > min(_LENGTH_MAX, self.size - self.at):
            raise ValueError(f"a length of {length:,} at byte {self.at:,} runs past its end")
        return length

    def text(self) -> str:
        """A string."""
        length = self.length()
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int, depth: int) -> Any:
        """A value of any kind."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > _DEPTH_MAX:
            raise ValueError(f"a value of unknown kind {kind} at byte {self.at:,}")
        inner, length = self.scalar("I"), self.length()
        if length <= _SHOWN_ARRAY_LENGTH:
            return [self.value(inner, depth + 1) for _ in range(length)]
        if inner in _SCALARS:
            self.at += length * struct.calcsize("<" + _SCALARS[inner])
        else:
            for _ in range(length):
                self.value(inner, depth + 1)
        return Array(length)
