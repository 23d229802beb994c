"""What the tests of RPC share: a model, and waiting for what another process does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from llama_batch import ModelNotFoundError, rpc
from llama_batch.models import resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

if not rpc.supported():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return resolve(None)
    except ModelNotFoundError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until something is so."""

    def wait(is_so: Callable[[], object], limit_s: float = 30.0) -> None:
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end
            time.sleep(0.02)

    return wait
