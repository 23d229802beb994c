"""Models of Hugging Face, against a stand-in for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_batch.errors import ModelNotFoundError
from llama_batch.models import Progress, list_models, remove_model, resolve, verify_model
from llama_batch.models.hub import choose
from llama_batch.models.uri import HubSource
from model_servers import GGUF, Hub, sha256

NAMES = ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ4_XS.gguf", "mmproj-m-Q4_K_M.gguf"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no settings of the machine that runs the tests."""
    for name in [name for name in os.environ if name.startswith(("LLAMA_BATCH_", "HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LLAMA_BATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one repository of three quantisations and a projector."""
    pytest.importorskip("huggingface_hub")
    server = Hub()
    server.repos["o/r"] = {name: GGUF + name.encode() for name in NAMES}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("q8_0", "m-Q8_0.gguf"),
        ("IQ4_XS", "m-IQ4_XS.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
    ],
)
def test_the_quantisation_is_chosen_as_llama_server_does(quant: str | None, name: str) -> None:
    assert choose(NAMES, HubSource("o/r", quant)) == [name]


def test_without_the_default_quantisation_the_first_file_is_taken() -> None:
    assert choose(["b-Q6_K.gguf", "a-Q8_0.gguf", "mmproj.gguf"], HubSource("o/r", None)) == ["a-Q8_0.gguf"]


@pytest.mark.parametrize("quant", ["Q4_K", "Q4_XS", "Q2_K", "x.gguf"])
def test_a_quantisation_that_is_not_there_lists_those_that_are(quant: str) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"no {quant}; it has m-IQ4_XS.gguf, m-Q4_K_M.gguf, m-Q8_0.gguf"):
        choose(NAMES, HubSource("o/r", quant))


def test_all_shards_are_taken_and_a_missing_one_is_noticed() -> None:
    shards = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert choose(reversed(shards), HubSource("o/r", None)) == shards
    with pytest.raises(ModelNotFoundError, match=r"lacks parts of the model: .*00002"):
        choose([shards[0], shards[2]], HubSource("o/r", "Q4_K_M"))


def test_names_that_lead_out_are_never_taken() -> None:
    with pytest.raises(ModelNotFoundError, match="no GGUF file"):
        choose(["../m-Q4_K_M.gguf", "/m.gguf"], HubSource("o/r", None))


def test_a_model_is_fetched_and_then_found_without_the_network(hub: Hub) -> None:
    seen: list[Progress] = []
    path = resolve("hf:o/r", progress=seen.append)
    assert path.read_bytes() == GGUF + b"m-Q4_K_M.gguf"
    assert [r.n_bytes for r in seen if r.stage == "downloading"][-1] == path.stat().st_size
    asked = len(hub.requests)
    hub.close()
    assert resolve("hf:o/r") == path
    assert resolve("hf:o/r:Q4_K_M", offline=True) == path
    assert len(hub.requests) == asked


def test_all_shards_are_fetched(hub: Hub) -> None:
    names = [f"s-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repos["o/s"] = {name: GGUF + name.encode() for name in names}
    path = resolve("hf:o/s:Q8_0")
    assert path.name == names[0]
    assert (path.parent / names[1]).read_bytes() == GGUF + names[1].encode()
    (model,) = list_models()
    assert model.size == sum(len(data) for data in hub.repos["o/s"].values())


def test_what_another_program_has_fetched_is_found(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    path = hf_hub_download("o/r", "m-Q8_0.gguf", endpoint=hub.url, cache_dir=os.environ["HF_HUB_CACHE"])
    hub.close()
    assert resolve("hf:o/r:Q8_0") == Path(path)
    assert resolve("hf:o/r", offline=True) == Path(path)


def test_the_default_quantisation_is_fetched_though_another_is_here(hub: Hub) -> None:
    resolve("hf:o/r:Q8_0")
    assert resolve("hf:o/r").name == "m-Q4_K_M.gguf"


def test_a_damaged_download_is_refused_and_can_be_repeated(hub: Hub) -> None:
    hub.hashes["m-Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(ModelNotFoundError, match="came damaged"):
        resolve("hf:o/r")
    assert list_models() == []
    hub.hashes.clear()
    assert resolve("hf:o/r").read_bytes() == GGUF + b"m-Q4_K_M.gguf"


def test_a_callback_that_raises_ends_the_download(hub: Hub) -> None:
    def give_up(progress: Progress) -> None:
        raise InterruptedError("enough")

    with pytest.raises(ModelNotFoundError, match="enough"):
        resolve("hf:o/r", progress=give_up)
    assert list_models() == []
    assert resolve("hf:o/r").is_file()


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "does not exist, or is private"),
        (403, {"X-Error-Code": "GatedRepo"}, "is gated"),
        (418, {}, "answers 418"),
    ],
)
def test_what_the_server_refuses_is_explained(hub: Hub, status: int, headers: dict[str, str], message: str) -> None:
    hub.refuse = (status, headers)
    with pytest.raises(ModelNotFoundError, match=message):
        resolve("hf:o/r")


def test_a_hub_that_is_down_is_named(hub: Hub) -> None:
    hub.close()
    with pytest.raises(ModelNotFoundError, match="check the network"):
        resolve("hf:o/r")


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve("hf:o/r", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve("hf:o/r")
    assert hub.requests == []


def test_without_huggingface_hub_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFoundError, match=r"pip install 'llama-batch\[hub\]'"):
        resolve("hf:o/r")


def test_a_model_of_the_hub_is_verified_and_removed(hub: Hub, cache: Path) -> None:
    path = resolve("hf:o/r:Q8_0")
    assert verify_model("hf:o/r:Q8_0").sha256 == sha256(path.read_bytes())
    size = path.stat().st_size
    assert remove_model("hf:o/r:Q8_0") == size
    assert not path.exists()
    assert list_models() == []
    assert not [file for file in (cache / "hub").rglob("*") if file.is_file() and file.stat().st_size == size]
