"""Embeddings of real models: SmolLM2's, and those of tiny ones of every kind, an encoder among them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import tiny_models
from llama_batch import Engine, RequestCancelledError, TextTooLongError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llama_batch import Embeddings
    from numpy.typing import NDArray
    from oracle import Oracle

TEXTS = [
    "The cat sat on the mat.",
    "A kitten was sitting on a rug.",
    "The government raised the income tax.",
    "Taxes on wages went up by law.",
]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    a, b = np.asarray(one), np.asarray(other)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def matrix(found: Embeddings, index: int = 0) -> NDArray[np.float32]:
    """The vectors of a text's tokens."""
    return np.asarray(found.vectors[index]).reshape(-1, found.n_embd)


def test_vectors_have_the_models_width_and_length_1(engine: Engine) -> None:
    found = engine.embed(TEXTS).result()
    assert (found.n_embd, found.pooling) == (engine.model.n_embd, "mean")
    assert [len(vector) for vector in found.vectors] == [found.n_embd] * 4
    assert [math.hypot(*vector) for vector in found.vectors] == pytest.approx([1] * 4, abs=1e-5)
    assert found.n_tokens == tuple(len(engine.model.tokenize(text)) for text in TEXTS)


def test_pooling_and_norms_are_what_the_vectors_of_the_tokens_give_by_hand(engine: Engine) -> None:
    rows = matrix(engine.embed(TEXTS[0], pooling="none", normalize="none").result())
    assert len(rows) == len(engine.model.tokenize(TEXTS[0]))
    mean = rows.astype(np.float64).mean(0)
    expected = {
        ("mean", "none"): mean,
        ("mean", "euclidean"): mean / np.linalg.norm(mean),
        ("mean", "taxicab"): mean / np.abs(mean).sum(),
        ("mean", "max_abs"): mean / np.abs(mean).max() * 32760,
        ("last", "euclidean"): rows[-1] / np.linalg.norm(rows[-1]),
        ("cls", "none"): rows[0],
    }
    for (pooling, normalize), vector in expected.items():
        found = engine.embed(TEXTS[0], pooling=pooling, normalize=normalize).result()  # type: ignore[arg-type]
        assert np.allclose(found.vectors[0], vector, rtol=1e-3, atol=1e-5 * np.abs(vector).max()), (pooling, normalize)


def test_a_text_has_the_same_vector_alone_in_company_and_beside_streams(engine: Engine) -> None:
    long = " ".join(TEXTS) * 3
    alone = [engine.embed(text).result().vectors[0] for text in [*TEXTS, long]]
    together = engine.embed([*TEXTS, long] * 2).result().vectors
    stream = engine.generate("Once upon a time", max_tokens=40, temp=0, cache_prompt=False)
    beside = engine.embed([*TEXTS, long]).result().vectors
    assert stream.result().usage.generated_tokens > 0
    for company in (together[:5], together[5:], beside):
        assert [cosine(a, b) for a, b in zip(alone, company, strict=True)] == pytest.approx([1] * 5, abs=1e-3)


def test_what_is_alike_is_closer_than_what_is_not(engine: Engine) -> None:
    cat, kitten, government, taxes = engine.embed(TEXTS).result().vectors
    assert min(cosine(cat, kitten), cosine(government, taxes)) > max(
        cosine(one, other) for one in (cat, kitten) for other in (government, taxes)
    )


def test_texts_longer_than_a_pass_are_read_in_parts_and_longer_ones_refused(smollm2: Path) -> None:
    with Engine(smollm2, n_ctx=256, n_ubatch=64) as small, Engine(smollm2, n_ctx=256) as large:
        tokens = (large.model.tokenize(" ".join(TEXTS)) * 10)[:256]
        in_parts, at_once = (e.embed([tokens[:200], tokens[:7]]).result().vectors for e in (small, large))
        assert [cosine(a, b) for a, b in zip(in_parts, at_once, strict=True)] == pytest.approx([1, 1], abs=1e-3)
        whole = small.embed(tokens).result()
        assert whole.n_tokens == (256,)
        with pytest.raises(TextTooLongError, match=r"text 1 .*257 tokens; at most 256 .*n_ctx"):
            small.embed([tokens, [*tokens, 5]]).result()
        assert small.generate("Hello", max_tokens=2).result().text


def test_generation_beside_it_is_as_sane_as_alone(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_parallel=4, n_ctx=2048) as engine:
        prompts = [engine.model.tokenize(text) for text in ("Once upon a time", "The capital of France is")]
        answers = [engine.generate(prompt, max_tokens=24, temp=0) for prompt in prompts]
        jobs = [engine.embed([text * 2 for text in TEXTS]) for _ in range(3)]
        texts = [(prompt, answer.result().token_ids) for prompt, answer in zip(prompts, answers, strict=True)]
        assert [len(job.result().vectors) for job in jobs] == [4] * 3
    oracle.assert_greedy(texts)


def test_a_pass_over_texts_that_nobody_wants_any_more_is_given_up(engine: Engine) -> None:
    job = engine.embed([" ".join(TEXTS) * 12] * 20)
    while engine.stats().embedding_requests == 0:
        pass
    job.cancel()
    with pytest.raises(RequestCancelledError):
        job.result(timeout=60)
    assert engine.embed("Hello").result().n_embd == engine.model.n_embd


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny_models.write_all(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("kind", ["full", "sliding", "recurrent", "hybrid"])
def test_every_kind_of_memory_embeds_in_parts_as_at_once(paths: dict[str, Path], kind: str) -> None:
    tokens = [(7 * i * i + i) % 250 for i in range(900)]
    with Engine(paths[kind], n_ubatch=64, n_ctx=2048) as small, Engine(paths[kind], n_ubatch=1024, n_ctx=2048) as large:
        texts = [tokens, tokens[:5], tokens[100:160], tokens[300:700]]
        in_parts, at_once = (e.embed(texts).result().vectors for e in (small, large))
        again = small.embed(texts).result().vectors
        assert [cosine(a, b) for a, b in zip(in_parts, at_once, strict=True)] == pytest.approx([1] * 4, abs=1e-3)
        assert [cosine(a, b) for a, b in zip(in_parts, again, strict=True)] == pytest.approx([1] * 4, abs=1e-3)
        assert cosine(at_once[0], at_once[2]) < 0.99
        assert small.generate(tokens[:50], max_tokens=3).result().usage.generated_tokens == 3


@pytest.fixture(scope="module")
def bert(paths: dict[str, Path]) -> Iterator[Engine]:
    with Engine(paths["encoder"], n_ctx=512) as engine:
        yield engine


class Bert:
    """BERT's forward pass in numpy: an oracle that shares nothing with llama.cpp but the file."""

    def __init__(self, path: Path) -> None:
        self._weights = {t.name: np.asarray(t.data, np.float64) for t in gguf.GGUFReader(path).tensors}

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        w = self._weights
        x = w["token_embd.weight"][list(tokens)] + w["position_embd.weight"][: len(tokens)] + w["token_types.weight"][0]
        x = self._norm("token_embd_norm", x)
        for layer in range(tiny_models.LAYERS):
            at = f"blk.{layer}"
            q, k, v = (
                self._affine(f"{at}.attn_{part}", x).reshape(len(tokens), tiny_models.HEADS, -1).swapaxes(0, 1)
                for part in "qkv"
            )
            scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(tokens), -1)
            x = self._norm(f"{at}.attn_output_norm", self._affine(f"{at}.attn_output", mixed) + x)
            hidden = self._affine(f"{at}.ffn_up", x)
            hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            x = self._norm(f"{at}.layer_output_norm", self._affine(f"{at}.ffn_down", hidden) + x)
        return x

    def _affine(self, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def test_an_encoder_gives_what_its_weights_give_by_hand(bert: Engine, paths: dict[str, Path]) -> None:
    oracle = Bert(paths["encoder"])
    texts = ["the cat sat on the mat", "a queen", "the dog and the king of the mat, the cat!" * 4]
    tokens = [bert.model.tokenize(text) for text in texts]
    assert all((ids[0], ids[-1]) == (2, 3) for ids in tokens), "a text stands between its control tokens"
    found = bert.embed(texts, pooling="none", normalize="none").result()
    assert found.n_tokens == tuple(map(len, tokens))
    pooled = bert.embed(texts).result()
    assert pooled.pooling == "mean"
    for index, ids in enumerate(tokens):
        expected = oracle.rows(ids)
        assert np.abs(matrix(found, index) - expected).max() < 0.05
        assert cosine(pooled.vectors[index], expected.mean(0)) == pytest.approx(1, abs=1e-3)


def test_an_encoder_generates_nothing_and_says_so(bert: Engine) -> None:
    with pytest.raises(UnsupportedError, match="generates no text"):
        bert.generate("the cat").result()
    assert bert.stats().state == "ready"
    assert len(bert.embed(["the cat"] * 100).result().vectors) == 100


def test_an_encoder_reads_a_text_whole_or_says_what_it_does_not_fit_into(bert: Engine, paths: dict[str, Path]) -> None:
    assert bert.embed([5] * 256).result().n_tokens == (256,)
    with pytest.raises(TextTooLongError, match=r"257 tokens; at most 256 .*trained on"):
        bert.embed([5] * 257).result()
    with Engine(paths["encoder"], n_ubatch=100) as engine:
        assert len(engine.embed([[5] * 100, [6] * 3, [7] * 100]).result().vectors) == 3
        with pytest.raises(TextTooLongError, match=r"101 tokens; at most 100 .*n_ubatch"):
            engine.embed([5] * 101).result()


@pytest.mark.parametrize("pooling", ["CLS", "LAST", "NONE", "RANK"])
def test_auto_is_the_models_own_pooling(tmp_path: Path, pooling: str) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.encoder(path, pooling=gguf.PoolingType[pooling])
    with Engine(path) as engine:
        if pooling == "RANK":
            with pytest.raises(UnsupportedError, match="pooling"):
                engine.embed("the cat").result()
            assert engine.embed("the cat", pooling="cls").result().pooling == "cls"
            return
        found = engine.embed("the cat").result()
        own = "mean" if pooling == "NONE" else pooling.lower()
        assert found.pooling == own
        assert found.vectors == engine.embed("the cat", pooling=own).result().vectors
