"""Writing small GGUF files, right and wrong."""

from __future__ import annotations

import struct
from typing import Any


def text(value: str) -> bytes:
    """A string as the format has it."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    items = [typed(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def make_gguf(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]], *, version: int = 3) -> bytes:
    """A GGUF file whose tensors are f32 zeros."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    offset = 0
    for name, shape in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, offset)
        n_params = 1
        for length in shape:
            n_params *= length
        offset += n_params * 4
    return head + bytes(-len(head) % 32) + bytes(offset)


LLAMA = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 256,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": [f"t{n}" for n in range(1000)],
    "tokenizer.chat_template": "{{ messages }}",
}
"""The metadata of a small model."""
