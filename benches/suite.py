"""All budgets in one run: each is measured by its script, within a time for all of them.

What is done is written after each step, so that a run which is stopped leaves what it had; a later one with the same
`--json` goes on where it stopped. `--table` prints Markdown, of a run or of a file that is there:

    python benches/suite.py --minutes 240 --json suite.json --table
    python benches/suite.py --only shared chats --quick
    python benches/suite.py --list                    # which script measures which budget
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from budgets import STEPS, Measured, Said, Step

ROOT = Path(__file__).resolve().parent.parent
LEAST_S = 5.0
"""A step with less time than this left is not begun."""


def run(step: Step, words: list[str], limit_s: float) -> dict[str, Any]:
    """Run a step's script and read what it left behind.

    Args:
        step: the step.
        words: its command.
        limit_s: seconds after which it is stopped.

    Returns:
        Its command, how long it took, and its figures or why there are none.
    """
    begun = time.monotonic()
    result: dict[str, Any] = {"command": shlex.join(words), "figures": [], "failure": None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.json")
        command = [sys.executable if words[0] == "python" else words[0], *words[1:]]
        command += ["--json", str(path)] if step.is_json else []
        try:
            code, output = call(command, limit_s)
            kept = json.loads(path.read_text()) if path.exists() else None
            result |= read(step, Said(code, output, kept))
        except subprocess.TimeoutExpired:
            result["failure"] = f"out of time after {limit_s:.0f} s"
    return {**result, "seconds": round(time.monotonic() - begun, 1)}


def call(command: list[str], limit_s: float) -> tuple[int, str]:
    """Run a command, and end all that it started if it takes too long: a server of a peer must not outlive its script.

    Args:
        command: its words.
        limit_s: seconds after which it is stopped.

    Returns:
        Its exit code, and what it printed.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    finally:
        if process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.communicate()


def read(step: Step, said: Said) -> dict[str, Any]:
    """A step's figures, or why there are none: what a script says last is why it failed.

    Args:
        step: the step.
        said: what its script left behind.

    Returns:
        `figures` and `failure`.
    """
    assert step.read is not None
    lines = [line for line in said.output.splitlines() if line.strip()] or ["it said nothing"]
    try:
        return {"figures": [asdict(each) for each in step.read(said)], "failure": None}
    except (KeyError, TypeError, ValueError, IndexError):
        return {"figures": [], "failure": f"exit code {said.code}: {lines[-1][:200]}"}


def limit(left_s: float, n_steps: int) -> float:
    """How long a step may take: no more than three times its share, and never all, since others want their turn.

    Args:
        left_s: time that is left for all, in seconds.
        n_steps: steps that are left, this one included.

    Returns:
        The time in seconds.
    """
    return left_s if n_steps == 1 else min(3 * left_s / n_steps, 2 * left_s / 3)


def missed(results: dict[str, Any]) -> bool:
    """Whether any figure of any step is beyond its budget, or any step failed."""
    return any(
        result["failure"] is not None or any(each["missed"] for each in result["figures"])
        for result in results.values()
    )


def table(results: dict[str, Any]) -> str:
    """Markdown: a row for each figure, those that miss their budget marked.

    Args:
        results: by step.

    Returns:
        The text.
    """
    rows = ["| What | figure | measured, median [95 %] | budget | by |", "|---|---|---|---|---|"]
    for step in STEPS:
        script = " ".join(step.command[1:3] if step.command[1].endswith("versus.py") else step.command[1:2])
        script = shlex.join(step.command) if step.command[0] != "python" else script
        result = results.get(step.name)
        if result is None:
            by_hand = "not measured" if step.read is not None else "run by hand"
            rows.append(f"| {step.what} | | {by_hand} | | `{script}` |")
            continue
        if result["failure"] is not None:
            rows.append(f"| {step.what} | | **failed**: {_cell(result['failure'])} | | `{script}` |")
        what = step.what
        for measured in (Measured(**each) for each in result["figures"]):
            mark = " **missed**" if measured.missed else ""
            cells = map(_cell, (what, measured.figure, measured.value))
            rows.append(f"| {' | '.join(cells)}{mark} | {_cell(measured.budget)} | `{script}` |")
            what = ""
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=240.0, help="time for all steps (default: 240)")
    parser.add_argument("--model", default="", help="path, URI, or shaped:0.5B, :1B, :8B; default: SmolLM2")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of each comparison (default: 5)")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], metavar="STEP", default=None)
    parser.add_argument("--server-binary", type=Path, default=None, help="a llama-server that is there already")
    parser.add_argument("--quick", action="store_true", help="tiny loads that only show that everything works")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here, and go on from what is there")
    parser.add_argument("--table", action="store_true", help="print Markdown; with --minutes 0, of --json alone")
    parser.add_argument("--list", action="store_true", help="print which script measures which budget")
    return parser.parse_args()


def words_of(step: Step, chosen: argparse.Namespace) -> list[str]:
    """A step's command, filled in."""
    words = [word.format(repeats=1 if chosen.quick else chosen.repeats, model=chosen.model) for word in step.command]
    if not chosen.model and "--model" in words:
        del words[words.index("--model") : words.index("--model") + 2]
    if chosen.quick and step.has_quick:
        words.append("--quick")
    if chosen.server_binary is not None and step.has_peer and "benches/versus.py" in words:
        words += ["--server-binary", str(chosen.server_binary)]
    return words


def main() -> int:
    """Measure what is asked for.

    Returns:
        1 where a budget is missed or a step failed.
    """
    chosen = arguments()
    if chosen.list:
        for step in STEPS:
            print(f"{step.name:17} {step.what}\n{'':17} {shlex.join(step.command)}")
        return 0
    kept = json.loads(chosen.json.read_text()) if chosen.json is not None and chosen.json.exists() else {}
    results: dict[str, Any] = kept.get("steps", {})
    deadline = time.monotonic() + 60 * chosen.minutes
    steps = [step for step in STEPS if step.read is not None and step.name in (chosen.only or [s.name for s in STEPS])]
    steps = [step for step in steps if step.name not in results or results[step.name]["failure"] is not None]
    for place, step in enumerate(steps):
        left = deadline - time.monotonic()
        if left < LEAST_S:
            break
        limit_s = limit(left, len(steps) - place)
        words = words_of(step, chosen)
        print(f"{step.name}: {shlex.join(words)}", file=sys.stderr, flush=True)
        results[step.name] = run(step, words, limit_s)
        print(f"  {results[step.name]['failure'] or results[step.name]['figures']}", file=sys.stderr, flush=True)
        if chosen.json is not None:
            made = {"model": chosen.model or "SmolLM2", "quick": chosen.quick, "steps": results}
            chosen.json.write_text(json.dumps(made, indent=1))
    if chosen.table:
        print(table(results))
    return int(missed(results))


if __name__ == "__main__":
    sys.exit(main())
