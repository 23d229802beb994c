"""What is generated is up to date, and what is typed by hand agrees with the extension module."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from llama_batch import EMBED_OPTIONS, REQUEST_OPTIONS, START_OPTIONS, Engine, _core
from llama_batch._options import EmbedOptions, RequestOptions, StartOptions

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_options.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


METHODS = ["generate", "stream", "chat", "chat_completion", "stream_chat_completion", "map", "embed"]


@pytest.mark.parametrize("method", METHODS)
def test_each_method_spells_out_every_request_option(method: str) -> None:
    parameters = inspect.signature(getattr(Engine, method)).parameters
    for name, spec in (EMBED_OPTIONS if method == "embed" else REQUEST_OPTIONS).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == spec.default
        assert set(spec.aliases) <= set(parameters)


def test_the_engine_spells_out_every_start_option() -> None:
    parameters = inspect.signature(Engine).parameters
    assert all(parameters[name].default == spec.default for name, spec in START_OPTIONS.items())
    assert set(StartOptions.__annotations__) == set(START_OPTIONS)
    assert set(RequestOptions.__annotations__) == set(REQUEST_OPTIONS)
    assert set(EmbedOptions.__annotations__) == set(EMBED_OPTIONS)


def test_the_tables_are_those_of_rust() -> None:
    tables = _core.option_tables()
    assert [row["name"] for row in tables["start"]] == list(START_OPTIONS)
    assert [row["name"] for row in tables["request"]] == list(REQUEST_OPTIONS)
    assert [row["name"] for row in tables["embed"]] == list(EMBED_OPTIONS)


def test_a_type_checker_refuses_what_the_runtime_refuses(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "use.py"
    file.write_text(
        "import asyncio\n"
        "from llama_batch import Completion, Embeddings, Engine, LlamaBatchError\n"
        "engine = Engine('sim:', n_parallel=2, temperature=0.5)\n"
        "done: Completion = engine.generate('x', max_tokens=5, temperature=0).result()\n"
        "one: Completion = next(engine.map(['x']))\n"
        "either: Completion | LlamaBatchError = next(engine.map(['x'], on_error='return'))\n"
        "async def main() -> Completion:\n"
        "    async for chunk in engine.stream([1, 2]):\n"
        "        print(chunk.upper(), chunk.index, chunk.token_ids)\n"
        "    gathered: list[Completion] = await asyncio.gather(*(engine.generate(p) for p in 'abc'))\n"
        "    task = asyncio.create_task(engine.generate('x'))\n"
        "    again: Completion = await task\n"
        "    print(gathered, again)\n"
        "    return await engine.chat([{'role': 'user', 'content': 'x'}])\n"
        "vectors: Embeddings = engine.embed(['x', 'y'], pooling='mean', normalize=3).result()\n"
        "first: float = vectors.vectors[0][0]\n"
        "engine.embed([[1, 2], [3]], normalize='none', embd_normalize=None)\n"
        "engine.embed('x', pooling='rank')  # error\n"
        "engine.embed('x', max_tokens=5)  # error\n"
        "engine.generate('x', max_tokns=5)  # error\n"
        "engine.generate('x', max_tokens='5')  # error\n"
        "Engine('sim:', flash_attn='maybe')  # error\n"
        "wrong: Completion = next(engine.map(['x'], on_error='return'))  # error\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "python")
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(file)) and "error:" in line]
    expected = [i for i, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# error")]
    assert [int(line.removeprefix(str(file)).split(":")[1]) for line in lines] == expected, done.stdout


def test_the_stub_is_the_extension_module() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "llama_batch._core", "--mypy-config-file", "pyproject.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
