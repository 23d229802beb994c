"""`llama-batch models`, `llama-batch info` and `--version`."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from llama_batch.cli.app import run
from llama_batch.models import cache
from tiny_gguf import LLAMA, make_gguf

if TYPE_CHECKING:
    from pathlib import Path

URI = "pypi:tiny==1.0#tiny.gguf"


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one model, and nothing else within reach."""
    monkeypatch.setenv("LLAMA_BATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LLAMA_BATCH_OFFLINE", "1")
    path: Path = cache.root() / "models" / "pypi" / "tiny" / "1.0" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(make_gguf(LLAMA, {"a": (64, 10), "b": (3,)}))
    file = cache.describe_file(path, path.parent, cache.sha256_of(path))
    cache.write_record(path.with_name("tiny.gguf.json"), cache.Record(URI, (file,), 0.0, ("tiny.gguf",)))
    return path


def test_the_cache_is_listed_verified_and_emptied(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert run(["models", "list"]) == 0
    line = f"{URI}\t{cached.stat().st_size}\t{cached}\n"
    assert capsys.readouterr().out == line * 2
    assert run(["models", "path", "pypi:tiny"]) == 0
    assert run(["models", "download", "pypi:tiny"]) == 0
    assert capsys.readouterr().out == f"{cached}\n" * 2
    assert run(["models", "verify", "pypi:tiny"]) == 0
    assert "whole, sha256 " in capsys.readouterr().out
    assert run(["models", "remove", "pypi:tiny"]) == 0
    assert not cached.exists()
    assert run(["models", "remove", "pypi:tiny"]) == 3
    assert capsys.readouterr().err == "llama-batch: pypi:tiny is not in the cache\n"


def test_an_empty_cache_is_told(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "remove", "pypi:tiny"]) == 0
    capsys.readouterr()
    assert run(["models"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llama-batch: the cache is empty; `llama-batch models download` fetches pypi:")


def test_a_damaged_model_is_code_3(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached.write_bytes(b"x" * cached.stat().st_size)
    assert run(["models", "verify", "pypi:tiny"]) == 3
    assert "damaged" in capsys.readouterr().err


def test_a_model_that_is_not_here_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "path", "pypi:other"]) == 3
    assert "offline" in capsys.readouterr().err


def test_info_tells_what_a_model_is(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(cached)]) == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert rows["name"] == "Tiny"
    assert rows["architecture"] == "llama"
    assert rows["vocabulary"] == "1,000 tokens"
    assert rows["context"] == "2,048 tokens"
    assert rows["chat template"] == "yes"


def test_info_estimates_memory_from_the_models_shape(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "pypi:tiny", "--json", "--n-ctx", "100"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_params"] == 643
    assert facts["size_bytes"] == cached.stat().st_size
    assert facts["kv_cache_bytes"] == 2 * 100 * 2 * (8 + 8) * 2  # layers, cells, heads, key and value, f16
    assert facts["memory_bytes"] > facts["size_bytes"] + facts["kv_cache_bytes"]


def test_info_counts_heads_of_each_layer_and_all_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {**LLAMA, "llama.attention.head_count_kv": [1, 3], "llama.attention.key_length": 16}
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(make_gguf(shape, {"a": (10,)}))
    second.write_bytes(make_gguf({"general.architecture": "llama"}, {"b": (7,)}))
    assert run(["info", str(first), "--json", "--n-ctx", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kv_cache_bytes"] == (1 + 3) * (16 + 8) * 2
    assert facts["n_params"] == 17
    assert facts["size_bytes"] == first.stat().st_size + second.stat().st_size


def test_a_context_that_is_no_number_is_code_2(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(cached), "--n-ctx", "abc"]) == 2
    assert "'abc' is not a whole number" in capsys.readouterr().err
    assert run(["info", str(cached), "--n-ctx", "0"]) == 2
    assert "0 is less than 1" in capsys.readouterr().err


def test_info_says_only_what_the_file_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(make_gguf({"general.architecture": "mamba", "x": [[1, 2], [3]], "y": True, "z": 0.5}, {}))
    assert run(["info", str(path), "--all"]) == 0
    out = capsys.readouterr().out
    assert "chat template\tno" in out
    assert "memory" not in out
    assert "x\t[[1, 2], [3]]" in out


@pytest.mark.parametrize("n_bytes", [4, 10, 24, 30, 200, 5000])
def test_a_file_that_is_cut_short_is_code_3(cached: Path, capsys: pytest.CaptureFixture[str], n_bytes: int) -> None:
    cached.write_bytes(cached.read_bytes()[:n_bytes])
    assert run(["info", str(cached)]) == 3
    assert "cut short or damaged" in capsys.readouterr().err


def test_lengths_that_lie_are_damage_and_take_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    for body in (
        struct.pack("<IQQ", 3, 0, 1 << 60),
        struct.pack("<IQQ", 3, 1 << 60, 0),
        struct.pack("<IQQQ", 3, 0, 1, 1 << 62),
        struct.pack("<IQQ", 9, 0, 0),
    ):
        path.write_bytes(b"GGUF" + body + bytes(100))
        assert run(["info", str(path)]) == 3
    path.write_bytes(b"PK\3\4")
    assert run(["info", str(path)]) == 3
    path.write_bytes(b"")
    assert run(["info", str(path)]) == 3
    assert capsys.readouterr().err.count("\n") == 6
