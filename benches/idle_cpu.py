"""What an engine takes of the processor while nobody asks it anything: CPU time over time, once it has answered.

python benches/idle_cpu.py --model model.gguf
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from llama_batch import Engine
from shaped import source_of

BUDGET = 0.001
"""A thousandth of a core: what the clock itself and a sleeping interpreter take is less."""


def main() -> int:
    """Measure, and print the share.

    Returns:
        1 where it is over its budget.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="path, URI, shaped:1B or sim:; default: SmolLM2")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to look (default: 10)")
    parser.add_argument("--json", type=Path, default=None, help="write the figure here")
    chosen = parser.parse_args()
    with Engine(source_of(chosen.model), n_ctx=2048) as engine:
        engine.generate("Once upon a time", max_tokens=8).result()
        time.sleep(1.0)  # what is saved in idle moments is no idling
        cpu, begun = time.process_time(), time.perf_counter()
        time.sleep(chosen.seconds)
        share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    missed = share > BUDGET
    print(f"an idle engine takes {share:.3%} of a core, budget {BUDGET:.1%}" + (", missed" if missed else ""))
    if chosen.json:
        chosen.json.write_text(json.dumps({"share": share, "budget": BUDGET, "missed": missed}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
