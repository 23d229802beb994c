"""What the package loads, and when: the server's extra is nothing that others pay for, or need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("starlette", "uvicorn", "pydantic", "anyio", "openai", "httpx", "httpx2")


@pytest.mark.parametrize(
    "module", ["llama_batch", "llama_batch.cli.app", "llama_batch.server", "llama_batch.openai_shapes"]
)
def test_it_loads_nothing_of_the_servers_extra(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_extra_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.modules['uvicorn'] = None\n"
        "from llama_batch.cli.app import run; sys.exit(run(['serve', '--model', 'sim:']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'llama-batch[server]'" in done.stderr
    assert "Traceback" not in done.stderr
