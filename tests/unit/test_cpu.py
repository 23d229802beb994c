"""The import-time check: a CPU that the build was not made for gets an error that says so, never SIGILL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_batch import _cpu


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with a record that each test writes for itself."""
    monkeypatch.setattr(_cpu, "RECORD", tmp_path / "cpu-features.txt")
    return _cpu


def test_a_build_that_recorded_nothing_runs_anywhere(cpu: Any) -> None:
    assert cpu.required() == frozenset()
    cpu.check()


def test_a_cpu_with_all_that_the_build_needs_passes(cpu: Any) -> None:
    cpu.RECORD.write_text("\n".join(cpu.present() or ()))
    cpu.check()


def test_a_missing_instruction_set_is_named_with_the_way_out(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "known", lambda: frozenset({"avx2", "fma", "avx512f"}))
    monkeypatch.setattr(cpu, "present", lambda: frozenset({"avx2"}))
    cpu.RECORD.write_text("avx2\navx512f\nfma\n")
    with pytest.raises(ImportError, match=r"avx512f, fma.*pip install --force-reinstall"):
        cpu.check()


def test_a_system_that_cannot_tell_is_not_refused(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "present", lambda: None)
    cpu.RECORD.write_text("avx2\n")
    cpu.check()


def test_what_a_system_has_no_name_for_is_not_missed(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "known", lambda: frozenset({"avx2"}))
    assert cpu.missing(frozenset({"avx2", "gfni"}), frozenset()) == ["avx2"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_linux_tells_its_instruction_sets(cpu: Any) -> None:
    found = cpu.present()
    assert found is not None
    assert found & {"sse4_2", "asimd"}
    assert found <= cpu.known()


def test_importing_the_package_checks_before_the_extension_module_is_loaded(tmp_path: Path) -> None:
    package = tmp_path / "llama_batch"
    package.mkdir()
    for source in Path(_cpu.__file__).parent.glob("*.py"):
        (package / source.name).write_text(source.read_text())
    (package / "cpu-features.txt").write_text("avx512f amx_tile sve2 sme2")
    (package / "_core.py").write_text("raise SystemExit('the extension module was loaded before the check')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import llama_batch"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert "this build of llama_batch needs a CPU with" in done.stderr
