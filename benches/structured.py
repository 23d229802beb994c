"""Structured output and sampling on a real model: whether answers keep to their schemas, and what drawing costs.

First 200 requests with 20 schemas of the real world (tests/stand_ins/schemas.py), at 16 streams: every answer that was
not cut off is validated by `jsonschema`, formats included. Then the share of a pass that the draws take, of passes in
which 16 streams decode, by the engine's own clock: with the package's defaults, with penalties and biases, and with
schemas (median over passes):

    python benches/structured.py --model gemma.gguf
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
from llama_batch import Engine, Event
from llama_batch.models import resolve

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "stand_ins"))
from schemas import SCHEMAS

N_STREAMS = 16
BUDGETS = {"defaults": 0.02, "penalties and logit_bias": 0.03, "JSON schemas": 0.05}
PROMPT = "Tell me a long story about the sea, and leave nothing out."


def main() -> int:
    """Print the figures; 1 where an answer is no answer to its schema, or a share is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=400)
    options = parser.parse_args()
    model = resolve(options.model)
    with Engine(model, n_parallel=N_STREAMS, n_ctx=16384, max_queue=0) as engine:
        n_bad = validity(engine, options.requests, options.max_tokens)
        over = [name for name, share in shares(engine).items() if share > BUDGETS[name]]
    for name in over:
        print(f"{name}: over its budget of {BUDGETS[name]:.0%}")
    return 1 if n_bad or over else 0


def validity(engine: Engine, n_requests: int, max_tokens: int) -> int:
    """Ask for answers to schemas, and validate them; how many are wrong."""
    names = list(SCHEMAS)
    ask: Any = engine.chat if engine.model.chat_template else engine.generate
    asked = [
        (name, ask(SCHEMAS[name][1], json_schema=SCHEMAS[name][0], max_tokens=max_tokens, seed=i))
        for i, name in ((i, names[i % len(names)]) for i in range(n_requests))
    ]
    started = time.perf_counter()
    n_whole = n_bad = n_tokens = 0
    for name, generation in asked:
        done = generation.result()
        n_tokens += done.usage.generated_tokens
        if done.finish_reason != "eog":
            continue
        n_whole += 1
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        try:
            jsonschema.Draft202012Validator(SCHEMAS[name][0], format_checker=checker).validate(json.loads(done.text))
        except (ValueError, jsonschema.ValidationError) as error:
            n_bad += 1
            print(f"{name}: {done.text!r}: {error}")
    rate = n_tokens / (time.perf_counter() - started)
    print(f"{n_requests} requests, {len(names)} schemas: {n_whole} whole, {n_bad} of them wrong; {rate:.1f} tokens/s")
    return n_bad


def shares(engine: Engine) -> dict[str, float]:
    """The share of a pass that the draws take, by what is drawn with."""
    objects = {"type": "array", "items": SCHEMAS["person"][0], "minItems": 50}
    settings: dict[str, dict[str, Any]] = {
        "defaults": {},
        "penalties and logit_bias": {
            "penalty_repeat": 1.1,
            "penalty_present": 0.2,
            "logit_bias": {" sea": 1.0, 5: -2.0},
        },
        "JSON schemas": {"json_schema": objects},
    }
    return {name: share(engine, name, given) for name, given in settings.items()}


def share(engine: Engine, name: str, given: dict[str, Any]) -> float:
    """Of one of them, in passes where all streams decode and nothing else happens."""
    found: list[float] = []

    def note(event: Event) -> None:
        m = event.measurements
        if m["decode_tokens"] == N_STREAMS == m["batch_size"]:
            found.append(m["sample_ms"] / (m["eval_ms"] + m["sample_ms"]))

    with engine.subscribe(note, events=["tick"]):
        asked = [engine.generate(PROMPT, max_tokens=120, ignore_eos=True, seed=i, **given) for i in range(N_STREAMS)]
        for generation in asked:
            generation.result()
    print(f"{name}: the draws take {median(found):.2%} of a pass of {N_STREAMS} rows (median of {len(found)} passes)")
    return median(found)


if __name__ == "__main__":
    sys.exit(main())
