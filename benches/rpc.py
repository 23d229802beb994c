"""What RPC costs: bytes on the wire and load time with a cold and a warm cache, and tokens/s here against one worker.

python benches/rpc.py --model model.gguf
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from figures import interleave, spread
from llama_batch import Engine
from llama_batch.rpc import RpcWorker
from shaped import source_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "stand_ins"))
from proxy import Proxy


def load(model: Any, worker: RpcWorker) -> tuple[float, int]:
    """Load a model onto a worker; the seconds it took, and the bytes that were sent."""
    with Proxy(worker.endpoint) as proxy:
        begun = time.perf_counter()
        with Engine(model, n_ctx=2048, rpc_servers=[proxy.endpoint]):
            return time.perf_counter() - begun, proxy.n_sent


def cold(model: Any, worker: RpcWorker, cache: Path) -> tuple[float, int]:
    """The same, with an empty cache."""
    for file in cache.iterdir():
        if not file.name.startswith("."):
            file.unlink()
    return load(model, worker)


def warm(model: Any, worker: RpcWorker) -> tuple[float, int]:
    """The same, with what the load before left there."""
    load(model, worker)
    return load(model, worker)


def rate(model: Any, n_streams: int, n_threads: int, servers: list[str] | None) -> float:
    """Tokens a second of so many streams at once."""
    options: dict[str, Any] = {"n_ctx": 4096, "n_parallel": n_streams, "n_threads": n_threads, "rpc_servers": servers}
    with Engine(model, **options) as engine:
        engine.generate("Once upon a time", max_tokens=8).result()
        begun = time.perf_counter()
        answers = [engine.generate(f"Story {i}:", max_tokens=64, temp=0) for i in range(n_streams)]
        n_tokens = sum(answer.result().usage.generated_tokens for answer in answers)
        return n_tokens / (time.perf_counter() - begun)


def main() -> int:
    """Measure, and print.

    Returns:
        0: there is no budget.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="path or URI; default: SmolLM2")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of each (default: 3)")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute, on either side (default: 1)")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here")
    chosen = parser.parse_args()
    model = source_of(chosen.model)
    found: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())
    with RpcWorker("127.0.0.1:0", cache_dir=folder, n_threads=chosen.threads) as worker:
        pairs = interleave(lambda: cold(model, worker, folder), lambda: warm(model, worker), chosen.repeats)
        for name, side in (("cold", 0), ("warm", 1)):
            seconds, sent = [pair[side][0] for pair in pairs], median(pair[side][1] for pair in pairs)
            found[f"load_{name}_s"], found[f"sent_{name}_bytes"] = median(seconds), sent
            print(f"a load with a {name} cache: {spread(seconds)} s, {sent / 1e6:.1f} MB sent")
        for n in (1, 4):
            rates = interleave(
                lambda n=n: rate(model, n, chosen.threads, None),  # type: ignore[misc]
                lambda n=n: rate(model, n, chosen.threads, [worker.endpoint]),  # type: ignore[misc]
                chosen.repeats,
            )
            ratios = [theirs / ours for ours, theirs in rates]
            found[f"ratio_{n}"] = median(ratios)
            here, there = median(ours for ours, _ in rates), median(theirs for _, theirs in rates)
            print(f"{n} streams: {here:.1f} tokens/s here, {there:.1f} on a worker: {spread(ratios)}")
    shutil.rmtree(folder)
    if chosen.json:
        chosen.json.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
