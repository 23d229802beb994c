"""`llama-batch chat`: conversations whose lines come from a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from llama_batch.cli.app import run
from llama_batch.cli.chat import Talk

if TYPE_CHECKING:
    from pathlib import Path


def talk(said: str | bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A conversation with a simulated model."""
    command = [sys.executable, "-m", "llama_batch.cli", "chat", *words, "--max-tokens", "4", "--seed", "1"]
    sent = said if isinstance(said, bytes) else said.encode()
    return subprocess.run(command, input=sent, capture_output=True, timeout=60, check=False)


def test_the_model_is_named_as_other_commands_name_it() -> None:
    answers = {talk("Hello\n", *words).stdout for words in (("sim:",), ("--model", "sim:"), ("-m", "sim:"))}
    assert len(answers) == 1
    assert answers.pop().strip()


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_a_model_is_named_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "sim:", "--model", "sim:"]) == 2
    assert "are the same" in capsys.readouterr().err


def test_a_conversation_is_written_and_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    assert talk(f"Hello\n/save {file}\n", "sim:").returncode == 0
    messages = json.loads(file.read_text("utf-8"))
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert talk(f"/load {file}\n/again\n/save {file}\n", "sim:").returncode == 0
    assert [message["role"] for message in json.loads(file.read_text("utf-8"))] == ["user", "assistant"]


@pytest.mark.skipif(sys.platform == "win32", reason="devices are POSIX's")
@pytest.mark.parametrize("path", ["/dev/zero", "/", "/no/such/file"])
def test_what_is_no_file_holds_no_conversation(path: str) -> None:
    done = talk(f"/load {path}\nHello\n", "sim:")
    assert f"{path} holds no conversation" in done.stderr.decode()
    assert done.stdout.strip()


def test_half_characters_are_told_and_the_conversation_goes_on() -> None:
    done = talk(b"\xff\xfe\nHello\n", "sim:")
    assert b"surrogate" in done.stderr
    assert done.stdout.strip()


def test_an_answer_does_not_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a\x1b]0;title\x07\x9b2J\tb\n"
    for at_terminal, shown in ((True, "a\ufffd]0;title\ufffd\ufffd2J\tb\n"), (False, evil)):
        monkeypatch.setattr("sys.stdout.isatty", lambda told=at_terminal: told)
        Talk._write(evil, False, now=False)
        assert capsys.readouterr().out == shown
