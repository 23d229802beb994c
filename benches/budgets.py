"""Every budget of the design, the script that measures it, and how to read what that script says.

`benches/suite.py` runs these; `python benches/suite.py --list` prints which script measures which budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import figures

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, beside what it has to be.

    Attributes:
        figure: what it is.
        value: for people.
        budget: for people; empty where there is none.
        missed: whether it is beyond its budget.
    """

    figure: str
    value: str
    budget: str
    missed: bool


@dataclass(frozen=True, slots=True)
class Said:
    """What a script left behind.

    Attributes:
        code: its exit code.
        output: what it printed.
        kept: what it wrote with `--json`; None where it wrote nothing.
    """

    code: int
    output: str
    kept: Any


@dataclass(frozen=True, slots=True)
class Step:
    """A budget, and who measures it.

    Attributes:
        name: what `--only` calls it.
        what: what is measured, in the design's words.
        command: the script and its words; `{repeats}` and `{model}` are filled in. Its first word says what runs it.
        read: takes figures out of what it left behind; None where it is run by hand.
        is_json: whether the script takes `--json`.
        has_peer: whether it needs a program of llama.cpp's, which is built once.
        has_quick: whether it takes `--quick`.
    """

    name: str
    what: str
    command: tuple[str, ...]
    read: Callable[[Said], list[Measured]] | None
    is_json: bool = True
    has_peer: bool = False
    has_quick: bool = False


def versus(said: Said) -> list[Measured]:
    """The figures of `benches/versus.py`: with llama-server's defaults, and with the best point of its grid."""
    found = []
    for compared in said.kept["compared"]:
        for score in compared["scores"]:
            if compared["against"] == "grid" and score["budget"] is None:
                continue  # measured beside the figure that this point is the best for
            low, high = score["interval"]
            sign = "≥" if score["rises"] else "≤"
            budget = "" if score["budget"] is None else f"{sign} {score['budget']:.2f}"
            value = f"{score['ratio']:.2f} [{low:.2f}, {high:.2f}]"
            found.append(Measured(f"{score['figure']} ÷ {compared['against']}", value, budget, score["missed"]))
    completed = [pair[0] for compared in said.kept["compared"] for pair in compared["pairs"]]
    n_least = min(outcome["n_completed"] for outcome in completed)
    n_all = completed[0]["n_requests"]
    found.append(Measured("ours completed", f"{n_least} of {n_all}", "all", n_least < n_all))
    traded = said.kept.get("frontier", {})
    if "better" in traded:
        better = ", ".join(traded["better"]) or "none"
        found.append(Measured("better than ours in both", better, "none", bool(traded["better"])))
        found.append(
            Measured("worst ITL", "bounded" if traded["is_bounded"] else "over its bound", "max_itl_ms or 3 medians",
                     not traded["is_bounded"])
        )  # fmt: skip
    return found


def throughput(said: Said) -> list[Measured]:
    """The figures of `benches/throughput.py`."""
    found = []
    for row in said.kept:
        ratios = [ours / theirs for ours, theirs in row["pairs"]]
        missed = figures.interval(ratios)[1] < 0.97
        found.append(Measured(f"{row['n_streams']} streams", figures.spread(ratios), "≥ 0.97", missed))
    return found


def sweep(said: Said) -> list[Measured]:
    """The figures of `benches/versus.py sweep`: whether all complete at 200 %."""
    outcomes = said.kept["outcomes"]["200"]
    n_least, n_all = min(each["n_completed"] for each in outcomes), outcomes[0]["n_requests"]
    return [Measured("completed at 200 %", f"{n_least} of {n_all}", "all", n_least < n_all)]


def over_http(said: Said) -> list[Measured]:
    """The figure of `benches/over_http.py`."""
    return [Measured("HTTP ÷ in process", said.kept["ratio"], f"≥ {said.kept['budget']}", said.kept["missed"])]


def isolation(said: Said) -> list[Measured]:
    """The figure of `benches/isolation.py`."""
    ratios = [apart / here for apart, here in said.kept["pairs"]]
    missed = figures.interval(ratios)[1] < 0.97
    return [Measured(f"{said.kept['streams']} streams", figures.spread(ratios), "≥ 0.97", missed)]


def threads(said: Said) -> list[Measured]:
    """The figures of `benches/threads.py`."""
    found = []
    for run in said.kept["runs"]:
        missed = figures.interval(run["ratios"])[1] < 0.95
        found.append(Measured(f"{run['busy']} busy processes", figures.spread(run["ratios"]), "≥ 0.95", missed))
    return found


def idle_cpu(said: Said) -> list[Measured]:
    """The figure of `benches/idle_cpu.py`."""
    kept = said.kept
    return [Measured("share of a core", f"{kept['share']:.3%}", f"≤ {kept['budget']:.1%}", kept["missed"])]


def host(said: Said) -> list[Measured]:
    """The figure of `benches/host.py`."""
    kept = said.kept
    return [Measured("host, beside the pass", f"{kept['value']} µs", f"≤ {kept['budget']:.0f} µs", kept["missed"])]


def delivery(said: Said) -> list[Measured]:
    """The figure of `benches/delivery.py`."""
    found = re.search(r"delivery +(\S+ \[.*?\]), budget (\S+)", said.output)
    if found is None:
        raise ValueError("no figure of delivery")
    return [Measured("delivery of a token", f"{found[1]} µs", f"≤ {found[2]} µs", said.code != 0)]


def structured(said: Said) -> list[Measured]:
    """The figures of `benches/structured.py`: whether answers keep to their schemas, and shares of a pass."""
    found = []
    for name, share in re.findall(r"^(.+): the draws take (\S+%) of a pass", said.output, re.MULTILINE):
        over = re.search(rf"^{re.escape(name)}: over its budget", said.output, re.MULTILINE) is not None
        budget = {"defaults": "≤ 2 %", "penalties and logit_bias": "≤ 3 %", "JSON schemas": "≤ 5 %"}.get(name, "")
        found.append(Measured(f"draws, {name}", share, budget, over))
    valid = re.search(r"(\d+) whole, (\d+) of them wrong", said.output)
    if valid is not None:
        found.append(Measured("wrong answers to schemas", valid[2], "0", valid[2] != "0"))
    if not found:
        raise ValueError("no figure in its output")
    return found


def _versus(name: str, what: str, *, grid: bool = True) -> Step:
    words = ("python", "benches/versus.py", name, "--repeats", "{repeats}", "--model", "{model}")
    return Step(name, what, (*words, *(["--grid"] if grid else [])), versus, has_peer=True, has_quick=True)


STEPS = (
    Step("throughput", "tokens/s through the Python API ÷ llama-batched-bench's S_TG, same settings",
         ("python", "benches/throughput.py", "--repeats", "{repeats}", "--model", "{model}"), throughput,
         has_peer=True),
    _versus("shared", "16 clients sharing a 400-word prompt, cold burst, ÷ llama-server"),
    _versus("second", "the same, second burst"),
    _versus("chats", "8 chats of 4 turns: TTFT of later turns"),
    _versus("distinct", "distinct prompts, greedy"),
    _versus("sampled", "distinct prompts, sampled (its budget is for a vocabulary of 262k)"),
    _versus("contexts", "8 streams at 1,100-token contexts"),
    _versus("oversubscription", "8 requests that need twice the KV cache: all complete, and goodput"),
    _versus("arrival", "a long prompt arriving: worst ITL against its TTFT"),
    _versus("flood", "a tenant that floods, and another's TTFT", grid=False),
    _versus("storm", "12 of 16 streams cancelled while 12 newcomers come", grid=False),
    Step("sweep", "requests completed at 200 % KV oversubscription",
         ("python", "benches/versus.py", "sweep", "--repeats", "{repeats}", "--model", "{model}"), sweep,
         has_quick=True),
    Step("over_http", "HTTP ÷ in-process tokens/s at 64 streams",
         ("python", "benches/over_http.py", "--repeats", "{repeats}", "--model", "{model}"), over_http),
    Step("isolation", "tokens/s with llama.cpp in a process of its own ÷ in this one, 16 streams",
         ("python", "benches/isolation.py", "--repeats", "{repeats}", "--model", "{model}"), isolation),
    Step("threads", "tokens/s by default ÷ with the best fixed number of threads, beside busy processes",
         ("python", "benches/threads.py", "--repeats", "{repeats}", "--model", "{model}"), threads),
    Step("idle_cpu", "idle engine: 0 % CPU", ("python", "benches/idle_cpu.py", "--model", "{model}"), idle_cpu),
    Step("structured", "sampling share of a tick, 16 rows (its budget is for a vocabulary of 262k)",
         ("python", "benches/structured.py", "--requests", "40", "--model", "{model}"), structured, is_json=False),
    Step("host", "host overhead per tick, 64 rows, simulated 2 ms pass", ("python", "benches/host.py"), host),
    Step("delivery", "one token from the engine to an asyncio reader, 64 streams",
         ("python", "benches/delivery.py", "--repeats", "{repeats}"), delivery, is_json=False),
    Step("calibration", "÷ the best S_TG over all settings ≥ 0.95",
         ("python", "benches/calibration.py"), None),
    Step("scheduler", "plan + apply, 64 running, 10,000 queued, 256 cached sequences of 32k tokens ≤ 100 µs",
         ("cargo", "bench", "--no-default-features", "--bench", "scheduler"), None),
)  # fmt: skip
