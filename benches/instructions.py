"""Instructions that each sampler takes for a draw: figures that a busy machine does not move.

Each draws four times from rows of SmolLM2's vocabulary under valgrind, which counts what `measured_draw` of
benches/instructions.rs executes. The counts are compared with those of benches/instructions.json, made by the same
compiler:

    python benches/instructions.py            # compare; 1 where one has grown by more than 3 %
    python benches/instructions.py --write    # keep these
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).with_suffix(".json")
N_DRAWS = 4
TOLERANCE = 1.03


def main() -> int:
    """Count, print, and compare or keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the counts")
    write = parser.parse_args().write
    compiler = output("rustc", "--version").strip()
    program = build()
    counts = {name: count(program, name) for name in output(program).splitlines()}
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"compiler": None, "counts": {}}
    comparable = kept["compiler"] == compiler
    print(f"{compiler}\n\n| sampler | instructions a draw | before |\n|---|---|---|")
    grown = []
    for name, n in counts.items():
        before = kept["counts"].get(name) if comparable else None
        print(f"| {name} | {n:,} | {'' if before is None else f'{n / before:.3f}'} |")
        if before is not None and n > before * TOLERANCE:
            grown.append(name)
    if write:
        KEPT.write_text(json.dumps({"compiler": compiler, "counts": counts}, indent=1) + "\n")
    elif not comparable:
        print(f"\nnothing to compare with: the kept counts are of {kept['compiler']}")
    for name in grown:
        print(f"{name} takes more instructions than it did")
    return int(bool(grown) and not write)


def build() -> str:
    """The program, built as benchmarks are, without Python and llama.cpp."""
    command = ("cargo", "bench", "--locked", "--no-run", "--no-default-features", "--bench", "instructions")
    messages = map(json.loads, output(*command, "--message-format=json").splitlines())
    made = [message["executable"] for message in messages if message["reason"] == "compiler-artifact"]
    return str(next(path for path in reversed(made) if path))


def count(program: str, name: str) -> int:
    """Instructions of one draw."""
    with tempfile.NamedTemporaryFile() as out:
        options = ("--tool=callgrind", "--toggle-collect=*measured_draw*", f"--callgrind-out-file={out.name}")
        output("valgrind", *options, program, name)
        total = re.search(r"^(?:summary|totals): (\d+)", Path(out.name).read_text(), re.MULTILINE)
    if total is None:
        raise SystemExit(f"valgrind counted nothing for {name}")
    return int(total[1]) // N_DRAWS


def output(*command: str) -> str:
    """What a command prints; its failure ends this."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
