"""`llama-batch run --input` with OpenAI's batch files: requests of its API in, its answers out, resumable."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_batch import Engine
from llama_batch.cli.app import run
from llama_batch.cli.job_batch import BatchAnswers, BatchLine, parse_batch_line
from llama_batch.errors import EngineCrashedError

if TYPE_CHECKING:
    from pathlib import Path

    from llama_batch.cli.job_files import Answered

CHAT = "/v1/chat/completions"


def line(name: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A request; a chat has a message, where none is given."""
    if url == CHAT:
        body.setdefault("messages", [{"role": "user", "content": f"Hello {name}"}])
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", "max_tokens": 5, **body}}


class Job:
    """A job's files."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "batch.jsonl", folder / "answers.jsonl"

    def put(self, *lines: Any) -> None:
        self.input.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), "utf-8")

    def run(self, *words: str) -> int:
        return run(
            ["run", "--model", "sim:?eog_every=0", "--input", str(self.input), "--output", str(self.output), *words]
        )

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text("utf-8").splitlines()]

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {answer["custom_id"]: answer for answer in self.answers()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_answers_have_openais_shape(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    job.put(line("a"), line("b", "/v1/completions", prompt="Once"), "", line("c", n=2))
    assert job.run() == 0
    answers = job.by_name()
    assert set(answers) == {"a", "b", "c"}
    for answer in answers.values():
        assert list(answer) == ["id", "custom_id", "response", "error"]
        assert answer["id"].startswith("batch_req_")
        assert answer["error"] is None
        assert list(answer["response"]) == ["status_code", "request_id", "body"]
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["request_id"]
    assert len({answer["id"] for answer in answers.values()}) == 3
    chat = ChatCompletion.model_validate(answers["a"]["response"]["body"])
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 5
    assert Completion.model_validate(answers["b"]["response"]["body"]).choices[0].finish_reason == "length"
    assert len(answers["c"]["response"]["body"]["choices"]) == 2
    assert capsys.readouterr().err.startswith("llama-batch: 3 answered; 20 tokens in ")


def test_an_answer_is_that_of_the_server(job: Job) -> None:
    job.put(line("a", temperature=0, seed=3, logprobs=True, top_logprobs=2))
    assert job.run() == 0
    told = job.answers()[0]["response"]["body"]["choices"][0]
    with Engine("sim:?eog_every=0") as engine:
        made = engine.chat_completion("Hello a", temperature=0, seed=3, logprobs=2, max_tokens=5).result()
    assert told == made["choices"][0]


def test_a_finished_job_is_not_done_again_and_new_lines_are(job: Job) -> None:
    job.put(line("a"), line("b"))
    assert job.run() == 0
    before = job.output.read_bytes()
    assert job.run() == 0
    assert job.output.read_bytes() == before
    job.put(line("b"), line("a", temperature=0), line("c"))
    assert job.run() == 0
    assert job.output.read_bytes().startswith(before)
    assert [answer["custom_id"] for answer in job.answers()[2:]] == ["a", "c"]


@pytest.mark.parametrize("n_bytes", [1, 10, 200])
def test_a_torn_last_line_is_cut_off_and_answered_again(job: Job, n_bytes: int) -> None:
    job.put(line("a"), line("b"))
    job.run()
    job.output.write_bytes(job.output.read_bytes()[:-n_bytes])
    assert job.run() == 0
    assert sorted(answer["custom_id"] for answer in job.answers()) == ["a", "b"]


def test_a_job_without_some_of_its_answers_gets_those_only(job: Job) -> None:
    job.put(*(line(str(n)) for n in range(12)))
    assert job.run() == 0
    kept = job.output.read_bytes().splitlines(keepends=True)[:5]
    job.output.write_bytes(b"not ours\n" + b'{"id": "x", "custom_id": "7", "response": {}}\n' + b"".join(kept))
    assert job.run() == 0
    lines = job.output.read_bytes().splitlines(keepends=True)
    assert lines[2:7] == kept
    assert sorted(json.loads(each)["custom_id"] for each in lines[2:]) == sorted(str(n) for n in range(12))


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_an_interrupted_job_goes_on_and_loses_nothing(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    answer, asked = BatchAnswers.answer, itertools.count()

    async def interrupted(self: BatchAnswers, line: BatchLine) -> Answered:
        if next(asked) == stop:
            signal.raise_signal(signal.SIGINT)
        return await answer(self, line)

    job.put(*(line(str(n)) for n in range(20)))
    with monkeypatch.context() as patch:
        patch.setattr(BatchAnswers, "answer", interrupted)
        assert job.run("--n-parallel", "2") == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    kept = job.output.read_bytes()
    assert len(kept.splitlines()) < 20
    assert job.run() == 0
    assert job.output.read_bytes().startswith(kept)
    assert sorted(int(answer["custom_id"]) for answer in job.answers()) == list(range(20))


def test_requests_that_the_server_refuses_have_its_answer_and_are_tried_again(job: Job) -> None:
    job.put(line("a", tempratur=1), line("b"), line("c", "/v1/completions", prompt="x " * 9000))
    assert job.run() == 1
    answers = job.by_name()
    assert answers["a"]["error"] is None
    assert answers["a"]["response"]["status_code"] == 400
    assert "did you mean 'temperature'" in answers["a"]["response"]["body"]["error"]["message"]
    assert answers["c"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert answers["b"]["response"]["status_code"] == 200
    assert job.run() == 1
    assert len(job.answers()) == 3  # what failed in the same way says so already


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "not a JSON object"),
        ({"custom_id": 3, "body": {}}, "custom_id must be text"),
        ({"custom_id": "", "body": {}}, "custom_id must be text"),
        ({"body": {}}, "custom_id must be text"),
        ({"custom_id": "x"}, 'method must be "POST"'),
        ({**line("x"), "method": "GET"}, 'method must be "POST"'),
        ({**line("x"), "url": "/v1/responses"}, "url must be one of"),
        ({**line("x"), "url": ["/v1/completions"]}, "url must be one of"),
        ({**line("x"), "body": []}, "body must be an object"),
        ({**line("x"), "prompt": "x"}, "unknown member 'prompt'"),
        (line("x", stream=True), "stream: the answers of a batch come whole"),
        (line("a"), "custom_id 'a' is that of line 1 too"),
    ],
)
def test_a_wrong_line_is_reported_and_the_rest_answered(job: Job, bad: Any, message: str) -> None:
    job.put(line("a"), bad, line("b"))
    assert job.run() == 1
    wrong = [answer for answer in job.answers() if answer["error"] is not None]
    assert len(wrong) == 1
    assert wrong[0]["response"] is None
    assert wrong[0]["error"]["code"] == "invalid_line"
    assert message in wrong[0]["error"]["message"]
    good = [answer["custom_id"] for answer in job.answers() if answer["error"] is None]
    assert sorted(good) == ["a", "b"]
    assert job.run() == 1
    assert len(job.answers()) == 3


@pytest.mark.parametrize("turned", [False, True])
def test_a_file_of_both_formats_is_refused_with_the_line(
    job: Job, capsys: pytest.CaptureFixture[str], turned: bool
) -> None:
    lines: list[Any] = [line("a"), "", {"prompt": "b"}]
    job.put(*(reversed(lines) if turned else lines))
    assert job.run() == 2
    err = capsys.readouterr().err
    assert "line 3 is" in err
    assert "line 1 is" in err
    assert not job.output.exists()


def test_flags_are_for_bodies_that_do_not_say(job: Job) -> None:
    job.put(
        {**line("a"), "body": {"messages": [{"role": "user", "content": "x"}]}},
        {**line("b"), "body": {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 2}},
        {**line("c", "/v1/completions"), "body": {"prompt": "x", "n_predict": 1}},
        {**line("d", "/v1/embeddings"), "body": {"input": "x"}},
    )
    assert job.run("--max-tokens", "3", "--logprobs", "1") in {0, 1}
    answers = job.by_name()
    counts = {name: answers[name]["response"]["body"]["usage"]["completion_tokens"] for name in "abc"}
    assert counts == {"a": 3, "b": 2, "c": 1}
    first = answers["a"]["response"]["body"]["choices"][0]["logprobs"]["content"][0]
    assert len(first["top_logprobs"]) == 1
    assert answers["d"]["response"]["status_code"] in {200, 400, 501}  # as the engine and its model can


def test_raw_is_not_for_batch_files(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.put(line("a"))
    assert job.run("--raw") == 2
    assert "--raw: the url of each line" in capsys.readouterr().err


def test_without_the_extra_the_message_says_what_to_install(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put(line("a"))
    monkeypatch.delitem(sys.modules, "llama_batch.server.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert job.run() == 2
    assert "pip install 'llama-batch[server]'" in capsys.readouterr().err


def test_a_crashed_engine_ends_the_job_instead_of_failing_every_line(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise EngineCrashedError("the engine crashed")

    monkeypatch.setattr(Engine, "chat", crash)
    job.put(*(line(str(n)) for n in range(5)))
    assert job.run() == 1
    assert "the engine crashed" in capsys.readouterr().err
    assert job.answers() == []


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_MEMBERS = st.fixed_dictionaries(
    {}, optional={"custom_id": _JSON, "method": _JSON | st.just("POST"), "url": _JSON | st.just(CHAT), "body": _JSON}
)


@given(_JSON | _MEMBERS)
def test_any_line_is_read_or_named_wrong(content: Any) -> None:
    made = parse_batch_line(0, json.dumps(content).encode(), {})
    assert (made.error is None) == (made.body is not None)
    assert json.loads(json.dumps(made.record({"error": None})))["custom_id"] == made.custom_id


def test_a_schema_of_the_command_line_holds_for_all_bodies(job: Job) -> None:
    schema = {"enum": [7]}
    own = {"type": "json_schema", "json_schema": {"name": "own", "schema": {"enum": ["own"]}}}
    job.put(
        line("chat"), line("text", "/v1/completions", prompt="Once"), line("own", response_format=own, max_tokens=20)
    )
    assert job.run("--json-schema", json.dumps(schema)) == 0
    bodies = {name: answer["response"]["body"] for name, answer in job.by_name().items()}
    assert bodies["chat"]["choices"][0]["message"]["content"] == "7"
    assert bodies["text"]["choices"][0]["text"] == "7"
    assert bodies["own"]["choices"][0]["message"]["content"] == '"own"'


@pytest.mark.parametrize("schema", ["{", "7", "[" * 100_000])
def test_a_schema_that_is_none_ends_the_command(job: Job, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    job.put(line("a"))
    assert job.run("--json-schema", schema) == 2
    assert "json_schema" in capsys.readouterr().err
    assert not job.output.exists() or not job.answers()
