"""Scrapes: what Prometheus' own readers make of them, hostile names and wrong arguments."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import Engine, EngineClosedError, OptionError, prometheus

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Series:
    """Every sample, by its name and labels."""
    series: Series = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in series, f"{sample.name} {sample.labels} stands there twice"
            series[key] = sample.value
    return series


def value(series: Series, name: str, /, **labels: str) -> float:
    """The one sample of a name whose labels are these, and perhaps others."""
    (found,) = (v for (n, given), v in series.items() if n == name and labels.items() <= dict(given).items())
    return found


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine("sim:?pass_ms=0&row_ms=0", name="the engine", n_parallel=4)
    list(engine.map(["a prompt that is asked for again and again"] * 10, max_tokens=5))
    return engine


def test_a_scrape_says_what_the_metrics_say(engine: Engine) -> None:
    metrics = engine.metrics()
    series = read(prometheus.render(engine, model_name="m"))
    assert value(series, "llama_batch_request_success_total", finished_reason="length", model_name="m") == 10
    assert value(series, "llama_batch_request_success_total", finished_reason="abort") == 0
    assert value(series, "llama_batch_requests_finished_total", reason="max_tokens") == 10
    assert value(series, "llama_batch_generation_tokens_total") == 50
    assert value(series, "llama_batch_inter_token_latency_seconds_count", engine="0") == 40
    assert value(series, "llama_batch_time_to_first_token_seconds_bucket", le="+Inf") == 10
    assert value(series, "llama_batch_e2e_request_latency_seconds_sum") == metrics.e2e_request_latency.sum
    assert value(series, "llama_batch_prompt_tokens_total") == metrics.n_prompt_tokens
    hits = sum(metrics.prefix_cache_hits.values())
    assert value(series, "llama_batch_prefix_cache_hits_total") == hits > 0
    assert sum(v for (name, _), v in series.items() if name == "llama_batch_cached_tokens_total") == hits
    assert value(series, "llama_batch_engine_state", state="ready") == 1
    assert value(series, "llama_batch_engine_info", name="the engine") == 1
    assert value(series, "llama_batch_slots") == 4
    assert 0 <= value(series, "llama_batch_kv_cache_usage_perc") <= 1


def test_buckets_are_cumulative_and_nothing_is_below_zero(engine: Engine) -> None:
    for family in parser.text_string_to_metric_families(prometheus.render(engine, compat="vllm")):
        assert all(sample.value >= 0 for sample in family.samples)
        if family.type == "histogram":
            buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            (count,) = (sample.value for sample in family.samples if sample.name.endswith("_count"))
            assert buckets == sorted(buckets)
            assert buckets[-1] == count
        assert family.documentation


def test_vllms_names_are_added(engine: Engine) -> None:
    text = prometheus.render(engine, model_name="m", compat="vllm")
    series = read(text)
    assert value(series, "vllm:num_requests_running", model_name="m", engine="0") == 0
    assert value(series, "vllm:iteration_tokens_total_count") == engine.metrics().stats.n_ticks
    assert value(series, "vllm:request_success_total", finished_reason="length") == 10
    assert value(series, "vllm:inter_token_latency_seconds_bucket", le="0.025") <= 40
    assert "# TYPE vllm:generation_tokens_total counter" in text
    ours = {name.removeprefix("llama_batch_") for name, _ in series if name.startswith("llama_batch_")}
    theirs = {name.removeprefix("vllm:").replace("iteration_tokens_total", "iteration_tokens") for name, _ in series}
    assert {name for name in theirs if not name.startswith("llama_batch_")} <= ours


def test_llama_servers_names_have_no_labels_and_are_over_all_engines(engine: Engine) -> None:
    one = read(prometheus.render(engine, compat="llamacpp"))
    two = read(prometheus.render([engine, engine], compat="llamacpp"))
    assert one["llamacpp:tokens_predicted_total", frozenset()] == 50
    assert two["llamacpp:tokens_predicted_total", frozenset()] == 100
    for name in ("requests_processing", "requests_deferred", "n_decode_total", "prompt_seconds_total"):
        assert one[f"llamacpp:{name}", frozenset()] <= two[f"llamacpp:{name}", frozenset()]
    for name in ("n_busy_slots_per_decode", "predicted_tokens_seconds", "prompt_tokens_seconds"):
        assert two[f"llamacpp:{name}", frozenset()] == pytest.approx(one[f"llamacpp:{name}", frozenset()])
    longest = engine.metrics().n_tokens_max
    assert longest > 5
    assert f"\nllamacpp:n_tokens_max {longest}\n" in prometheus.render([engine, engine], compat="llamacpp")
    assert 1 <= one["llamacpp:n_busy_slots_per_decode", frozenset()] <= 4


def test_engines_of_one_name_are_told_apart(engine: Engine) -> None:
    with Engine("sim:", name="the engine") as other:
        series = read(prometheus.render([engine, other], model_name=["large", "small"]))
        assert value(series, "llama_batch_generation_tokens_total", engine="0", model_name="large") == 50
        assert value(series, "llama_batch_generation_tokens_total", engine="1", model_name="small") == 0
        assert read(prometheus.render(e for e in (engine, other)))


def test_engines_that_load_or_are_closed_can_be_scraped() -> None:
    engine = Engine("sim:")
    assert read(prometheus.render(engine))
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.generate("x").result()
    series = read(prometheus.render(engine))
    assert value(series, "llama_batch_engine_state", state="closed") == 1
    assert value(series, "llama_batch_request_failures_total", code="closed") == 1


HOSTILE = [
    '"',
    "\\",
    "\n",
    '\\"\n',
    '"} 1\nllama_batch_up 7\n{x="',
    "ü 漢 \U0001f600",
    "\r\n\t",
    "{a=b,c}",
    "# HELP",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_a_name(engine: Engine, name: str) -> None:
    with Engine("sim:", name=name or None) as other:
        series = read(prometheus.render([engine, other], model_name=name, compat="vllm"))
    assert {dict(labels)["model_name"] for _, labels in series} == {name}
    assert ("llama_batch_up", frozenset()) not in series
    if name:
        assert value(series, "llama_batch_engine_info", engine="1", name=name) == 1


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_any_name_can_be_sent_and_read(name: str) -> None:
    with Engine("sim:") as engine:
        text = prometheus.render(engine, model_name=name)
    names = {dict(labels)["model_name"] for _, labels in read(text.encode().decode())}
    assert names == {name.replace("\0", "?")}


def test_a_lone_surrogate_can_be_sent(engine: Engine) -> None:
    assert prometheus.render(engine, model_name="\ud800x").encode()


@pytest.mark.parametrize(
    ("engines", "options"),
    [
        (None, {}),
        ("engine", {}),
        ([1], {}),
        ("ENGINE", {"compat": "prometheus"}),
        ("ENGINE", {"compat": ["vllm"]}),
        ("ENGINE", {"model_name": 5}),
        ("ENGINE", {"model_name": b"m"}),
        ("ENGINE", {"model_name": ["a", "b"]}),
        ("ENGINE", {"model_name": []}),
        ("ENGINE", {"model_name": [None]}),
    ],
)
def test_wrong_arguments_are_refused(engine: Engine, engines: Any, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        prometheus.render(engine if engines == "ENGINE" else engines, **options)
    assert engine.generate("x", max_tokens=1, cache_prompt=False).result().finish_reason == "max_tokens"


def test_a_scrape_of_nobody_is_empty() -> None:
    assert [prometheus.render([], compat=compat) for compat in (None, "vllm", "llamacpp")] == ["", "", ""]


def test_scrapes_under_load_are_whole() -> None:
    texts: list[str] = []
    over = threading.Event()

    def scrape(engine: Engine) -> None:
        while not over.is_set():
            texts.append(prometheus.render(engine, compat="vllm"))

    with Engine("sim:?pass_ms=1&row_ms=0", n_parallel=8, max_queue=0) as engine:
        scrapers = [threading.Thread(target=scrape, args=(engine,)) for _ in range(3)]
        for scraper in scrapers:
            scraper.start()
        try:
            n_tokens = sum(done.usage.generated_tokens for done in engine.map(["x" * 50] * 60, max_tokens=20))
        finally:
            over.set()
            for scraper in scrapers:
                scraper.join()
        last = read(prometheus.render(engine))
    assert value(last, "llama_batch_generation_tokens_total") == n_tokens
    assert len(texts) > 3
    for text in texts[:: max(len(texts) // 20, 1)]:
        assert read(text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_under_load() -> None:
    with Engine("sim:?pass_ms=1&row_ms=0", n_parallel=4, max_queue=0) as engine:
        running = [engine.generate("x" * 40, max_tokens=50) for _ in range(20)]
        running[0].result()
        text = prometheus.render(engine, model_name='a "name"\n')
        for generation in running[1:]:
            generation.cancel()
    done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
