"""What the vectors of texts are: their type, their pooling and their norm, on the simulated model."""

from __future__ import annotations

import math
import pickle
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llama_batch import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("sim:?pass_ms=0&row_ms=0", n_ctx=4096) as engine:
        yield engine


def test_vectors_are_arrays_that_numpy_takes_and_results_are_plain_values(engine: Engine) -> None:
    found = engine.embed(["a", "b", "c"]).result()
    assert isinstance(found.vectors[0], array)
    assert found.vectors[0].typecode == "f"
    assert np.array(found.vectors).shape == (3, 16)
    assert np.asarray(found.vectors[0]).dtype == np.float32
    assert pickle.loads(pickle.dumps(found)) == found
    assert engine.embed(["a", "b", "c"]).result().request_id > found.request_id


@pytest.mark.parametrize(
    ("normalize", "norm"),
    [
        ("euclidean", lambda v: math.hypot(*v)),
        (2, lambda v: math.hypot(*v)),
        (True, lambda v: math.hypot(*v)),
        ("taxicab", lambda v: sum(map(abs, v))),
        (1, lambda v: sum(map(abs, v))),
        ("max_abs", lambda v: max(map(abs, v)) / 32760),
        (0, lambda v: max(map(abs, v)) / 32760),
        (3, lambda v: sum(abs(x) ** 3 for x in v) ** (1 / 3)),
        (np.int64(2), lambda v: math.hypot(*v)),
    ],
)
def test_each_norm_becomes_1_and_the_direction_stays(engine: Engine, normalize: Any, norm: Any) -> None:
    plain = engine.embed("Once upon a time", normalize="none").result().vectors[0]
    assert engine.embed("Once upon a time", normalize=-1).result().vectors[0] == plain
    assert engine.embed("Once upon a time", normalize=False).result().vectors[0] == plain
    scaled = engine.embed("Once upon a time", normalize=normalize).result().vectors[0]
    assert norm(scaled) == pytest.approx(1, rel=1e-5)
    assert scaled.tolist() == pytest.approx([x / norm(plain) for x in plain], rel=1e-5)


def test_poolings_are_what_they_say(engine: Engine) -> None:
    tokens = [10, 20, 30]
    rows = engine.embed(tokens, pooling="none", normalize="none").result()
    assert (rows.pooling, len(rows.vectors[0]), rows.n_embd, rows.n_tokens) == ("none", 48, 16, (3,))
    matrix = np.asarray(rows.vectors[0]).reshape(-1, rows.n_embd)
    kinds = {"cls": matrix[0], "last": matrix[-1], "mean": matrix.mean(0), "auto": matrix.mean(0)}
    for pooling, expected in kinds.items():
        found = engine.embed(tokens, pooling=pooling, normalize="none").result()  # type: ignore[arg-type]
        assert found.vectors[0].tolist() == pytest.approx(expected.tolist(), rel=1e-5), pooling
    unit = np.asarray(engine.embed(tokens, pooling="none").result().vectors[0]).reshape(-1, 16)
    assert np.linalg.norm(unit, axis=1) == pytest.approx([1, 1, 1], rel=1e-5)


def test_aliases_are_other_names(engine: Engine) -> None:
    found = engine.embed("a", pooling_type="last", embd_normalize=1).result()
    assert found.vectors == engine.embed("a", pooling="last", normalize="taxicab").result().vectors
