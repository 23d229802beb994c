"""The real model of the tests: SmolLM2, from its wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from llama_batch import Engine, ModelNotFoundError
from llama_batch.models import resolve
from oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/model/" in item.path.as_posix():
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return resolve(None)
    except ModelNotFoundError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


@pytest.fixture(scope="session")
def engine(smollm2: Path) -> Iterator[Engine]:
    """One engine for all tests that leave it as they find it."""
    with Engine(smollm2, n_parallel=16, n_ctx=8192) as engine:
        yield engine


@pytest.fixture(scope="session")
def oracle(smollm2: Path) -> Iterator[Oracle]:
    with (
        Engine(smollm2, n_parallel=1, n_ctx=512, n_threads=1, flash_attn="on") as flash,
        Engine(smollm2, n_parallel=1, n_ctx=512, n_threads=1, flash_attn="off") as plain,
    ):
        yield Oracle(flash.model, plain.model)
