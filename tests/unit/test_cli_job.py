"""`llama-batch run --input`: whatever happens to a job, the next run goes on, and each line has one good answer."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import FakeEngine
from llama_batch.cli.app import run
from llama_batch.errors import ChatTemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Job:
    """A job's files and the engine that answers it."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "prompts.jsonl", folder / "answers.jsonl"
        self.engine = FakeEngine()
        self.n_opened = 0

    def put(self, *lines: Any) -> None:
        """Write the input; text as it is, everything else as JSON."""
        self.input.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), "utf-8")

    def run(self, *words: str) -> int:
        """Run the job."""
        return run(["run", "--input", str(self.input), "--output", str(self.output), *words])

    def answers(self) -> list[dict[str, Any]]:
        """The output's lines."""
        return [json.loads(line) for line in self.output.read_text("utf-8").splitlines()]

    @contextlib.contextmanager
    def opened(self, model: str | None, options: dict[str, Any]) -> Iterator[FakeEngine]:
        """In place of the function that opens engines."""
        del model, options
        self.n_opened += 1
        yield self.engine


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(tmp_path)
    monkeypatch.setattr("llama_batch.cli.run.opened", made.opened)
    return made


def test_each_line_is_answered(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.put({"id": "x", "prompt": "a", "max_tokens": 5, "temperature": 0}, "", {"messages": [{"role": "user"}]})
    assert job.run("--temp", "0.5") == 0
    first, second = sorted(job.answers(), key=lambda answer: answer["index"])
    assert first["id"] == "x"
    assert first["text"] == "answer to a"
    assert first["finish_reason"] == "eog"
    assert first["usage"] == {
        "prompt_tokens": 3,
        "generated_tokens": 3,
        "prefix_cache_tokens": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
    }
    assert second["index"] == 2
    assert "id" not in second
    assert ("chat", [{"role": "user"}], {"temp": 0.5}) in job.engine.calls
    assert capsys.readouterr().err.startswith("llama-batch: 2 answered; ")


def test_options_of_a_line_win_over_flags_by_whatever_name(job: Job) -> None:
    job.put({"prompt": "a", "temperature": 0})
    assert job.run("--temp", "0.5", "--max-tokens", "3") == 0
    assert job.engine.calls == [("chat", "a", {"temp": 0, "max_tokens": 3})]


def test_token_ids_bypass_the_template(job: Job) -> None:
    job.put({"prompt": [1, 2, 3]})
    assert job.run() == 0
    assert job.engine.calls[0][0] == "generate"


def test_a_finished_job_is_not_done_again(job: Job) -> None:
    job.put({"prompt": "a"}, {"prompt": "b"})
    assert job.run() == 0
    before = job.output.read_bytes()
    assert job.run() == 0
    assert job.output.read_bytes() == before
    assert job.n_opened == 1


def test_the_closing_line_says_what_failed_most_and_where_to_look(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put({"prompt": "a"}, {"prompt": ""}, {"prompt": "slow"}, {"prompt": ""}, {"prompt": "b"})
    assert job.run() == 1
    err = capsys.readouterr().err
    assert err.startswith("llama-batch: 2 answered, 3 failed (most often empty_prompt: the prompt is empty); ")
    assert err.endswith('; see the "error" lines of answers.jsonl\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "' + b"a" * 99 + b" " * 99 + b"[")))
    assert run(["run", "--input", "-"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("llama-batch: 0 answered, 1 failed (invalid_line: not JSON: ")
    assert err.endswith('; see the "error" lines of the output\n')
    assert len(err) < 200


def test_an_empty_prompt_is_an_error_though_a_template_would_hide_it(job: Job) -> None:
    job.put({"prompt": ""}, {"prompt": "a"})
    assert job.run() == 1
    errors = {answer["index"]: answer.get("error") for answer in job.answers()}
    assert errors == {0: {"code": "empty_prompt", "message": "the prompt is empty"}, 1: None}
    assert [call[1] for call in job.engine.calls] == ["a"]


def test_messages_need_a_chat_template(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def chat(messages: Any, **options: Any) -> Any:
        raise ChatTemplateError("the model has no chat template")

    job.put({"messages": [{"role": "user", "content": "a"}]})
    assert job.run("--raw") == 1
    job.engine.model.chat_template = None
    monkeypatch.setattr(job.engine, "chat", chat)
    assert job.run() == 1
    raw, without = (answer["error"] for answer in job.answers())
    assert raw == {"code": "invalid_template", "message": "--raw takes prompts as they are, not messages"}
    assert without == {"code": "invalid_template", "message": "the model has no chat template"}
    assert job.engine.calls == []


def test_new_and_changed_lines_are_answered_and_old_ones_kept(job: Job) -> None:
    job.put({"prompt": "a"}, {"prompt": "b"})
    job.run()
    job.put({"prompt": "a"}, {"prompt": "B"}, {"prompt": "c"})
    job.run()
    assert [call[1] for call in job.engine.calls] == ["a", "b", "B", "c"]
    assert len(job.answers()) == 4


def test_an_id_finds_its_answer_wherever_its_line_moved(job: Job) -> None:
    job.put({"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"})
    job.run()
    job.put({"id": 2, "prompt": "b"}, {"prompt": "new"}, {"id": 1, "prompt": "a"})
    job.run()
    assert [call[1] for call in job.engine.calls] == ["a", "b", "new"]


def test_lines_that_say_the_same_twice_are_both_answered(job: Job) -> None:
    job.put({"id": 1, "prompt": "a"}, {"id": 1, "prompt": "a"})
    job.run()
    job.run()
    assert len(job.answers()) == 2


@pytest.mark.parametrize("stop", [0, 1, 7, 19])
def test_an_interrupted_job_goes_on_and_loses_nothing(job: Job, capsys: pytest.CaptureFixture[str], stop: int) -> None:
    job.put(*({"prompt": str(n)} for n in range(20)))
    job.engine.interrupt_at = stop
    assert job.run() == 130
    message = capsys.readouterr().err
    assert "the same command goes on from here" in message
    kept = job.answers() if job.output.exists() else []
    job.engine.interrupt_at = None
    assert job.run() == 0
    assert job.answers()[: len(kept)] == kept
    assert sorted(answer["index"] for answer in job.answers()) == list(range(20))


@pytest.mark.parametrize("n_bytes", [1, 10, 60])
def test_a_torn_last_line_is_cut_off_and_answered_again(job: Job, n_bytes: int) -> None:
    job.put({"prompt": "a"}, {"prompt": "b"})
    job.run()
    whole = job.output.read_bytes()
    job.output.write_bytes(whole[:-n_bytes])
    assert job.run() == 0
    assert sorted(answer["index"] for answer in job.answers()) == [0, 1]


def test_lines_of_others_in_the_output_are_left_alone(job: Job) -> None:
    job.output.write_text('not ours\n{"index": 0}\n[]\n')
    job.put({"prompt": "a"})
    assert job.run() == 0
    assert job.output.read_text().startswith('not ours\n{"index": 0}\n[]\n{"index": 0, "prompt_sha256"')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5000, "not JSON"),
        ("3", "not a JSON object"),
        ({}, "give either prompt or messages"),
        ({"prompt": "a", "messages": []}, "give either prompt or messages"),
        ({"prompt": 3}, "prompt must be"),
        ({"prompt": [1, True]}, "prompt must be"),
        ({"messages": "hello"}, "messages must be"),
        ({"prompt": "a", "id": [1]}, "id must be"),
        ({"prompt": "a", "temprature": 1}, "did you mean 'temperature'"),
        ({"prompt": "a", "temp": 1, "temperature": 1}, "given twice"),
        ({"prompt": "a", "self": 1}, "unknown option 'self'"),
        ({"prompt": "a", "top_p": 2}, "top_p must be between 0 and 1"),
    ],
)
def test_a_bad_line_is_reported_in_its_place_and_the_rest_answered(job: Job, line: Any, message: str) -> None:
    job.put({"prompt": "a"}, line, {"prompt": "b"})
    assert job.run() == 1
    by_index = {answer["index"]: answer for answer in job.answers()}
    assert message in by_index[1]["error"]["message"]
    assert by_index[0]["text"] == "answer to a"
    assert by_index[2]["text"] == "answer to b"
    assert job.run() == 1
    assert len(job.answers()) == 3


def test_bytes_that_are_no_utf8_are_a_bad_line(job: Job) -> None:
    job.input.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "\xff"}\r\n{"prompt": "\\ud800"}')
    assert job.run() == 1
    by_index = {answer["index"]: answer for answer in job.answers()}
    assert "text" in by_index[0]
    assert by_index[1]["error"]["code"] == "invalid_line"
    assert by_index[2]["text"] == "answer to \ud800"


def test_a_failed_line_is_tried_again_by_the_next_run(job: Job) -> None:
    job.put({"prompt": "slow"}, {"prompt": "full"}, {"prompt": "a"})
    assert job.run() == 1
    errors = {answer["index"]: answer["error"] for answer in job.answers() if "error" in answer}
    assert errors[0] == {"code": "timeout", "message": "out of time", "text": "answer"}
    assert errors[1]["code"] == "queue_full"
    job.run()
    assert [call[1] for call in job.engine.calls].count("slow") == 2
    assert [call[1] for call in job.engine.calls].count("a") == 1


def test_a_crashed_engine_ends_the_job_instead_of_failing_every_line(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.put(*({"prompt": str(n)} for n in range(5)), {"prompt": "crash"}, *({"prompt": str(n)} for n in range(5)))
    assert job.run() == 1
    assert "the engine crashed" in capsys.readouterr().err
    assert not [answer for answer in job.answers() if "error" in answer]


def test_input_is_read_only_as_fast_as_answers_come(job: Job) -> None:
    job.put(*({"prompt": str(n)} for n in range(100)))
    assert job.run("--n-parallel", "3") == 0
    assert 1 < job.engine.most_running <= 6


def test_overwrite_begins_again(job: Job) -> None:
    job.put({"prompt": "a"})
    job.run()
    job.run("--overwrite")
    assert len(job.answers()) == 1
    assert len(job.engine.calls) == 2


def test_input_and_output_are_two_files(job: Job) -> None:
    job.put({"prompt": "a"})
    before = job.input.read_bytes()
    assert run(["run", "--input", str(job.input), "--output", str(job.input)]) == 2
    assert job.input.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="the lock is on the file itself, which Windows would hide")
def test_two_jobs_do_not_write_one_file(job: Job) -> None:
    from llama_batch._lock import try_lock

    job.put({"prompt": "a"})
    with job.output.open("ab") as other:
        assert try_lock(other)
        assert job.run() == 2
    assert job.run() == 0


def test_files_that_cannot_be_are_a_mistake_in_the_command(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job.input.parent
    assert job.run() == 2
    assert f"there is no file {job.input}" in capsys.readouterr().err
    assert run(["run", "--input", str(folder)]) == 2
    assert f"{folder} is a folder" in capsys.readouterr().err
    job.put({"prompt": "a"})
    job.output = folder / "missing" / "answers.jsonl"
    assert job.run() == 2
    assert f"there is no folder {job.output.parent}" in capsys.readouterr().err
    job.output = folder
    assert job.run() == 2
    assert f"{folder} is a folder" in capsys.readouterr().err
    assert job.n_opened == 0


def test_a_full_disk_is_named(job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    job.put({"prompt": "a"})
    monkeypatch.setattr("llama_batch.cli.job_files.Output.write", full)
    assert job.run() == 1
    assert "No space left" in capsys.readouterr().err


def test_the_input_may_come_through_a_pipe_and_the_job_resumes_all_the_same(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n_lines in (2, 3):
        text = "".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(n_lines))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(["run", "--input", "-", "--output", str(job.output)]) == 0
    assert [call[1] for call in job.engine.calls] == ["0", "1", "2"]


def test_without_an_output_answers_go_to_standard_output(job: Job, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    job.put({"prompt": "ä"})
    assert run(["run", "--input", str(job.input)]) == 0
    assert json.loads(capfdbinary.readouterr().out)["text"] == "answer to ä"


def test_answers_tell_what_was_asked_for_of_them(tmp_path: Path) -> None:
    asked, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    line = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "n": 2, "logprobs": 1, "prompt_logprobs": 0}
    asked.write_text(json.dumps(line) + '\n{"prompt": "xy"}\n')
    words = ["--model", "sim:", "--input", str(asked), "--output", str(answers), "--max-tokens", "2"]
    assert run(["run", *words]) == 0
    first, second = sorted(map(json.loads, answers.read_text().splitlines()), key=lambda answer: answer["index"])
    assert len(first["choices"]) == 2
    assert [len(told) for told in first["logprobs"]] == [3, 3]
    assert first["prompt_logprobs"][0] is None
    assert not {"choices", "logprobs", "prompt_logprobs"} & second.keys()


@pytest.mark.parametrize("flag", ["--n", "--logprobs", "--prompt-logprobs"])
def test_what_only_a_job_can_tell_is_refused_without_one(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--model", "sim:", flag, "2", "x"]) == 2
    assert f"{flag}: only a batch job" in capsys.readouterr().err
