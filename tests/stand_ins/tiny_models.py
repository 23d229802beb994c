"""Models that llama.cpp computes in a fraction of a millisecond: one for each kind of memory, and an encoder.

The weights are random, and drawn so that the text depends on all that came before it: attention looks at a few of many
tokens and the states of recurrent layers fade over hundreds. So a prefix that is wrong, missing or at another place
shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

N_CTX = 4096
WIDTH = 64
HEADS, KV_HEADS, HEAD_WIDTH = 4, 2, 16
FFN_WIDTH = 128
LAYERS = 4
STATE, CONV, RANK, INNER = 16, 4, 4, 2 * WIDTH
MERGED = (
    (
        "_t he in er _a on re at _the st en _o or ing _w nd _s ed _b ou is it es ar as an _of "
        "al le _and _to ve om _in _f ic _h ll ro ch _p il _m ion _d _c ent el _l _n"
    )
    .replace("_", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")
    .split()
)
"""As vocabularies of this kind write them, a space being a dotted G."""


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in vocabularies of GPT-2's kind: printable bytes stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _merges(letters: list[str]) -> list[tuple[str, str]]:
    """Pairs that give `MERGED`, shortest first; what a pair is made of has been merged before it."""
    known = set(letters)
    pairs = []
    for word in MERGED:
        cut = next(i for i in range(1, len(word)) if word[:i] in known and word[i:] in known)
        pairs.append((word[:cut], word[cut:]))
        known.add(word)
    return pairs


class _Maker:
    """Writes one model: its vocabulary and sizes, then tensors as they are asked for."""

    def __init__(self, path: Path, architecture: str, seed: int, n_ctx: int = N_CTX) -> None:
        self._random = np.random.default_rng(seed)
        self.out = gguf.GGUFWriter(path, architecture)
        self.out.add_name(f"Tiny {architecture}")
        self.out.add_context_length(n_ctx)
        self.out.add_embedding_length(WIDTH)
        self.out.add_block_count(LAYERS)
        self.out.add_layer_norm_rms_eps(1e-5)
        self.out.add_file_type(gguf.LlamaFileType.ALL_F32)
        self._vocabulary()

    def _vocabulary(self) -> None:
        letters = _byte_letters()
        merges = _merges(letters)
        tokens = [*letters, *(left + right for left, right in merges), "<|begin|>", "<|end|>"]
        kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 2) + [gguf.TokenType.CONTROL] * 2
        self.n_vocab = len(tokens)
        self.out.add_vocab_size(self.n_vocab)
        self.out.add_tokenizer_model("gpt2")
        self.out.add_tokenizer_pre("gpt-2")
        self.out.add_token_list(tokens)
        self.out.add_token_types(kinds)
        self.out.add_token_merges([f"{left} {right}" for left, right in merges])
        self.out.add_bos_token_id(self.n_vocab - 2)
        self.out.add_eos_token_id(self.n_vocab - 1)
        self.out.add_add_bos_token(True)

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        self.out.add_tensor(name, values.astype(np.float32))

    def spread(self, name: str, *shape: int, low: float, high: float) -> None:
        self.add(name, self._random.uniform(low, high, shape))

    def same(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.add(name, np.full(shape, value))

    def linear(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        """A matrix that makes inputs of size 1 outputs of size `gain`."""
        self.add(name, self._random.standard_normal((n_out, n_in)) * gain / n_in**0.5)

    def ends(self, *, embedding_scale: float = 1.0) -> None:
        """Embeddings, and outputs of their own: what tokens are said to be is not what they are read as."""
        self.add("token_embd.weight", self._random.standard_normal((self.n_vocab, WIDTH)) * embedding_scale)
        output = self._random.standard_normal((self.n_vocab, WIDTH)) * 0.5
        output[-2:] = 0  # never the likeliest: no text ends by chance
        self.add("output.weight", output)
        self.same("output_norm.weight", WIDTH)

    def attention(self, layer: int, *, sharpness: float, gain: float) -> None:
        """Scores as wide as `sharpness` look at a few tokens of hundreds, and not at their mean."""
        at = f"blk.{layer}"
        self.linear(f"{at}.attn_q.weight", HEADS * HEAD_WIDTH, WIDTH, sharpness)
        self.linear(f"{at}.attn_k.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        self.linear(f"{at}.attn_v.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        self.linear(f"{at}.attn_output.weight", WIDTH, HEADS * HEAD_WIDTH, gain)

    def ffn(self, layer: int) -> None:
        at = f"blk.{layer}"
        self.same(f"{at}.ffn_norm.weight", WIDTH)
        self.linear(f"{at}.ffn_gate.weight", FFN_WIDTH, WIDTH)
        self.linear(f"{at}.ffn_up.weight", FFN_WIDTH, WIDTH)
        self.linear(f"{at}.ffn_down.weight", WIDTH, FFN_WIDTH)

    def ssm(self, layer: int, gain: float) -> None:
        """A Mamba layer, some of whose states fade within a few tokens and some over a thousand."""
        at = f"blk.{layer}"
        self.linear(f"{at}.ssm_in.weight", 2 * INNER, WIDTH, 1.5)
        self.linear(f"{at}.ssm_conv1d.weight", INNER, CONV, 1.5)
        self.same(f"{at}.ssm_conv1d.bias", INNER, value=0)
        self.linear(f"{at}.ssm_x.weight", RANK + 2 * STATE, INNER, 2)
        self.linear(f"{at}.ssm_dt.weight", INNER, RANK, 0.5)
        self.spread(f"{at}.ssm_dt.bias", INNER, low=-5, high=-1)
        self.spread(f"{at}.ssm_a", INNER, STATE, low=-1, high=-0.05)
        self.same(f"{at}.ssm_d", INNER, value=0.2)
        self.linear(f"{at}.ssm_out.weight", WIDTH, INNER, gain)

    def ssm_sizes(self) -> None:
        self.out.add_ssm_conv_kernel(CONV)
        self.out.add_ssm_inner_size(INNER)
        self.out.add_ssm_state_size(STATE)
        self.out.add_ssm_time_step_rank(RANK)

    def attention_sizes(self, kv_heads: int | list[int] = KV_HEADS) -> None:
        self.out.add_feed_forward_length(FFN_WIDTH)
        self.out.add_head_count(HEADS)
        self.out.add_head_count_kv(kv_heads)
        self.out.add_key_length(HEAD_WIDTH)
        self.out.add_value_length(HEAD_WIDTH)

    def close(self) -> None:
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def full(path: Path, *, original_context: int = 0) -> None:
    """Full attention: Llama's architecture, `llama_kv_cache`.

    Args:
        path: the file.
        original_context: a context beyond which positions are turned by other factors (LongRoPE); 0 has none.
    """
    model = _Maker(path, "llama", 1)
    model.attention_sizes()
    model.out.add_rope_dimension_count(HEAD_WIDTH)
    if original_context:
        model.out.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        model.out.add_rope_scaling_orig_ctx_len(original_context)
        model.add("rope_factors_long.weight", np.linspace(1, 16, HEAD_WIDTH // 2))
        model.add("rope_factors_short.weight", np.ones(HEAD_WIDTH // 2))
    model.ends()
    for layer in range(LAYERS):
        model.same(f"blk.{layer}.attn_norm.weight", WIDTH)
        model.attention(layer, sharpness=2, gain=1.5)
        model.ffn(layer)
    model.close()


def sliding(path: Path, window: int = 64) -> None:
    """Windowed layers (0 and 2) and full ones (1 and 3): Gemma 3's architecture, `llama_kv_cache_iswa`."""
    model = _Maker(path, "gemma3", 2)
    model.attention_sizes()
    model.out.add_sliding_window(window)
    model.out.add_sliding_window_pattern(2)
    model.ends(embedding_scale=WIDTH**-0.5)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            model.same(f"{at}.{norm}.weight", WIDTH)
        model.same(f"{at}.attn_q_norm.weight", HEAD_WIDTH, value=2)
        model.same(f"{at}.attn_k_norm.weight", HEAD_WIDTH)
        model.attention(layer, sharpness=1, gain=1)
        model.ffn(layer)
    model.close()


def recurrent(path: Path) -> None:
    """States only: Mamba's architecture, `llama_memory_recurrent`."""
    model = _Maker(path, "mamba", 3)
    model.ssm_sizes()
    model.out.add_feed_forward_length(0)
    model.out.add_head_count(0)
    model.ends()
    for layer in range(LAYERS):
        model.same(f"blk.{layer}.attn_norm.weight", WIDTH)
        model.ssm(layer, 2)
    model.close()


def hybrid(path: Path) -> None:
    """Mamba layers (0 and 2) and full attention (1 and 3): Jamba's architecture, `llama_memory_hybrid`."""
    model = _Maker(path, "jamba", 4)
    model.ssm_sizes()
    model.attention_sizes([0, KV_HEADS] * (LAYERS // 2))
    model.ends()
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        model.same(f"{at}.attn_norm.weight", WIDTH)
        if layer % 2 == 0:
            model.ssm(layer, 1.5)
            for norm, width in (("dt", RANK), ("b", STATE), ("c", STATE)):
                model.same(f"{at}.ssm_{norm}_norm.weight", width)
        else:
            model.attention(layer, sharpness=2.5, gain=5)
        model.ffn(layer)
    model.close()


class _EncoderMaker(_Maker):
    """With the vocabulary of BERT: words begin with a bar, and a text stands between two control tokens."""

    def _vocabulary(self) -> None:
        letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
        words = [word.replace("_", "") for word in "_the _of _and _cat _dog _sat _on _mat _king _queen".split()]
        control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        tokens = [*control, *letters, *(f"\N{LOWER ONE EIGHTH BLOCK}{token}" for token in [*letters, *words])]
        kinds = [gguf.TokenType.CONTROL] * len(control) + [gguf.TokenType.NORMAL] * (len(tokens) - len(control))
        self.n_vocab = len(tokens)
        self.out.add_vocab_size(self.n_vocab)
        self.out.add_tokenizer_model("bert")
        self.out.add_tokenizer_pre("default")
        self.out.add_token_list(tokens)
        self.out.add_token_types(kinds)
        self.out.add_token_type_count(2)
        self.out.add_pad_token_id(0)
        self.out.add_unk_token_id(1)
        self.out.add_bos_token_id(2)
        self.out.add_sep_token_id(3)

    def norm(self, name: str) -> None:
        self.spread(f"{name}.weight", WIDTH, low=0.5, high=1.5)
        self.spread(f"{name}.bias", WIDTH, low=-0.2, high=0.2)

    def affine(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        self.linear(f"{name}.weight", n_out, n_in, gain)
        self.spread(f"{name}.bias", n_out, low=-0.2, high=0.2)


def encoder(path: Path, *, pooling: gguf.PoolingType = gguf.PoolingType.MEAN, n_ctx: int = 256) -> None:
    """Each token sees all, and no memory: BERT's architecture, which generates nothing.

    Args:
        path: the file.
        pooling: the model's own.
        n_ctx: positions that it has embeddings for.
    """
    model = _EncoderMaker(path, "bert", 5, n_ctx)
    model.out.add_feed_forward_length(FFN_WIDTH)
    model.out.add_head_count(HEADS)
    model.out.add_layer_norm_eps(1e-5)
    model.out.add_causal_attention(False)
    model.out.add_pooling_type(pooling)
    for name, n_rows, size in (
        ("token_embd", model.n_vocab, 1.0),
        ("token_types", 2, 0.2),
        ("position_embd", n_ctx, 0.5),
    ):
        model.spread(f"{name}.weight", n_rows, WIDTH, low=-size, high=size)
    model.norm("token_embd_norm")
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            model.affine(f"{at}.{part}", WIDTH, WIDTH)
        model.norm(f"{at}.attn_output_norm")
        model.affine(f"{at}.ffn_up", FFN_WIDTH, WIDTH)
        model.affine(f"{at}.ffn_down", WIDTH, FFN_WIDTH)
        model.norm(f"{at}.layer_output_norm")
    model.close()


WRITERS: dict[str, Callable[[Path], None]] = {
    "full": full,
    "sliding": sliding,
    "recurrent": recurrent,
    "hybrid": hybrid,
    "encoder": encoder,
}


def write_all(folder: Path) -> dict[str, Path]:
    """Write every model into a folder, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{kind}.gguf" for kind in WRITERS}
    for kind, path in paths.items():
        WRITERS[kind](path)
    return paths


if __name__ == "__main__":
    for written in write_all(Path(sys.argv[1])).values():
        sys.stdout.write(f"{written} {written.stat().st_size}\n")
