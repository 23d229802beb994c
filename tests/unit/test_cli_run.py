"""`llama-batch run` with prompts, in front of an engine that answers by rule."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import FakeEngine, completion
from llama_batch._options import REQUEST_OPTIONS, START_OPTIONS
from llama_batch.cli.answers import Answer, Answers
from llama_batch.cli.app import run
from llama_batch.cli.show import SideBySide
from llama_batch.errors import ModelLoadError, QueueFullError
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator


class Opened:
    """Stands for the function that opens engines; keeps what it was asked."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.model: str | None = None
        self.options: dict[str, Any] = {}
        self.error: Exception | None = None

    @contextlib.contextmanager
    def __call__(self, model: str | None, options: dict[str, Any]) -> Iterator[FakeEngine]:
        self.model, self.options = model, options
        if self.error is not None:
            raise self.error
        yield self.engine


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    stands = Opened()
    monkeypatch.setattr("llama_batch.cli.run.opened", stands)
    return stands


def test_one_prompt_is_answered_without_a_label(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "sky"]) == 0
    assert capsys.readouterr() == ("answer to sky\n", "")
    assert opened.engine.calls == [("chat", "sky", {})]


def test_several_prompts_are_labelled_and_in_order(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "a", "b\nc"]) == 0
    assert capsys.readouterr().out == "[1] a\nanswer to a\n\n[2] b c\nanswer to b\nc\n"
    assert opened.options["n_parallel"] == 4
    assert opened.options["max_queue"] == 0


def test_a_model_without_a_template_and_raw_take_the_prompt_as_it_is(opened: Opened) -> None:
    assert run(["run", "--raw", "sky"]) == 0
    opened.engine.model.chat_template = None
    assert run(["run", "sky"]) == 0
    assert [call[0] for call in opened.engine.calls] == ["stream", "stream"]


def test_options_reach_the_request_and_the_engine_under_any_of_their_names(opened: Opened) -> None:
    words = ["--temperature", "0", "--max-tokens=5", "--no-cache-prompt", "--timeout", "none", "--n-ctx", "512"]
    words += ["--max-num-seqs", "3", "--type-k", "q8_0", "--tensor-split", "1,2.5", "--devices", "a,b", "--kv-unified"]
    assert run(["run", "-m", "x.gguf", *words, "sky"]) == 0
    assert opened.engine.calls == [
        ("chat", "sky", {"temp": 0.0, "max_tokens": 5, "cache_prompt": False, "timeout": None})
    ]
    assert opened.model == "x.gguf"
    assert opened.options == {
        "n_parallel": 3, "max_queue": 0, "n_ctx": 512, "type_k": "q8_0", "tensor_split": [1.0, 2.5],
        "devices": ["a", "b"], "kv_unified": True,
    }  # fmt: skip


def test_every_option_of_both_tables_is_a_flag_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for spec in (*START_OPTIONS.values(), *REQUEST_OPTIONS.values()):
        for name in (spec.name, *spec.aliases):
            assert f"--{name.replace('_', '-')}" in text


def help_of_run(capsys: pytest.CaptureFixture[str]) -> str:
    """The help as one line, its words whole again."""
    assert run(["run", "--help"]) == 0
    return re.sub(r"(?<=\w)- ", "-", " ".join(capsys.readouterr().out.split()))


def test_the_help_speaks_of_flags_and_not_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of_run(capsys)
    assert not re.search(r"\b(None|True|False|callable|\w*Error)\b|`|--no-no|\w=\w", text)


@pytest.mark.parametrize(
    "said",
    [
        "Temperature; 0 always takes the likeliest token. [default: 0.8; 0 to 1000]",
        "keep this one's. [default: yes]",
        "(multiplied where negative); 1 is off. [default: 1; ",
        "no progress; none means no limit. [default: 30]",
        "from submission; by default no limit.",
        "or an equal part for each (--no-kv-unified). [default: yes]",
        "RoPE scaling; by default the model's.",
        "where --split-mode none. [default: 0;",
        "--no-perf / --perf Do not let llama.cpp time itself. [default: yes]",
        "[default: one for each prompt, 4 to 16, or 8 in a batch job; 1 to 253]",
    ],
)
def test_the_help_tells_the_defaults_that_apply(capsys: pytest.CaptureFixture[str], said: str) -> None:
    assert said in help_of_run(capsys)


def test_a_flag_that_says_no_has_one_that_says_yes(opened: Opened) -> None:
    assert run(["run", "--perf", "a"]) == 0
    assert opened.options["no_perf"] is False
    assert run(["run", "--no-perf", "a"]) == 0
    assert opened.options["no_perf"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--n-ctxx", "3", "a"], "--n-ctxx"),
        (["run", "--n-ctx", "-3", "a"], "n-ctx"),
        (["run", "--top-p", "1.5", "a"], "top-p"),
        (["run", "--n-parallel", "many", "a"], "'many' is not a whole number"),
        (["run", "--n-parallel", "1.5", "a"], "'1.5' is not a whole number"),
        (["run", "--n-parallel", "300", "a"], "300 is more than 253"),
        (["run", "--rope-freq-base", "-1", "a"], "-1 is less than 0"),
        (["run", "--temp", "warm", "a"], "'warm' is not a number"),
        (["run", "--tensor-split", "1,b", "a"], "'b' is not a number"),
        (["run", "--type-k", "q3", "a"], "type-k"),
        (["run", "--output", "x", "a"], "--input"),
        (["run", "--input", "x", "a"], "not from both"),
        (["run", "-", "-"], "one prompt only"),
        (["rnu"], "No such command"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    opened: Opened, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert opened.engine.calls == []


def test_an_option_that_the_engine_refuses_is_code_2(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened.error = QueueFullError("x")
    assert run(["run", "a"]) == 1
    opened.error = ModelLoadError("llama.cpp said:\nno")
    assert run(["run", "a"]) == 3
    assert capsys.readouterr().err == "llama-batch: x\nllama-batch: llama.cpp said: no\n"


def test_a_missing_model_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-m", "missing.gguf", "a"]) == 3
    assert capsys.readouterr().err == "llama-batch: there is no file missing.gguf\n"


def test_a_failed_prompt_is_named_and_the_others_are_answered(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "a", "full", "b"]) == 1
    out, err = capsys.readouterr()
    assert "answer to a" in out
    assert "answer to b" in out
    assert err == "llama-batch: prompt 2: the queue is full\n"


def test_a_crash_of_the_engine_ends_the_run(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "a", "crash"]) == 1
    assert "the engine crashed" in capsys.readouterr().err


def test_ctrl_c_is_code_130(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    opened.engine.interrupt_at = 0
    assert run(["run", "a"]) == 130
    assert capsys.readouterr().err == "llama-batch: interrupted\n"


def test_an_unexpected_error_is_one_line_unless_debugging(
    opened: Opened, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.error = ZeroDivisionError("oh")
    assert run(["run", "a"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("LLAMA_BATCH_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["run", "a"])


def test_a_prompt_is_read_from_standard_input(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert run(["run"]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("again\n"))
    assert run(["run", "x", "-"]) == 0
    assert [call[1] for call in opened.engine.calls] == ["from a pipe", "x", "again"]


@pytest.mark.parametrize("words", [["run"], ["run", "-"], ["run", "x", "-"]])
def test_empty_standard_input_is_no_prompt(
    opened: Opened, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert run(words) == 2
    assert "standard input is empty: give a prompt" in capsys.readouterr().err
    assert opened.engine.calls == []


def test_an_empty_prompt_fails_alone(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "a", ""]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("[1] a\nanswer to a\n")
    assert err == "llama-batch: prompt 2: the prompt is empty\n"
    assert run(["run", ""]) == 1
    assert [call[1] for call in opened.engine.calls] == ["a"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys; from llama_batch.cli.app import run; sys.exit(run(['run', '--help']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def console(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def drawn(screen: Console, what: Any) -> str:
    with screen.capture() as capture:
        screen.print(what)
    return capture.get()


def test_growing_answers_stand_side_by_side_and_show_their_ends() -> None:
    answers = Answers([Answer("first"), Answer("second")])
    answers.items[0].text = "\n".join(f"line {n}" for n in range(100))
    text = drawn(console(), SideBySide(console()).frame(answers))
    assert "line 99" in text
    assert "line 1\n" not in text
    assert any("first" in line and "second" in line for line in text.splitlines())
    assert len(text.splitlines()) < 24


def test_more_answers_than_the_screen_holds_show_those_that_still_grow() -> None:
    answers = Answers([Answer(f"prompt {n}") for n in range(40)])
    for answer in answers.items[:38]:
        answer.completion = completion("done")
    text = drawn(console(), SideBySide(console()).frame(answers))
    assert "prompt 38" in text
    assert "prompt 39" in text
    assert "38 of 40 answered" in text
    assert len(text.splitlines()) <= 24


def test_in_the_end_every_answer_is_whole_and_failures_are_named() -> None:
    answers = Answers([Answer("a"), Answer("b")])
    answers.items[0].text = "\n".join(f"line {n}" for n in range(50))
    answers.items[0].completion = completion("x y z")
    answers.items[1].error = QueueFullError("the queue is full")
    text = drawn(console(), SideBySide(console()).whole(answers))
    assert all(f"line {n} " in text for n in range(50))
    assert "queue_full" in text
    assert "the queue is full" in text
    assert "1 of 2 answered, 1 failed · " in text
    answers.items[0].completion, answers.items[0].error = None, QueueFullError("the queue is full")
    assert "0 of 2 answered, 2 failed · " in drawn(console(), SideBySide(console()).whole(answers))


def test_an_answer_cannot_command_the_terminal_or_the_layout() -> None:
    answers = Answers([Answer("[red]p[/red]"), Answer("b")])
    answers.items[0].text = "a\x1b[2Jb\x07c [bold]x"
    text = drawn(console(), SideBySide(console()).whole(answers))
    assert "\x1b[2J" not in text
    assert "a[2Jbc [bold]x" in text
    assert "[red]p[/red]" in text


def test_a_narrow_screen_has_one_column() -> None:
    answers = Answers([Answer("a", text="x" * 90), Answer("b", text="字" * 40)])
    text = drawn(console(width=30), SideBySide(console(width=30)).whole(answers))
    assert max(len(line) for line in text.splitlines()) <= 30
