"""`/openapi.json`, and what schemathesis makes of it: no request leads to an error of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from asgi_client import AsgiClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_batch import Engine
from llama_batch.server import ApiKey, KeyRing, create_app
from llama_batch.server.app import GETS, POSTS
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

if TYPE_CHECKING:
    from collections.abc import Iterator

N_EXAMPLES = 12
# A schema cannot say all that a body must be: which tokens there are, what a grammar is, which fields exclude others.
NOT_OURS = [not_a_server_error, positive_data_acceptance]


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    with Engine("sim:?eog_every=20", n_parallel=4, n_ctx=512, max_queue=0) as engine:
        yield create_app(engine, max_tokens=50)


@pytest.fixture(scope="module")
def schema(app: Any) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [
    *((path, "POST") for paths, _, _ in POSTS for path in paths[:1]),
    *((path.replace(":path}", "}"), "GET") for paths, _ in GETS for path in paths[:1]),
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_request_is_an_error_of_the_server(schema: Any, path: str, method: str) -> None:
    modes = list(schemathesis.GenerationMode)

    @given(st.one_of(*(schema[path][method].as_strategy(generation_mode=mode) for mode in modes)))
    @settings(max_examples=N_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def ask(case: Any) -> None:
        response = case.call(headers={"Host": "localhost"})
        assert response.status_code < 500 or response.status_code == 501, response.text
        case.validate_response(response, excluded_checks=NOT_OURS)

    ask()


@pytest.mark.anyio
async def test_it_describes_every_route(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, keys=KeyRing([ApiKey.of("sk-test")])))
    document = (await client.get("/openapi.json", headers={"authorization": "Bearer sk-test"})).json()
    for paths, _, model in POSTS:
        for path in paths:
            content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert content["schema"]["$ref"].endswith(f"/{model.__name__}")
    for paths, _ in GETS:
        assert all(path.replace(":path}", "}") in document["paths"] for path in paths)
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert schemas["ChatRequest"]["properties"]["top_k"]["description"]
    assert document["security"]
