"""The PEP 517 build backend: maturin, plus what building llama.cpp takes and what the built package must remember.

llama.cpp is built by cmake, and its Rust bindings are generated with libclang. Where the system has neither, their
PyPI wheels are build requirements. They are copied to a stable folder before they are used: pip makes a new temporary
environment for each build, and cmake writes its own path into its cache, so that a second build would look for a cmake
that is gone.

The instruction sets that a build takes for granted are written into the package (`cpu-features.txt`), so that
`llama_batch._cpu` can refuse a CPU that lacks them instead of letting the extension module die of SIGILL.

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
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CMAKE_REQUIREMENT = "cmake>=3.28"
LIBCLANG_REQUIREMENT = "libclang>=16"
PACKAGES = {CMAKE_REQUIREMENT: "cmake", LIBCLANG_REQUIREMENT: "clang"}
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

NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# rustc's names of x86 instruction sets, where /proc/cpuinfo has another one.
LINUX_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "sha": "sha_ni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
}


# --- cmake and libclang ---


def tools_folder() -> Path:
    """Where copied tools live: inside cargo's target folder, as long-lived as the build that remembers their path."""
    return (ROOT / os.environ.get("CARGO_TARGET_DIR", "target")).absolute() / "build-tools"


def _is_native(program: Path) -> bool:
    """Whether a program is no launcher of a Python environment, which pip's isolated build would stop from working."""
    with program.open("rb") as head:
        return head.read(2) != b"#!" and not zipfile.is_zipfile(program)


def lacks_cmake() -> bool:
    """Whether neither the environment nor PATH names a cmake of the system."""
    if os.environ.get("CMAKE"):
        return False
    name = "cmake.exe" if os.name == "nt" else "cmake"
    candidates = [Path(folder) / name for folder in os.get_exec_path()]
    return not any(os.access(path, os.X_OK) and path.is_file() and _is_native(path) for path in candidates)


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


def _miscompiles_amx(compiler: str) -> bool:
    """Whether a compiler would use AMX here and get it wrong.

    GCC before 11.5, 12.4 and 13.3 leaves most of the tiles' configuration out (PR 114098): the first product of
    matrices then ends the process. Where AMX was compiled in all the same, `lb_amx_is_broken` of the shim gives it up,
    and the other kernels that lay weights out in their own way with it.
    """
    try:
        told = subprocess.run(
            [*shlex.split(compiler), "-march=native", "-dM", "-E", "-x", "c", os.devnull],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return False
    macros = dict(line.split(maxsplit=2)[1:] for line in told.splitlines() if len(line.split(maxsplit=2)) == 3)
    if "__AMX_TILE__" not in macros or "__clang__" in macros or "__GNUC__" not in macros:
        return False
    version = int(macros["__GNUC__"]), int(macros["__GNUC_MINOR__"])
    return version < (13, 3) and not any(fixed <= version < (fixed[0] + 1, 0) for fixed in ((11, 5), (12, 4)))


def _compiler_flags() -> dict[str, str]:
    """What keeps a native build from kernels that this compiler gets wrong."""
    if not any(flag.endswith("target-cpu=native") for flag in rust_flags()):
        return {}
    found = {}
    for program, default, name in (("CC", "cc", "CFLAGS"), ("CXX", "c++", "CXXFLAGS")):
        if _miscompiles_amx(os.environ.get(program, default)) and NO_AMX not in os.environ.get(name, ""):
            found[name] = f"{os.environ.get(name, '')} {NO_AMX}".strip()
    return found


def tool_environment() -> dict[str, str]:
    """The variables that point cargo's build scripts at the copied tools, and keep them from a compiler's mistakes.

    Empty where the system has all that it takes, and makes none.
    """
    found = _compiler_flags()
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
                found["BINDGEN_EXTRA_CLANG_ARGS"] = shlex.join(["-isystem", includes])
    return found


# --- the instruction sets that a build takes for granted ---


def rust_flags() -> list[str]:
    """The flags that cargo gives rustc, found where cargo looks: the environment, else `.cargo/config.toml`."""
    if "CARGO_ENCODED_RUSTFLAGS" in os.environ:
        return [flag for flag in os.environ["CARGO_ENCODED_RUSTFLAGS"].split("\x1f") if flag]
    if "RUSTFLAGS" in os.environ:
        return os.environ["RUSTFLAGS"].split()
    config = tomllib.loads((ROOT / ".cargo" / "config.toml").read_text(encoding="utf-8"))
    flags: list[str] = config["build"]["rustflags"]
    return flags


def _cpu_module() -> ModuleType:
    path = ROOT / "python" / "llama_batch" / "_cpu.py"
    spec = importlib.util.spec_from_file_location("llama_batch_cpu", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cpu_features() -> list[str]:
    """What the build takes for granted: all that this CPU has where it is tuned to it, else what the flags turn on."""
    flags = rust_flags()
    if any(flag.endswith("target-cpu=native") for flag in flags):
        return sorted(_cpu_module().present() or ())
    told = subprocess.run(["rustc", "--print", "cfg", *flags], capture_output=True, text=True, check=True).stdout
    named = [line.split('"')[1] for line in told.splitlines() if line.startswith('target_feature="')]
    if not any(line == 'target_arch="x86_64"' for line in told.splitlines()):
        return []  # the baseline of other architectures is what every such CPU has
    return sorted({LINUX_NAMES.get(name, name) for name in named} & _cpu_module().X86_INSTRUCTION_SETS)


def prepare_build() -> None:
    """What precedes a build: the tools on their stable paths, and the record for the import-time check."""
    os.environ.update(tool_environment())
    _cpu_module().RECORD.write_text("\n".join(cpu_features()) + "\n", encoding="ascii")


# --- the hooks of PEP 517 and PEP 660 ---


def _maturin() -> Any:
    import maturin  # the shell mode below runs without it

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
    prepare_build()
    name: str = _maturin().build_wheel(folder, config_settings, metadata_directory)
    return name


def build_editable(
    folder: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    prepare_build()
    name: str = _maturin().build_editable(folder, config_settings, metadata_directory)
    return name


def build_sdist(folder: str, config_settings: Mapping[str, Any] | None = None) -> str:
    name: str = _maturin().build_sdist(folder, config_settings)
    return name


# --- the shell mode ---


def _install_tools(absent: list[str]) -> None:
    """Install tool packages into a scratch folder, and copy them from there to the stable one."""
    scratch = tools_folder() / f"pip.{os.getpid()}"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(scratch), *absent]
    subprocess.run(install, check=True, stdout=sys.stderr)
    sys.path.insert(0, str(scratch))
    importlib.invalidate_caches()
    for requirement in absent:
        _stable_copy(PACKAGES[requirement])
    sys.path.remove(str(scratch))
    shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Bring the missing tools into the stable folder and print the environment as shell exports."""
    absent = [
        requirement
        for requirement in missing_requirements()
        if not (tools_folder() / PACKAGES[requirement]).is_dir() and _package_folder(PACKAGES[requirement]) is None
    ]
    if absent:
        _install_tools(absent)
    for name, value in tool_environment().items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
