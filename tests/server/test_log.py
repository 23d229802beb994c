"""The log: what was done is in it, and what was asked is not."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from asgi_client import AsgiClient
from llama_batch.server import create_app
from llama_batch.server.logs import JsonLines, TextLines, set_up

if TYPE_CHECKING:
    from llama_batch import Engine

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "llama_batch.server")
    formatters = (JsonLines(), TextLines())

    def shown() -> list[str]:
        return [
            formatter.format(record)
            for record in caplog.records
            if record.name == "llama_batch.server"
            for formatter in formatters
        ]

    return shown


async def test_the_log_tells_what_was_done_and_not_what_was_asked(engine: Engine, lines: Any) -> None:
    client = AsgiClient(create_app(engine))
    secret = "the moon landing"
    await client.post(CHAT, {"messages": [{"role": "user", "content": secret}], "max_tokens": 3, "user": "u1"})
    await client.post(TEXT, {"prompt": secret, "max_tokens": 3, "stream": True})
    await client.post(TEXT, {"prompt": secret, secret: 1})
    await client.post(TEXT, {"prompt": secret, "temperature": secret})
    await client.post(TEXT, {"prompt": secret, "grammar": secret})
    await client.post(TEXT, {"prompt": {"x": secret}})
    await client.post(TEXT, {"prompt": secret, "stop": [""]})
    await client.get(f"/health?q={secret.replace(' ', '')}", headers={"X-Request-Id": "named"})
    told = lines()
    assert len(told) == 16
    assert not [line for line in told if secret in line or secret.replace(" ", "") in line]
    records = [json.loads(line) for line in told[::2]]
    first = records[0]
    assert first["path"] == CHAT
    assert (first["status"], first["completion_tokens"], first["finish_reason"]) == (200, 3, "max_tokens")
    assert first["user"] == "u1"
    assert all(record["request_id"] for record in records)
    assert records[-1]["request_id"] == "named"
    assert [record["status"] for record in records] == [200, 200, 400, 400, 400, 400, 400, 200]


async def test_the_log_holds_prompts_where_that_is_wanted(engine: Engine, lines: Any) -> None:
    client = AsgiClient(create_app(engine, log_prompts=True))
    await client.post(TEXT, {"prompt": "the moon\nlanding", "max_tokens": 3})
    told = lines()
    assert all("the moon\\nlanding" in line for line in told)
    assert all(len(line.splitlines()) == 1 for line in told)


async def test_a_bug_of_ours_is_an_error_without_details(
    engine: Engine, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = str(["the", "moon"])

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(secret)

    monkeypatch.setattr(type(engine), "generate", broken)
    client = AsgiClient(create_app(engine))
    answer = await client.post(TEXT, {"prompt": "x"})
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert secret not in answer.text
    told = lines()
    assert any("ZeroDivisionError" in line and "Traceback" in line for line in told)
    assert not [line for line in told if secret in line]


async def test_a_client_that_left_is_logged_as_such(slow: Engine, lines: Any) -> None:
    client = AsgiClient(create_app(slow))
    await client.post(TEXT, {"prompt": "x", "max_tokens": 1000}, leave_after_s=0.05)
    await client.post(TEXT, body=[b"{", b"}"], leave_after_s=0.0)
    assert json.loads(lines()[0])["status"] == 499


@pytest.mark.parametrize(
    ("log_format", "at_terminal", "formatter"),
    [
        ("auto", True, TextLines),
        ("auto", False, JsonLines),
        ("json", True, JsonLines),
        ("text", False, TextLines),
    ],
)
@pytest.mark.usefixtures("quiet_again")
async def test_people_read_text_and_programs_json(
    monkeypatch: pytest.MonkeyPatch, log_format: Any, at_terminal: bool, formatter: type[logging.Formatter]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: at_terminal)
    set_up(log_format)
    [handler] = logging.getLogger("llama_batch").handlers
    assert isinstance(handler.formatter, formatter)


async def test_a_balancer_that_asks_while_a_server_ends_is_no_alarm(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "llama_batch.server")
    app = create_app(engine)
    app.state.service.is_draining = True
    for path, level in (("/health", logging.INFO), (TEXT, logging.WARNING)):
        caplog.clear()
        client = AsgiClient(app)
        answer = await (client.get(path) if path == "/health" else client.post(path, {"prompt": "x"}))
        assert answer.status == 503
        assert [record.levelno for record in caplog.records if record.message == "request"] == [level]
