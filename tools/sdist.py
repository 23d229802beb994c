"""Make a source distribution and check that it holds all that a build needs, and nothing that one leaves behind.

python tools/sdist.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = {
    ".cargo/config.toml",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "build.rs",
    "build_backend/llama_batch_build.py",
    "pyproject.toml",
    "python/llama_batch/__init__.py",
    "python/llama_batch/_core.pyi",
    "python/llama_batch/_cpu.py",
    "python/llama_batch/py.typed",
    "shim/llama_shim.cpp",
    "src/lib.rs",
}
LEFT_BEHIND = (".so", ".pyd", ".pyc", ".gguf", "cpu-features.txt")


def contents(archive: Path) -> set[str]:
    """The paths in a source distribution, without its top folder."""
    with tarfile.open(archive) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def problems(held: set[str]) -> list[str]:
    """What is missing from a source distribution, or should not be in it."""
    missing = [f"missing: {name}" for name in sorted(NEEDED - held)]
    return missing + [f"left behind by a build: {name}" for name in sorted(held) if name.endswith(LEFT_BEHIND)]


def main(folder: Path) -> int:
    """Build into a folder, and check the result."""
    folder.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    found = problems(contents(max(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)))
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
