"""What is measured of a real model is what its callers were told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from llama_batch import prometheus

if TYPE_CHECKING:
    from llama_batch import Engine


def test_counts_and_times_are_those_that_the_callers_were_told(engine: Engine) -> None:
    before = engine.metrics()
    prompts = [f"Once upon a time there were {n} sheep" for n in range(12)]
    scrapes = []
    done = []
    for completion in engine.map(prompts, max_tokens=12, seed=1, ignore_eos=True):
        done.append(completion)
        scrapes.append(prometheus.render(engine, model_name="smollm2", compat="vllm"))
    after = engine.metrics()

    def grown(name: str) -> float:
        """What a histogram's sum grew by."""
        return float(getattr(after, name).sum - getattr(before, name).sum)

    n_tokens = sum(d.usage.generated_tokens for d in done)
    assert after.finished["max_tokens"] - before.finished["max_tokens"] == 12
    assert after.stats.n_generated_tokens - before.stats.n_generated_tokens == n_tokens == 12 * 12
    assert after.inter_token_latency.count - before.inter_token_latency.count == n_tokens - 12
    assert grown("request_generation_tokens") == n_tokens
    assert grown("request_prompt_tokens") == sum(d.usage.prompt_tokens for d in done)
    assert grown("time_to_first_token") == pytest.approx(sum(d.timings.ttft_ms for d in done) / 1e3)
    assert grown("e2e_request_latency") == pytest.approx(sum(d.timings.total_ms for d in done) / 1e3)
    assert grown("request_queue_time") == pytest.approx(sum(d.timings.queue_ms for d in done) / 1e3)
    assert grown("request_decode_time") == pytest.approx(sum(d.timings.decode_ms for d in done) / 1e3)
    assert grown("inter_token_latency") == pytest.approx(grown("request_decode_time"))
    hits = sum(after.prefix_cache_hits.values()) - sum(before.prefix_cache_hits.values())
    assert hits == sum(d.usage.prefix_cache_tokens for d in done)
    assert after.eval_s > before.eval_s
    assert f'model="{engine.model.description}"' in scrapes[-1]
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    for scrape in scrapes:
        assert list(parser.text_string_to_metric_families(scrape))
