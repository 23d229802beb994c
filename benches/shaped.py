"""Models of other sizes with random weights: as fast and as large as real ones, in seconds and without a download.

What they say means nothing, and nothing measured here asks for it. The vocabulary, and the chat template with it, is
that of a real model. A file is made once for each shape and kept; wherever a benchmark takes a model, it may be named:

    python benches/versus.py distinct --model shaped:1B
    python benches/shaped.py 1B                      # makes it and prints its path
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from llama_batch.models import resolve
from peer import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "shaped:"
BLOCK, BLOCK_BYTES = 32, 18
"""Q4_0: 32 weights of 4 bits behind a scale of 16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama.

    Attributes:
        n_embd: width of the residual stream.
        n_layer: layers.
        n_head: heads of attention.
        n_head_kv: heads of keys and values.
        n_ff: width of the feed-forward network.
        n_rot: width of a head.
    """

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_rot: int


SHAPES = {
    "0.5B": Shape(896, 24, 14, 2, 4864, 64),  # Qwen2.5-0.5B's
    "1B": Shape(2048, 16, 32, 8, 8192, 64),  # Llama-3.2-1B's
    "8B": Shape(4096, 32, 32, 8, 14336, 128),  # Llama-3.1-8B's
}


def model_of(name: str | None) -> Path:
    """The file of a model: by path or URI, as everywhere, or by its shape.

    Args:
        name: `shaped:1B` and the like, or what `llama_batch.models.resolve` takes.

    Returns:
        The file.
    """
    if name is None or not name.startswith(SCHEME):
        return resolve(name)
    shape = SHAPES.get(name.removeprefix(SCHEME))
    if shape is None:
        raise SystemExit(f"{name}: there are {', '.join(SCHEME + known for known in SHAPES)}")
    return make(name.removeprefix(SCHEME), shape)


def source_of(name: str | None) -> str:
    """What an engine is given: a file as `model_of` finds it, or `sim:` and what follows as it is.

    Args:
        name: as of `model_of`, or `sim:` and settings.

    Returns:
        A path, or `sim:` and settings.
    """
    return name if name is not None and name.startswith("sim:") else str(model_of(name))


def make(name: str, shape: Shape, vocabulary: Path | None = None, folder: Path = CACHE) -> Path:
    """Make a model, or find it made.

    Args:
        name: a part of the file's name.
        shape: its sizes.
        vocabulary: the GGUF file whose tokens it has; None takes the default model's.
        folder: where it is kept.

    Returns:
        The file.
    """
    vocabulary = vocabulary or resolve(None)
    key = hashlib.sha256(f"{astuple(shape)} {vocabulary.name} {vocabulary.stat().st_size}".encode()).hexdigest()[:12]
    path = folder / f"shaped-{name}-{key}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Under its own name only once it is whole.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, "model.gguf")
            _write(made, name, shape, vocabulary)
            os.replace(made, path)  # noqa: PTH105 - the one that replaces on every system
    return path


def _write(path: Path, name: str, shape: Shape, vocabulary: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    n_vocab = _copy_vocabulary(writer, vocabulary)
    writer.add_name(f"random {name}")
    writer.add_context_length(32768)
    writer.add_vocab_size(n_vocab)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.n_rot)
    writer.add_value_length(shape.n_rot)
    writer.add_rope_dimension_count(shape.n_rot)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    tensors = list(_tensors(shape, n_vocab))
    for title, size in tensors:
        if len(size) == 1:
            writer.add_tensor_info(title, size, np.dtype(np.float32), 4 * size[0])
        else:
            row = size[1] // BLOCK * BLOCK_BYTES
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor_info(title, (size[0], row), np.dtype(np.uint8), size[0] * row, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    drawn = np.random.default_rng(0)
    for title, size in tensors:  # one at a time: an 8B has 4.5 GB of them
        weights = np.ones(size, np.float32) if len(size) == 1 else _weights(drawn, title, size)
        writer.write_tensor_data(weights)
    writer.close()


def _tensors(shape: Shape, n_vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes, outputs first, as the file has them."""
    wide, narrow = shape.n_head * shape.n_rot, shape.n_head_kv * shape.n_rot
    yield "token_embd.weight", (n_vocab, shape.n_embd)
    yield "output_norm.weight", (shape.n_embd,)
    yield "output.weight", (n_vocab, shape.n_embd)
    for layer in range(shape.n_layer):
        sizes: dict[str, tuple[int, ...]] = {
            "attn_norm": (shape.n_embd,),
            "ffn_norm": (shape.n_embd,),
            "attn_q": (wide, shape.n_embd),
            "attn_k": (narrow, shape.n_embd),
            "attn_v": (narrow, shape.n_embd),
            "attn_output": (shape.n_embd, wide),
            "ffn_gate": (shape.n_ff, shape.n_embd),
            "ffn_up": (shape.n_ff, shape.n_embd),
            "ffn_down": (shape.n_embd, shape.n_ff),
        }
        yield from ((f"blk.{layer}.{title}.weight", size) for title, size in sizes.items())


def _weights(drawn: np.random.Generator, title: str, size: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random weights in Q4_0, of a scale that keeps activations finite however many layers there are."""
    n_blocks = size[1] // BLOCK
    # Small queries and keys: attention that looks everywhere, so that no logit overflows.
    gentle = 0.05 if "attn_q" in title or "attn_k" in title else 1.0
    blocks = drawn.integers(0, 256, (size[0], n_blocks, BLOCK_BYTES), dtype=np.uint8)
    scale = np.full((size[0], n_blocks), 0.005 * gentle / np.sqrt(size[1] / 2048), dtype=np.float16)
    blocks[:, :, :2] = scale.view(np.uint8).reshape(size[0], n_blocks, 2)
    return blocks.reshape(size[0], n_blocks * BLOCK_BYTES)


def _copy_vocabulary(writer: Any, path: Path) -> int:
    """Copy a model's vocabulary; how many tokens it has."""
    n_vocab = 0
    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)
        if name == "tokenizer.ggml.tokens":
            n_vocab = len(value)
    return n_vocab


def main() -> None:
    """Make a model and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES))
    print(model_of(SCHEME + parser.parse_args().shape))


if __name__ == "__main__":
    main()
