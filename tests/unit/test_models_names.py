"""What a model's name may be, and what files of the user's own and of Ollama answer to it."""

import io
import json
from pathlib import Path

import pytest
from llama_batch.errors import ModelNotFoundError
from llama_batch.models import DEFAULT_MODEL, Progress, parse, progress_bar, remove_model, resolve
from llama_batch.models.uri import FileSource, HubSource, OllamaSource, PypiSource
from model_servers import GGUF, sha256


def test_each_form_is_understood() -> None:
    assert parse("pypi:A_b.C==1.0#m/x.gguf") == PypiSource("a-b-c", "1.0", "m/x.gguf")
    assert parse("hf:o/r") == HubSource("o/r", None)
    assert parse("HF:o/r:UD-Q4_K_XL") == HubSource("o/r", "UD-Q4_K_XL")
    assert parse("ollama:llama3") == OllamaSource(
        "llama3:latest", ("registry.ollama.ai", "library", "llama3", "latest")
    )
    assert parse("ollama:me/m:7b") == OllamaSource("me/m:7b", ("registry.ollama.ai", "me", "m", "7b"))
    assert parse("ollama:hf.co/o/r:Q4") == OllamaSource("hf.co/o/r:Q4", ("hf.co", "o", "r", "Q4"))
    assert parse("dir/model.gguf") == FileSource(Path("dir/model.gguf"))
    assert parse(Path("hf:odd name")) == FileSource(Path("hf:odd name"))
    assert parse(None) == parse(DEFAULT_MODEL)


@pytest.mark.parametrize(
    "uri",
    [
        "", "a\0b", "pypi:", "pypi:x==", "pypi:x>=1", "pypi:x#", "pypi:x#../y", "pypi:x==../..", "pypi:-x", "hf:",
        "hf:owner", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:", "hf:a/b:../c", "hf:a/b:x/../../c", "ollama:",
        "ollama:../x", "ollama:x:", "ollama:x:../y", "ollama:a/b/c/d/e", "https://example.com/m.gguf", "s3://b/m",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_at_once(uri: str) -> None:
    with pytest.raises(ModelNotFoundError):
        parse(uri)


def test_a_file_is_found_and_its_absence_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(GGUF)
    assert resolve("m.gguf") == Path("m.gguf")
    assert resolve(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    assert resolve("~/m.gguf") == tmp_path / "m.gguf"
    with pytest.raises(ModelNotFoundError, match=r"is a folder, not a GGUF file; it holds m.gguf"):
        resolve(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no file"):
        resolve("missing.gguf")
    with pytest.raises(ModelNotFoundError, match="write hf:owner/repo"):
        resolve("owner/repo")
    with pytest.raises(ModelNotFoundError, match="file of your own"):
        remove_model("m.gguf")
    with pytest.raises(FileNotFoundError):
        resolve("missing.gguf")


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ollama's folder with one model."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 1},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + sha256(GGUF), "size": len(GGUF)},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}))
    blob = tmp_path / "blobs" / f"sha256-{sha256(GGUF)}"
    blob.parent.mkdir()
    blob.write_bytes(GGUF)
    return tmp_path


def test_a_model_that_ollama_has_is_read_where_it_is(ollama: Path) -> None:
    before = sorted(ollama.rglob("*"))
    assert resolve("ollama:tiny").read_bytes() == GGUF
    assert resolve("ollama:tiny:latest", offline=True).parent == ollama / "blobs"
    assert sorted(ollama.rglob("*")) == before


def test_a_model_that_ollama_has_not_is_explained(ollama: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"ollama pull big:7b.*it has tiny:latest"):
        resolve("ollama:big:7b")
    with pytest.raises(ModelNotFoundError, match="belongs to Ollama"):
        remove_model("ollama:tiny")


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": [{}]}', '{"layers": 3}'])
def test_a_damaged_manifest_is_explained(ollama: Path, text: str) -> None:
    (ollama / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest").write_text(text)
    with pytest.raises(ModelNotFoundError, match="damaged"):
        resolve("ollama:tiny")


def test_a_digest_that_leads_out_is_refused(ollama: Path) -> None:
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.write_text(manifest.read_text().replace(sha256(GGUF), "../../../etc/passwd"))
    with pytest.raises(ModelNotFoundError, match="damaged"):
        resolve("ollama:tiny")


def test_an_incomplete_model_of_ollama_is_explained(ollama: Path) -> None:
    next((ollama / "blobs").iterdir()).write_bytes(GGUF[:-1])
    with pytest.raises(ModelNotFoundError, match="incomplete"):
        resolve("ollama:tiny")


def test_a_progress_bar_is_drawn_in_a_terminal_only_once_there_is_something_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, pipe = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    with progress_bar():
        pass
    assert screen.getvalue() == ""
    with progress_bar() as report:
        report(Progress("pypi:x#a/m.gguf", "downloading", 0, None))
        report(Progress("pypi:x#a/m.gguf", "downloading", 3_000_000, 6_000_000))
    assert "downloading m.gguf" in screen.getvalue()
    monkeypatch.setattr("sys.stderr", pipe)
    with progress_bar() as report:
        report(Progress("pypi:x#a/m.gguf", "downloading", 3, 6))
    assert pipe.getvalue() == ""
