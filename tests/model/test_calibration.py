"""What is measured of a model at its load, what is kept of it, and what it is good for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Engine

if TYPE_CHECKING:
    from pathlib import Path

# However slow the machine is at the moment, all of it is measured.
SIZES: dict[str, Any] = {"n_parallel": 2, "n_ctx": 512, "calibrate_s": 3600}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is kept."""
    monkeypatch.setenv("LLAMA_BATCH_CACHE", str(tmp_path))
    return tmp_path / "calibration"


def test_what_is_measured_is_chosen_from_kept_and_read_at_the_next_load(smollm2: Path, notes: Path) -> None:
    with Engine(smollm2, calibrate="auto", **SIZES) as engine:
        found = engine.calibration
        assert engine.generate("The capital of France is", max_tokens=3, temp=0).result().text.startswith(" Paris")
    assert found is not None
    assert not found.is_noted
    assert (found.n_rows, found.n_context) == (2, 256)
    assert found.chosen in found.measured
    settings = [(each.flash_attn, each.kv_unified) for each in found.measured]
    assert settings[0] == (True, True)
    assert len(settings) == len(set(settings)) >= 2
    assert all(each.decode_tokens_per_s > 0 and each.n_threads > 0 for each in found.measured)
    with Engine(smollm2, calibrate="auto", **SIZES) as engine:
        again = engine.calibration
    assert again is not None
    assert again.is_noted
    assert (again.measured, again.chosen, again.reason) == (found.measured, found.chosen, found.reason)
    # Of another load nothing is known yet.
    with Engine(smollm2, calibrate="auto", **{**SIZES, "n_parallel": 3}) as engine:
        assert engine.calibration is not None
        assert not engine.calibration.is_noted
    (note,) = [path for path in notes.iterdir() if json.loads(path.read_text())["shape"]["n_rows"] == 2]
    note.write_text("{")
    with Engine(smollm2, calibrate="auto", **SIZES) as engine:
        assert engine.calibration is not None
        assert not engine.calibration.is_noted


def test_each_setting_answers_and_a_stream_of_its_own_holds_all_of_the_context(smollm2: Path, notes: Path) -> None:
    with Engine(smollm2, calibrate="force", **SIZES) as engine:
        found = engine.calibration
        assert found is not None
        assert len(found.measured) == 3
        # Whichever was chosen, one request may have all of n_ctx.
        done = engine.generate("Once upon a time", max_tokens=450, ignore_eos=True).result()
        assert done.finish_reason == "max_tokens"
    assert notes.is_dir()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"calibrate": "off"}, None),
        ({"flash_attn": "on", "kv_unified": True}, None),
        ({"isolate": True}, None),
        ({"kv_unified": True}, {(True, True), (False, True)}),
        ({"kv_unified": False}, {(True, False), (False, False)}),
        ({"flash_attn": "off"}, {(False, True), (False, False)}),
        ({"type_v": "q8_0", "kv_unified": True}, None),
    ],
)
def test_what_the_options_say_is_not_measured(
    smollm2: Path, notes: Path, options: dict[str, Any], settings: set[tuple[bool, bool]] | None
) -> None:
    with Engine(smollm2, **{"calibrate": "force", **SIZES, **options}) as engine:
        found = engine.calibration
        assert engine.generate("Hello", max_tokens=2).result().token_ids
    measured = None if found is None else {(each.flash_attn, each.kv_unified) for each in found.measured}
    assert measured == settings
    assert found is None or notes.is_dir()


def test_tune_explains_the_choice_in_a_table_and_a_picture(smollm2: Path, notes: Path) -> None:
    words = [sys.executable, "-m", "llama_batch.cli", "tune", str(smollm2), "--n-parallel", "2", "--n-ctx", "512"]
    words += ["--calibrate-s", "3600"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("2 requests at 256 tokens each, measured in ")
    assert "->" in done.stdout
    assert "█" in done.stdout
    assert "Chosen: flash attention " in done.stdout
    told = json.loads(
        subprocess.run([*words, "--json"], capture_output=True, text=True, check=True, timeout=120).stdout
    )
    assert told["chosen"] in told["measured"]
    assert notes.is_dir()
