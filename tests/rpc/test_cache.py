"""The cache of tensors: bounded, its own, and never a file that was cut short."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from llama_batch import RpcError
from llama_batch.rpc.cache import TensorCache

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 11 << 20
pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")


def name_of(data: bytes) -> str:
    """FNV-1a, 64 bits, of one repeated byte string, the slow way only where it must be."""
    total = 0xCBF29CE484222325
    for byte in data:
        total = ((total ^ byte) * 0x100000001B3) & (2**64 - 1)
    return f"{total:016x}"


@pytest.fixture(scope="module")
def tensors() -> list[tuple[str, bytes]]:
    """Three tensors of zeros, which FNV-1a multiplies by its prime for each."""
    prime, modulus = 0x100000001B3, 2**64
    sizes = [SIZE, SIZE + 1, SIZE + 2]
    return [(f"{0xCBF29CE484222325 * pow(prime, n, modulus) % modulus:016x}", bytes(n)) for n in sizes]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TensorCache]:
    cache = TensorCache(tmp_path / "cache", 2 * SIZE + 10, "here:1")
    cache.open()
    yield cache
    cache.close()


def put(cache: TensorCache, name: str, data: bytes, when: int) -> Path:
    path = cache.path / name
    path.write_bytes(data)
    os.utime(path, (when, when))
    return path


def test_the_shortcut_of_these_tests_is_the_hash() -> None:
    assert name_of(bytes(5)) == f"{0xCBF29CE484222325 * pow(0x100000001B3, 5, 2**64) % 2**64:016x}"


def test_a_file_that_was_cut_short_is_dropped_and_whole_ones_stay(
    cache: TensorCache, tensors: list[tuple[str, bytes]]
) -> None:
    whole = put(cache, *tensors[0], when=100)
    put(cache, tensors[1][0], tensors[1][1][:-1], when=200)
    put(cache, tensors[2][0], b"", when=300)
    other = put(cache, "notes.txt", b"not a tensor", when=400)
    cache.tidy()
    assert {path.name for path in cache.path.iterdir()} == {whole.name, other.name, ".lock"}
    assert (cache.info().n_files, cache.info().n_broken, cache.info().size_bytes) == (1, 2, SIZE)


def test_the_least_recently_used_goes_first(cache: TensorCache, tensors: list[tuple[str, bytes]]) -> None:
    paths = [put(cache, name, data, when=100 * at) for at, (name, data) in enumerate(tensors, 1)]
    cache.tidy()
    assert [path.exists() for path in paths] == [False, True, True]
    assert (cache.info().n_evicted, cache.info().n_broken) == (1, 0)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs inotify")
def test_a_hit_is_counted_and_makes_a_tensor_recent(cache: TensorCache, tensors: list[tuple[str, bytes]]) -> None:
    first, second = (put(cache, name, data, when=100 * at) for at, (name, data) in enumerate(tensors[:2], 1))
    cache.tidy()
    first.read_bytes()
    cache.note_uses()
    assert (cache.info().n_hits, cache.info().hit_bytes, cache.info().n_stored) == (1, SIZE, 2)
    third = put(cache, *tensors[2], when=300)
    cache.tidy()
    assert [path.exists() for path in (first, second, third)] == [True, False, True]


def test_a_folder_is_for_one_worker(cache: TensorCache) -> None:
    with pytest.raises(RpcError, match="another worker") as told:
        TensorCache(cache.path, None, "here:2").open()
    assert told.value.reason == "cache"
    cache.close()
    again = TensorCache(cache.path, None, "here:2")
    again.open()
    again.close()
