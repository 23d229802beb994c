"""The parts of benches/ that measure nothing: loads, figures, budgets, tables. A source distribution has none."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCHES = Path(__file__).parents[2] / "benches"
if not BENCHES.is_dir():
    pytest.skip("there are no benches here", allow_module_level=True)
sys.path.insert(0, str(BENCHES))

import budgets  # noqa: E402
import frontier  # noqa: E402
import mixed  # noqa: E402
import outcomes  # noqa: E402
import scenarios  # noqa: E402
import shaped  # noqa: E402
import suite  # noqa: E402
from llama_server import Answer  # noqa: E402
from loads import Ours, Writer  # noqa: E402


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("sim:?pass_ms=1&eog_every=0", n_parallel=8, n_ctx=16384) as engine:
        yield engine


def answered(*times: float, asked: float = 0.0, failure: str | None = None) -> Answer:
    return Answer(asked=asked, ended=max(times, default=asked), times=list(times), n_tokens=len(times), failure=failure)


def test_gaps_are_those_of_streams_and_first_tokens_those_of_newcomers() -> None:
    stream, newcomer = answered(1.0, 1.1, 1.1, 1.5), answered(3.0, asked=1.2)
    found = outcomes.outcome_of([stream, newcomer], [newcomer], [stream], 0.0, 3)
    assert found.ttft_p50_s == pytest.approx(1.8)
    assert found.worst_itl_s == pytest.approx(0.4)  # tokens that came together are one arrival
    assert (found.n_completed, found.n_requests, found.complete) == (2, 3, False)
    assert found.tokens_per_s == pytest.approx(5 / 3)


def test_what_never_came_came_late() -> None:
    found = outcomes.outcome_of([answered(failure="x")], [answered()], [answered()], -1.0, 1)
    assert (found.ttft_p50_s, found.worst_itl_s, found.decode_per_s) == (math.inf, math.inf, 0)


def test_the_rate_together_is_that_of_the_window_in_which_all_decode() -> None:
    one, other = answered(0, 1, 2, 3, 4), answered(2, 2.5, 3, 3.5, 4, 4.5)
    assert outcomes.together([one, other]) == pytest.approx((2 + 4) / 2)
    assert outcomes.together([one, answered(9, 10)]) == 0
    assert outcomes.together([one, answered()]) == 0


@pytest.mark.parametrize("name", list(scenarios.SCENARIOS))
def test_every_scenario_is_held_with_all_requests_answered(name: str, engine: Engine) -> None:
    scenario = scenarios.SCENARIOS[name]
    load = scenario.load(Writer(engine.model, 7), True)
    found = asyncio.run(scenario.hold(Ours(engine), load))
    assert found.failures == []
    assert found.complete
    assert found.n_requests == load.n_requests
    assert all(math.isfinite(figure.of(found)) for figure in scenario.figures)
    assert load.describe()


def test_a_load_is_the_same_for_the_same_seed(engine: Engine) -> None:
    for scenario in scenarios.SCENARIOS.values():
        assert scenario.load(Writer(engine.model, 7), True) == scenario.load(Writer(engine.model, 7), True)
        assert scenario.load(Writer(engine.model, 7), True) != scenario.load(Writer(engine.model, 8), True)


def test_a_storm_cancels_in_the_engine(engine: Engine) -> None:
    # Long enough that no stream ends before it is cancelled.
    load = replace(mixed.storm(Writer(engine.model, 7), True), n_predict=1500)
    reasons: list[str] = []
    with engine.subscribe(lambda event: reasons.append(str(event.metadata["stop_reason"])), events=["request.done"]):
        found = asyncio.run(mixed.arrive(Ours(engine), load))
        engine.close(drain=True)
    assert reasons.count("cancelled") == load.n_cancelled == 2
    assert found.n_completed == load.n_requests == 4


def test_tenants_of_a_flood_share_no_cache(engine: Engine) -> None:
    prompt = Writer(engine.model, 7).exactly(200)
    same = mixed.Mixed([[[prompt]]], 2, 8, 16384, newcomers=[prompt])
    found = asyncio.run(mixed.flood(Ours(engine), same))
    assert (found.n_completed, found.n_cached) == (2, 0)


def test_time_is_better_short_and_rates_are_better_high() -> None:
    rises = {figure.name: figure.rises for each in scenarios.SCENARIOS.values() for figure in each.figures}
    assert rises == {
        "tokens_per_s": True, "decode_per_s": True, "ttft_p50_s": False, "ttft_p95_s": False, "itl_p50_s": False,
        "worst_itl_s": False,
    }  # fmt: skip


@pytest.mark.parametrize("quick", [False, True])
def test_every_point_of_a_grid_can_hold_its_load(quick: bool, engine: Engine) -> None:
    for scenario in scenarios.SCENARIOS.values():
        load = scenario.load(Writer(engine.model, 7), quick)
        points = list(scenarios.grid(load, scenario.batches))
        assert points[0] == ()
        assert len(set(points)) == len(points) > 3
        for point in points:
            if "-no-kvu" in point:
                assert load.n_ctx // int(point[point.index("-np") + 1]) >= load.n_cells


def test_only_less_of_both_is_better() -> None:
    assert frontier.beats((1, 1), (2, 2))
    assert not frontier.beats((1, 2), (2, 2))
    assert not frontier.beats((1, 3), (2, 2))


def test_a_frontier_is_missed_by_a_setting_that_is_better_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    class Bench:
        """Ours is always the same, theirs as good as its batch is small."""

        def ours(self, _load: Any, **_options: Any) -> outcomes.Outcome:
            return self.made(1.0, 1.0)

        def theirs(self, _load: Any, point: Sequence[str]) -> outcomes.Outcome:
            return self.made(float(point[0]), float(point[1]))

        def made(self, worst: float, late: float) -> outcomes.Outcome:
            return outcomes.Outcome(1.0, late, late, 1, 1, 1, 0, [], itl_p50_s=0.9, worst_itl_s=worst)

    load = mixed.Mixed([[[[1]]]], 1, 8, 512)
    bench: Any = Bench()
    traded = frontier.frontier(bench, load, [("0.5", "1.5"), ("1.5", "0.5")], 2)
    assert traded["better"] == []
    assert frontier.frontier(bench, load, [("0.5", "0.5")], 1)["better"] == ["llama-server 0.5 0.5"]
    assert "budget: none, missed" in capsys.readouterr().out


def test_every_budget_names_a_script_that_is_there() -> None:
    names = [step.name for step in budgets.STEPS]
    assert len(set(names)) == len(names)
    for step in budgets.STEPS:
        if step.read is not None:
            assert step.command[0] == "python"
            assert (BENCHES.parent / step.command[1]).is_file()
        if step.command[1] == "benches/versus.py":
            assert step.command[2] in [*scenarios.SCENARIOS, "sweep", "idle"]
    assert {step.command[2] for step in budgets.STEPS if step.command[1] == "benches/versus.py"} >= {
        *scenarios.SCENARIOS
    }


def kept_versus(ratio: float, missed: bool, completed: int = 4) -> dict[str, Any]:
    score = {"figure": "tokens_per_s", "ratio": ratio, "interval": [ratio, ratio], "rises": True, "budget": 3,
             "missed": missed}  # fmt: skip
    pair = [{"n_completed": completed, "n_requests": 4}, {}]
    return {"compared": [{"against": "defaults", "scores": [score], "pairs": [pair]}], "frontier": {"missed": False}}


def test_a_table_has_each_budget_beside_its_figure_and_marks_what_is_missed() -> None:
    step = next(step for step in budgets.STEPS if step.name == "shared")
    fine = suite.read(step, budgets.Said(0, "", kept_versus(3.2, False)))
    bad = suite.read(step, budgets.Said(1, "", kept_versus(2.5, True, completed=3)))
    text = suite.table({"shared": fine})
    assert "| tokens_per_s ÷ defaults | 3.20 [3.20, 3.20] | ≥ 3.00 | `benches/versus.py shared` |" in text
    assert "missed" not in text
    assert not suite.missed({"shared": fine})
    worse = suite.table({"shared": bad})
    assert "2.50 [2.50, 2.50] **missed**" in worse
    assert "3 of 4 **missed**" in worse
    assert suite.missed({"shared": bad})
    # Whatever was not measured is in it, with who would.
    assert text.count("not measured") == sum(step.read is not None for step in budgets.STEPS) - 1
    assert "`cargo bench --no-default-features --bench scheduler`" in text
    assert all(line.count("|") == 6 for line in [*text.splitlines(), *worse.splitlines()])


def test_a_script_that_fails_is_told_with_its_last_words_and_ends_nothing() -> None:
    step = next(step for step in budgets.STEPS if step.name == "delivery")
    result = suite.read(step, budgets.Said(3, "well\nno | room\n\n", None))
    assert result == {"figures": [], "failure": "exit code 3: no | room"}
    assert "**failed**: exit code 3: no \\| room" in suite.table({"delivery": result})
    assert suite.missed({"delivery": result})


def test_figures_are_read_out_of_what_scripts_print() -> None:
    said = budgets.Said(1, "draws\ndefaults: the draws take 2.50% of a pass of 16 rows\n"
                        "JSON schemas: the draws take 4.00% of a pass of 16 rows\n"
                        "40 requests, 20 schemas: 30 whole, 1 of them wrong; 9 tokens/s\n"
                        "defaults: over its budget of 2%\n", None)  # fmt: skip
    assert [(each.figure, each.value, each.missed) for each in budgets.structured(said)] == [
        ("draws, defaults", "2.50%", True), ("draws, JSON schemas", "4.00%", False),
        ("wrong answers to schemas", "1", True),
    ]  # fmt: skip
    told = "  delivery       9.60 [9.10, 9.90], budget 10.0"
    assert budgets.delivery(budgets.Said(0, told, None))[0].value == "9.60 [9.10, 9.90] µs"


@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
def test_a_step_that_takes_too_long_is_stopped_with_all_that_it_started() -> None:
    step = budgets.Step("x", "x", ("python",), budgets.delivery, is_json=False)
    # What it started holds its output open: were it left alive, this would wait for it.
    result = suite.run(step, ["/bin/sh", "-c", "sleep 3600 & sleep 3600"], 1.0)
    assert result["failure"] == "out of time after 1 s"


def test_steps_share_the_time_and_the_last_one_has_what_is_left() -> None:
    assert suite.limit(100, 1) == 100
    assert suite.limit(90, 2) == 60
    assert suite.limit(100, 10) == 30


@settings(deadline=None)
@given(st.sampled_from(list(shaped.SHAPES)))
def test_shapes_are_of_their_size(name: str) -> None:
    n_weights = sum(math.prod(size) for _, size in shaped._tensors(shaped.SHAPES[name], 128_256))
    billions = n_weights / 1e9
    assert 0.9 * float(name[:-1]) < billions < 1.6 * float(name[:-1])
    assert all(size[-1] % shaped.BLOCK == 0 for _, size in shaped._tensors(shaped.SHAPES[name], 128_256))


def test_a_shape_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="shaped:8B"):
        shaped.model_of("shaped:70B")
