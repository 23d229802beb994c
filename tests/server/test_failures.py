"""Errors as HTTP says them."""

from __future__ import annotations

import pytest
from llama_batch import BackendLostError, RpcLostError
from llama_batch.server.failures import as_http


@pytest.mark.parametrize("error", [BackendLostError("it died"), RpcLostError("it died", reason="lost", endpoint="a:1")])
def test_a_lost_backend_is_worth_another_try_with_or_without_servers(error: BackendLostError) -> None:
    answer = as_http(error)
    assert (answer.status, answer.headers) == (503, {"retry-after": "1"})
    assert "model could not be loaded" not in str(answer.body())
