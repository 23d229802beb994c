"""What the docs say of other projects' arguments is what the code does with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_docs_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_compat.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
