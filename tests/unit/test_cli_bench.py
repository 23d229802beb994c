"""`llama-batch bench` in front of the simulated model, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from llama_batch.benchmark.result import Result
from llama_batch.cli.app import run

SIM = "sim:?pass_ms=1&eog_every=7"
SHORT = ["--prompt-tokens", "8-40", "--max-tokens", "4-12", "-n", "6", "-c", "3"]
SCHEMA = Path(__file__).parents[2] / "docs" / "bench.schema.json"


def measured(tmp_path: Path, *words: str, code: int = 0) -> Result:
    """What a run wrote, once it keeps to the schema."""
    path = tmp_path / "out.json"
    assert run(["bench", *words, "--json", str(path)]) == code
    kept = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(kept)
    return Result.from_json(kept)


def test_an_engine_is_measured_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "out.html"
    result = measured(tmp_path, SIM, *SHORT, "--slo", "ttft:60000", "itl:60000", "--html", str(html))
    figures = result.figures
    assert (figures.n_completed, figures.n_failed, figures.n_without_usage) == (6, 0, 0)
    # Answers go on past the model's end, to the lengths that were drawn.
    assert all(record.n_output is not None and 4 <= record.n_output <= 12 for record in result.records)
    assert all(record.n_prompt is not None and record.n_prompt <= 40 for record in result.records)
    assert figures.goodput is not None
    assert figures.goodput.share == 1
    assert figures.queue_ms is not None
    out = capsys.readouterr().out
    assert "6 of 6 requests complete" in out
    assert "Closed loop of 3" in out
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert result.target["engine_options"]["n_parallel"] == 3


def test_the_same_seed_asks_the_same(tmp_path: Path) -> None:
    def sizes(seed: str) -> list[tuple[int, int | None, int | None]]:
        records = measured(tmp_path, SIM, *SHORT, "--seed", seed).records
        return sorted((record.conversation, record.n_prompt, record.n_output) for record in records)

    assert sizes("1") == sizes("1") != sizes("2")


def test_a_shared_prefix_and_turns_are_found_in_the_cache(tmp_path: Path) -> None:
    result = measured(tmp_path, SIM, "--shared-prefix", "64", "--turns", "3", "-n", "4", "-c", "1", "--max-tokens", "4")
    assert result.figures.n_completed == 12
    first, *others = result.records
    assert first.n_cached == 0
    # Without a chat template the history is text: what was asked and answered comes back from the cache.
    assert all(record.n_cached is not None and record.n_cached >= 50 for record in others)


def test_arrivals_of_a_rate_are_poisson(tmp_path: Path) -> None:
    result = measured(tmp_path, SIM, *SHORT[:-2], "--rate", "200")
    assert result.arrivals == {"kind": "poisson", "rate": 200, "concurrency": None}
    dues = [record.due for record in result.records]
    assert len(set(dues)) == 6
    assert not any("Closed loop" in note for note in result.notes)
    at_once = measured(tmp_path, SIM, *SHORT[:-2], "--rate", "inf")
    assert {record.due for record in at_once.records} == {0}


def test_a_trace_is_played(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"at": 5.0, "prompt": "abc", "output_tokens": 3}, {"at": 5.02, "prompt_tokens": 20, "output_tokens": 6}]
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = measured(tmp_path, SIM, "--trace", str(trace))
    assert sorted((round(record.due, 3), record.n_output) for record in result.records) == [(0, 3), (0.02, 6)]


def test_prompts_of_a_file_may_end_by_themselves(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    result = measured(tmp_path, SIM, "--prompts", str(prompts), "-n", "5")
    assert len(result.records) == 5
    assert "eog" in {record.finish_reason for record in result.records}


def test_requests_that_fail_are_told_with_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"at": 0, "prompt": "abc"}, {"at": 0, "prompt": "too long " * 60}]
    trace.write_text("\n".join(map(json.dumps, rows)))
    result = measured(tmp_path, SIM, "--trace", str(trace), "--n-ctx", "256", "--max-tokens", "5", code=1)
    assert result.figures.n_completed == 1
    (reason,) = result.figures.failures
    assert reason.startswith("context_full")
    assert "failed (1): context_full" in capsys.readouterr().out


def test_a_request_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    words = ["sim:?pass_ms=20&eog_every=0", "-n", "1", "--warmup", "0", "--timeout", "0.1"]
    result = measured(tmp_path, *words, code=1)
    assert result.figures.failures == {"timeout: no whole answer in 0.1 s": 1}
    assert result.records[0].deliveries


def test_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        measured(tmp_path, SIM, *SHORT)
        (tmp_path / "out.json").rename(tmp_path / f"{name}.json")
    html = tmp_path / "both.html"
    capsys.readouterr()
    files = [str(tmp_path / "one.json"), str(tmp_path / "two.json")]
    assert run(["bench", "compare", *files, "--html", str(html)]) == 0
    head = capsys.readouterr().out.splitlines()[0].split()
    assert head == ["one", "two", "÷", "first"]
    assert "one" in html.read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([SIM, "--slo", "speed:3"], 2, "slo"),
        ([SIM, "--slo", "ttft:1", "ttft:2"], 2, "ttft is given twice"),
        ([SIM, "--prompt-tokens", "9-3"], 2, "9-3"),
        ([SIM, "--max-tokens", "0"], 2, "1 at least"),
        ([SIM, "--rate", "0"], 2, "--rate"),
        ([SIM, "--rate", "nan"], 2, "--rate"),
        ([SIM, "--model", SIM], 2, "twice"),
        ([SIM, "--body", "{}"], 2, "--body belongs to --url"),
        ([SIM, "--speed", "2"], 2, "--speed"),
        ([SIM, "--trace", "missing.jsonl"], 2, "missing.jsonl"),
        ([SIM, "--json", "missing/out.json"], 2, "no folder"),
        ([SIM, "--n-parallel", "0"], 2, "n-parallel"),
        (["--url", "http://127.0.0.1:9", "--n-ctx", "512"], 2, "--n-ctx is an option of the engine"),
        (["--url", "http://127.0.0.1:9", "--body", "[1]"], 2, "JSON object"),
        (["--url", "http://127.0.0.1:9", "--body", '{"stream": false}'], 2, "only streams"),
        (["--url", "http://127.0.0.1:9", "--header", "x"], 2, "NAME:VALUE"),
        (["--url", "ftp://127.0.0.1"], 1, "no URL"),
        (["--url", "http://127.0.0.1:x"], 1, "no URL"),
        (["--url", "http://127.0.0.1:9", "--header", "x: a\nb"], 1, "header x"),
        (["missing.gguf"], 3, "missing.gguf"),
        (["compare"], 2, "FILE"),
        (["compare", "missing.json"], 1, "missing.json"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert len(told.err.splitlines()) == 1


def test_sources_that_contradict_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"at": 0, "prompt": "a"}')
    for words in (["--prompts", str(path)], ["--rate", "2"], ["--turns", "2"], ["--max-tokens", "2-3"]):
        assert run(["bench", SIM, "--trace", str(path), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_a_file_that_is_no_result_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index, content in enumerate(["{", "[]", '{"schema": "llama-batch/bench", "version": 99}']):
        path = tmp_path / f"{index}.json"
        path.write_text(content)
        assert run(["bench", "compare", str(path)]) == 1
    told = capsys.readouterr().err
    assert "0.json: not a result" in told
    assert "2.json: a result of version 99" in told
