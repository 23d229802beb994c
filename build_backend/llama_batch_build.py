"""The PEP 517 build backend: maturin, plus the tools that building llama.cpp takes and a machine may lack.

llama.cpp is built by cmake, and its Rust bindings are generated with libclang. Where the system has neither, their
PyPI wheels are build requirements. They are copied to a stable folder before they are used: pip makes a new temporary
environment for each build, and cmake writes its own path into its cache, so that a second build would look for a cmake
that is gone.

Run as a program it prints the same environment for a shell, so that `cargo test` and the wheel share one build:

    eval "$(python build_backend/llama_batch_build.py)"
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CMAKE_REQUIREMENT = "cmake>=3.28"
LIBCLANG_REQUIREMENT = "libclang>=16"
LIBCLANG_PLACES = (
    "/usr/lib/llvm-*/lib/libclang.so*",
    "/usr/lib/llvm-*/lib/libclang-[0-9]*.so*",
    "/usr/lib/*/libclang.so*",
    "/usr/lib/*/libclang-[0-9]*.so*",
    "/usr/lib64/libclang.so*",
    "/usr/local/opt/llvm/lib/libclang.dylib",
    "/opt/homebrew/opt/llvm/lib/libclang.dylib",
    "/Library/Developer/CommandLineTools/usr/lib/libclang.dylib",
    "/Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib",
    "C:/Program Files/LLVM/bin/libclang.dll",
)


def tools_folder() -> Path:
    """Where copied tools live: inside cargo's target folder, as long-lived as the build that remembers their path."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "build-tools"


def lacks_cmake() -> bool:
    """Whether neither the environment nor PATH names a cmake."""
    return not os.environ.get("CMAKE") and shutil.which("cmake") is None


def lacks_libclang() -> bool:
    """Whether no libclang is where bindgen would look for it."""
    if os.environ.get("LIBCLANG_PATH"):
        return False
    return not any(glob.glob(place) for place in LIBCLANG_PLACES)


def missing_requirements() -> list[str]:
    """The PyPI packages that stand in for what this system lacks."""
    needed = [(lacks_cmake, CMAKE_REQUIREMENT), (lacks_libclang, LIBCLANG_REQUIREMENT)]
    return [requirement for lacks, requirement in needed if lacks()]


def _package_folder(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _stable_copy(module: str) -> Path | None:
    """Copy an importable tool package to the stable folder, once, and return the copy."""
    stable = tools_folder() / module
    if stable.is_dir():
        return stable
    package = _package_folder(module)
    if package is None:
        return None
    stable.parent.mkdir(parents=True, exist_ok=True)
    scratch = stable.with_name(f"{module}.{os.getpid()}")
    shutil.copytree(package, scratch, symlinks=True)
    try:
        scratch.rename(stable)
    except OSError:  # another build was faster
        shutil.rmtree(scratch, ignore_errors=True)
    return stable


def _compiler_includes() -> str | None:
    """The compiler's own headers, which the libclang wheel does not carry (`stddef.h` and its kin)."""
    compiler = os.environ.get("CC", "cc")
    try:
        found = subprocess.run(
            [*shlex.split(compiler), "-print-file-name=include"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return found if os.path.isdir(found) else None


def tool_environment() -> dict[str, str]:
    """The variables that point cargo's build scripts at the copied tools; empty where the system has its own."""
    found: dict[str, str] = {}
    if lacks_cmake():
        cmake = _stable_copy("cmake")
        if cmake is not None:
            found["CMAKE"] = str(cmake / "data" / "bin" / ("cmake.exe" if os.name == "nt" else "cmake"))
    if lacks_libclang():
        clang = _stable_copy("clang")
        if clang is not None:
            found["LIBCLANG_PATH"] = str(clang / "native")
            includes = _compiler_includes()
            if includes and not os.environ.get("BINDGEN_EXTRA_CLANG_ARGS"):
                found["BINDGEN_EXTRA_CLANG_ARGS"] = f"-isystem {includes}"
    return found


def _maturin() -> Any:
    import maturin  # noqa: PLC0415 - the shell mode below runs without it

    return maturin


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return [*_maturin().get_requires_for_build_wheel(config_settings), *missing_requirements()]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return [*_maturin().get_requires_for_build_editable(config_settings), *missing_requirements()]


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    required: list[str] = _maturin().get_requires_for_build_sdist(config_settings)
    return required


def prepare_metadata_for_build_wheel(folder: str, config_settings: Mapping[str, Any] | None = None) -> str:
    name: str = _maturin().prepare_metadata_for_build_wheel(folder, config_settings)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    folder: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    os.environ.update(tool_environment())
    name: str = _maturin().build_wheel(folder, config_settings, metadata_directory)
    return name


def build_editable(
    folder: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    os.environ.update(tool_environment())
    name: str = _maturin().build_editable(folder, config_settings, metadata_directory)
    return name


def build_sdist(folder: str, config_settings: Mapping[str, Any] | None = None) -> str:
    name: str = _maturin().build_sdist(folder, config_settings)
    return name


def main() -> None:
    """Bring the missing tools into the stable folder and print the environment as shell exports."""
    wanted = {CMAKE_REQUIREMENT: "cmake", LIBCLANG_REQUIREMENT: "clang"}
    absent = [
        requirement
        for requirement in missing_requirements()
        if not (tools_folder() / wanted[requirement]).is_dir() and _package_folder(wanted[requirement]) is None
    ]
    if absent:
        scratch = tools_folder() / f"pip.{os.getpid()}"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(scratch), *absent]
        subprocess.run(install, check=True, stdout=sys.stderr)
        sys.path.insert(0, str(scratch))
        importlib.invalidate_caches()
        environment = tool_environment()
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        environment = tool_environment()
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
