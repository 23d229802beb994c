"""The command line as a user starts it: a process of its own, in front of the simulated model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-m", "llama_batch.cli"]
SIM = ["--model", "sim:?pass_ms=2&eog_every=0"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals as POSIX has them")


def run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *words], input=text, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )


def test_prompts_are_answered_and_nothing_else_is_printed() -> None:
    done = run("run", *SIM, "--max-tokens", "5", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[1] a\n")
    assert "\n\n[2] b\n" in done.stdout


def test_the_same_seed_gives_the_same_answer() -> None:
    one, two = (run("run", *SIM, "--seed", "3", "--max-tokens", "8", text="from a pipe").stdout for _ in range(2))
    assert one == two != ""


def test_versions_are_told() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("llama-batch ")
    assert "llama.cpp" in done.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--n-ctx", "64", "--n-batch", "0", "a"], 2),
        (["run", "--model", "sim:?load_error=broken", "a"], 3),
        (["run", "--model", "missing.gguf", "a"], 3),
        (["run", *SIM, ""], 1),
        (["run", *SIM], 2),
        (["run", *SIM, "--input", "missing.jsonl"], 2),
        (["run", *SIM, "--timeout", "0.001", "a"], 1),
        (["info", "missing.gguf"], 3),
    ],
)
def test_every_failure_is_one_line_and_its_code(words: list[str], code: int) -> None:
    done = run(*words, text="")
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert done.stderr.startswith("llama-batch: ")
    assert "Traceback" not in done.stderr


def make_job(folder: Path, n: int) -> list[str]:
    """A job of so many lines; its command."""
    lines = (json.dumps({"id": f"r{i}", "prompt": f"prompt {i}", "max_tokens": 20}) for i in range(n))
    (folder / "in.jsonl").write_text("\n".join(lines))
    return ["run", *SIM, "--input", str(folder / "in.jsonl"), "--output", str(folder / "out.jsonl")]


def answers(folder: Path) -> list[dict[str, object]]:
    """What a finished job wrote."""
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_job_answers_every_line(tmp_path: Path) -> None:
    done = run(*make_job(tmp_path, 40))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("llama-batch: 40 answered")
    assert {answer["id"] for answer in answers(tmp_path)} == {f"r{i}" for i in range(40)}


@POSIX
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_job_that_is_stopped_goes_on_where_it_was(tmp_path: Path, sent: signal.Signals) -> None:
    words = make_job(tmp_path, 200)
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True) as process:
        while not ((tmp_path / "out.jsonl").exists() and (tmp_path / "out.jsonl").stat().st_size):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sent)
        _, err = process.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from here" in err
        assert "Traceback" not in err
    kept = (tmp_path / "out.jsonl").read_bytes().rpartition(b"\n")[0]
    assert 0 < kept.count(b"\n") + 1 < 200
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept)
    assert sorted(str(answer["id"]) for answer in answers(tmp_path)) == sorted(f"r{i}" for i in range(200))


@POSIX
@pytest.mark.parametrize("no_color", [False, True])
def test_in_a_terminal_answers_stand_side_by_side(no_color: bool) -> None:
    import pty

    primary, secondary = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    env = {key: value for key, value in env.items() if key != "NO_COLOR"} | ({"NO_COLOR": "1"} if no_color else {})
    with subprocess.Popen(
        [*COMMAND, "run", *SIM, "--max-tokens", "9", "first", "second"], stdout=secondary, stderr=secondary, env=env
    ) as process:
        os.close(secondary)
        shown = b""
        while True:
            try:
                block = os.read(primary, 65536)
            except OSError:  # Linux says so when the other side has closed
                break
            if not block:
                break
            shown += block
    os.close(primary)
    assert process.returncode == 0, shown
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).splitlines()
    assert any("1 first" in line and "2 second" in line for line in last)
    assert "2 of 2 answered" in last[-1]
    assert (b"\x1b[32m" in shown or b"\x1b[1;36m" in shown) is not no_color


@POSIX
@pytest.mark.parametrize(
    ("target", "code", "said"),
    [("/dev/full", 1, "No space left"), ("/dev/null", 0, "2 answered"), ("/dev/stderr", 0, "2 answered")],
)
def test_the_output_of_a_job_may_be_a_device(tmp_path: Path, target: str, code: int, said: str) -> None:
    words = make_job(tmp_path, 2)[:-1]
    done = run(*words, target)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count('"finish_reason"') == (2 if target == "/dev/stderr" else 0)


@POSIX
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_one_line_and_code_1(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for words in (["run", *SIM, "--max-tokens", "3", "a", "b"], ["run", "--help"], ["--version"]):
        with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
            done = subprocess.run(
                [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=env
            )
        assert done.returncode == 1
        assert done.stderr == "llama-batch: No space left on device\n"


@POSIX
@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        ("run --max-tokens 3 a b", "1>&-", 0),
        ("run --max-tokens 3 a b", "2>&-", 0),
        ("run --max-tokens 3 a b", "<&- 1>&- 2>&-", 0),
        ("run --max-tokens 3", "<&-", 2),
        ("run --input -", "<&-", 0),
        ("run --model missing.gguf a", "2>&-", 3),
        ("models", "1>&-", 0),
        ("--help", "1>&- 2>&-", 0),
    ],
)
def test_a_closed_stream_changes_nothing_else(words: str, closed: str, code: int) -> None:
    model = "--model sim: " if words.startswith("run") and "--model" not in words else ""
    command = f"{sys.executable} -m llama_batch.cli {words.replace('run ', f'run {model}', 1)} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "unexpected" not in done.stderr
    assert done.stderr.count("\n") <= 1
