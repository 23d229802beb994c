"""The build backend: which tools it asks for, where it puts them, and what it records about the CPU."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_batch_build
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, in an environment that names no tool, with a target folder of its own."""
    for name in (
        "CMAKE",
        "LIBCLANG_PATH",
        "BINDGEN_EXTRA_CLANG_ARGS",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CFLAGS",
        "CXXFLAGS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path / "target"))
    monkeypatch.setattr(llama_batch_build, "LIBCLANG_PLACES", (str(tmp_path / "lib" / "libclang.so*"),))
    return llama_batch_build


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], Path]:
    """Puts an executable file on a PATH that holds nothing else but the compiler's folder's stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, content: bytes) -> Path:
        path = folder / name
        path.write_bytes(content)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return put


def make_package(folder: Path, name: str, *, program: str) -> None:
    """A package like the tools' wheels: an importable folder with a program inside."""
    path = folder / name / program
    path.parent.mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('a tool package is never imported')\n")
    path.write_text(name)


CMAKE_NAME = "cmake.exe" if os.name == "nt" else "cmake"


def test_a_bare_system_is_given_cmake_and_libclang(backend: Any, on_path: Callable[[str, bytes], Path]) -> None:
    assert backend.missing_requirements() == ["cmake>=3.28", "libclang>=16"]


def test_tools_of_the_system_are_used_as_they_are(
    backend: Any, on_path: Callable[[str, bytes], Path], tmp_path: Path
) -> None:
    on_path(CMAKE_NAME, b"\x7fELF a real program")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libclang.so.18").touch()
    assert backend.missing_requirements() == []
    assert backend.tool_environment() == {}


def test_a_launcher_of_a_python_environment_is_no_cmake(backend: Any, on_path: Callable[[str, bytes], Path]) -> None:
    on_path(CMAKE_NAME, b"#!/venv/bin/python\nfrom cmake import cmake\n")
    assert backend.lacks_cmake()


def test_a_windows_launcher_with_its_zip_appended_is_no_cmake(
    backend: Any, on_path: Callable[[str, bytes], Path]
) -> None:
    launcher = on_path(CMAKE_NAME, b"MZ launcher")
    with zipfile.ZipFile(launcher, "a") as appended:
        appended.writestr("__main__.py", "from cmake import cmake")
    assert backend.lacks_cmake()


def test_variables_that_name_the_tools_are_obeyed(
    backend: Any, on_path: Callable[[str, bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMAKE", "/opt/cmake")
    monkeypatch.setenv("LIBCLANG_PATH", "/opt/clang")
    assert backend.missing_requirements() == []
    assert backend.tool_environment() == {}


def test_copied_tools_outlive_the_environment_they_came_from(
    backend: Any, on_path: Callable[[str, bytes], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    make_package(first, "cmake", program=f"data/bin/{CMAKE_NAME}")
    make_package(first, "clang", program="native/libclang.so")
    monkeypatch.setattr(sys, "path", [str(first)])
    before = backend.tool_environment()
    shutil.rmtree(first)
    importlib.invalidate_caches()
    assert backend.tool_environment() == before
    assert Path(before["CMAKE"]).read_text() == "cmake"
    assert (Path(before["LIBCLANG_PATH"]) / "libclang.so").read_text() == "clang"
    assert Path(before["CMAKE"]).is_relative_to(tmp_path / "target")


def test_a_tool_that_is_nowhere_is_left_to_the_build_to_report(
    backend: Any, on_path: Callable[[str, bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert backend.tool_environment() == {}


@pytest.mark.skipif(shutil.which("cc") is None, reason="asks the C compiler")
def test_the_libclang_wheel_is_given_the_compilers_headers(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package(tmp_path / "site", "clang", program="native/libclang.so")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    flag, folder = backend.tool_environment()["BINDGEN_EXTRA_CLANG_ARGS"].split(maxsplit=1)
    assert flag == "-isystem"
    assert (Path(folder) / "stddef.h").is_file()


def test_the_tools_folder_is_absolute_whatever_the_variable_says(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", "elsewhere")
    assert backend.tools_folder() == ROOT / "elsewhere" / "build-tools"


def test_cargos_flags_come_from_the_environment_before_the_file(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "target-cpu=native" in backend.rust_flags()
    monkeypatch.setenv("RUSTFLAGS", "-C target-cpu=x86-64-v3")
    assert backend.rust_flags() == ["-C", "target-cpu=x86-64-v3"]
    monkeypatch.setenv("CARGO_ENCODED_RUSTFLAGS", "-C\x1ftarget-cpu=x86-64-v2")
    assert backend.rust_flags() == ["-C", "target-cpu=x86-64-v2"]


def test_a_build_tuned_to_this_machine_records_what_this_cpu_has(backend: Any) -> None:
    assert backend.cpu_features() == sorted(backend._cpu_module().present() or ())


def test_a_build_for_distribution_records_its_baseline_only(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = 'target_arch="x86_64"\ntarget_feature="avx2"\ntarget_feature="fxsr"\ntarget_feature="sse4.1"\n'
    answer = subprocess.CompletedProcess(["rustc"], 0, stdout=told, stderr="")
    monkeypatch.setenv("RUSTFLAGS", "-C target-cpu=x86-64-v3")
    monkeypatch.setattr(backend.subprocess, "run", lambda *_, **__: answer)
    assert backend.cpu_features() == ["avx2", "sse4_1"]


def test_a_baseline_that_every_cpu_of_its_kind_has_records_nothing(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess(
        ["rustc"], 0, stdout='target_arch="aarch64"\ntarget_feature="aes"\n', stderr=""
    )
    monkeypatch.setenv("RUSTFLAGS", "-C target-cpu=generic")
    monkeypatch.setattr(backend.subprocess, "run", lambda *_, **__: answer)
    assert backend.cpu_features() == []


# --- a compiler that gets AMX wrong ---

COMPILER = """#!/bin/sh
printf '%s\\n' '#define __x86_64__ 1' {macros}
"""


def compiler(folder: Path, *macros: str) -> str:
    """A compiler that tells these macros, whatever it is asked."""
    path = folder / "cxx"
    path.write_text(COMPILER.format(macros=" ".join(f"'#define {macro}'" for macro in macros)))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "is_wrong"),
    [
        ((11, 4), True),
        ((11, 5), False),
        ((12, 2), True),
        ((12, 4), False),
        ((13, 2), True),
        ((13, 3), False),
        ((14, 1), False),
    ],
)
def test_amx_is_left_out_where_the_compiler_gets_it_wrong(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], is_wrong: bool
) -> None:
    major, minor = version
    monkeypatch.setenv("CXX", compiler(tmp_path, f"__GNUC__ {major}", f"__GNUC_MINOR__ {minor}", "__AMX_TILE__ 1"))
    monkeypatch.setenv("CC", os.environ["CXX"])
    monkeypatch.setenv("CXXFLAGS", "-O1")
    monkeypatch.delenv("CFLAGS", raising=False)
    wrong = {"CFLAGS": backend.NO_AMX, "CXXFLAGS": f"-O1 {backend.NO_AMX}"}
    assert backend._compiler_flags() == (wrong if is_wrong else {})


def test_amx_is_no_matter_without_it_in_clang_and_in_builds_for_other_machines(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcc = ("__GNUC__ 12", "__GNUC_MINOR__ 2")
    for macros in (gcc, (*gcc, "__AMX_TILE__ 1", "__clang__ 1"), ("__AMX_TILE__ 1",)):
        monkeypatch.setenv("CC", compiler(tmp_path, *macros))
        monkeypatch.setenv("CXX", os.environ["CC"])
        assert backend._compiler_flags() == {}
    monkeypatch.setenv("CC", compiler(tmp_path, *gcc, "__AMX_TILE__ 1"))
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert backend._compiler_flags() == {"CFLAGS": backend.NO_AMX}
    monkeypatch.setenv("RUSTFLAGS", "-C target-cpu=x86-64-v3")
    assert backend._compiler_flags() == {}


def test_what_was_added_is_not_added_again(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, "__GNUC__ 12", "__GNUC_MINOR__ 2", "__AMX_TILE__ 1"))
    monkeypatch.setenv("CXX", os.environ["CC"])
    for name, value in backend._compiler_flags().items():
        monkeypatch.setenv(name, value)
    assert backend._compiler_flags() == {}
