"""Sessions in files, on the simulated model: whatever happens to a file, nothing wrong is loaded from it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Engine, EngineClosedError, OptionError, SessionError, SessionNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from llama_batch.types import Key

KINDS = ["full", "recurrent", "hybrid", "window:64"]
PROMPT = list(range(10, 210))
GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 12}


def simulated(kind: str = "full", **options: Any) -> Engine:
    return Engine(f"sim:?pass_ms=0&row_ms=0&memory={kind}", n_ctx=2048, prompt_cache_ram_mb=64, **options)


def saved(path: Path, kind: str = "full", **options: Any) -> list[int]:
    """Save a session of one request; the tokens of its prompt and answer."""
    with simulated(kind) as engine:
        done = engine.generate(PROMPT, session="tale", **GREEDY, **options).result()
        scope = options.get("cache_scope")
        kept = engine.save_session("tale", path, cache_scope=scope)
    assert kept.session == "tale"
    assert kept.path == path
    # The token drawn last was not computed.
    assert kept.n_tokens == len(PROMPT) + len(done.token_ids) - 1
    assert kept.n_tokens - 8 < kept.n_restorable <= kept.n_tokens
    return [*PROMPT, *done.token_ids]


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_session_goes_on_in_another_engine(tmp_path: Path, kind: str, unified: bool) -> None:
    path = tmp_path / "tale.session"
    with simulated(kind, kv_unified=unified) as engine:
        first = engine.generate(PROMPT, session="tale", **GREEDY).result()
        turn = [*PROMPT, *first.token_ids, *range(300, 330)]
        expected = engine.generate(turn, session="tale", **GREEDY).result().token_ids
    with simulated(kind, kv_unified=unified) as engine:
        engine.generate(PROMPT, session="tale", **GREEDY).result()
        kept = engine.save_session("tale", path)
    with simulated(kind, kv_unified=unified) as engine:
        loaded = engine.load_session(path)
        assert (loaded.session, loaded.n_tokens, loaded.n_restorable) == ("tale", kept.n_tokens, kept.n_restorable)
        done = engine.generate(turn, session="tale", **GREEDY).result()
        assert done.usage.prefix_cache_tokens == kept.n_restorable
        assert done.token_ids == expected


def test_a_session_that_left_the_kv_cache_is_saved_from_ram(tmp_path: Path) -> None:
    with Engine("sim:?pass_ms=0&row_ms=0", n_ctx=512, prompt_cache_ram_mb=64) as engine:
        engine.generate(PROMPT, session="tale", **GREEDY).result()
        for other in range(6):
            engine.generate([other + 1, *range(300, 500)], **GREEDY).result()
        assert engine.save_session("tale", tmp_path / "tale").n_restorable > 200


def test_another_name_and_every_kind_of_key(tmp_path: Path) -> None:
    with simulated() as engine:
        keys: list[Key] = ["text", 7, b"bytes", ("user", 1)]
        for at, key in enumerate(keys):
            engine.generate(PROMPT, session=key, cache_scope=key, **GREEDY).result()
            kept = engine.save_session(key, tmp_path / str(at), cache_scope=key)
            assert engine.load_session(kept.path, cache_scope=key).session == key
            assert engine.load_session(kept.path, session="new", cache_scope=key).session == "new"
            engine.save_session("new", tmp_path / "again", cache_scope=key)


def test_only_its_own_scope_loads_it_and_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "tale"
    tokens = saved(path, cache_scope="a")
    with simulated() as engine:
        for scope in ["b", None]:
            with pytest.raises(SessionError, match="another cache_scope"):
                engine.load_session(path, cache_scope=scope)
        engine.load_session(path, cache_scope="a")
        usages = [engine.generate(tokens, cache_scope=s, **GREEDY).result().usage for s in ["b", None, "a"]]
        assert [usage.prefix_cache_tokens for usage in usages][:2] == [0, 0]
        assert usages[2].prefix_cache_tokens > 200


def test_what_is_not_there_cannot_be_saved(tmp_path: Path) -> None:
    with simulated() as engine:
        engine.generate(PROMPT, session="tale", **GREEDY).result()
        engine.generate(PROMPT, session="secret", cache_prompt=False, **GREEDY).result()
        for session, scope in [("other", None), ("tale", "a"), ("secret", None)]:
            with pytest.raises(SessionError, match="left anything"):
                engine.save_session(session, tmp_path / "x", cache_scope=scope)
        with pytest.raises(OptionError, match="session must be"):
            engine.save_session(1.5, tmp_path / "x")  # type: ignore[arg-type]
        for path in (3, "", b"x", None):
            with pytest.raises(OptionError, match="name of a file"):
                engine.save_session("tale", path)  # type: ignore[arg-type]
            with pytest.raises(OptionError, match="name of a file"):
                engine.load_session(path)  # type: ignore[arg-type]
        with pytest.raises(SessionError):
            engine.save_session("tale", tmp_path / "no" / "folder")
        with pytest.raises(SessionError):
            engine.save_session("tale", tmp_path)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineClosedError):
        engine.save_session("tale", tmp_path / "x")
    with Engine("sim:?pass_ms=0", prompt_cache_ram_mb=0) as bare:
        bare.generate(PROMPT, session="tale", **GREEDY).result()
        with pytest.raises(SessionError, match="prompt_cache_ram_mb"):
            bare.save_session("tale", tmp_path / "x")


def test_files_that_are_no_session_of_this_engine_are_refused_and_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "tale"
    saved(path)
    whole = path.read_bytes()
    wrong: dict[str, bytes] = {
        "empty": b"",
        "text": b"Once upon a time",
        "short": whole[:-1],
        "long": whole + b"x",
        "turned": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "late": whole[:-5] + bytes([whole[-5] ^ 128]) + whole[-4:],
    }
    with simulated() as engine:
        for name, content in wrong.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(SessionError, match=name):
                engine.load_session(tmp_path / name)
        with pytest.raises(SessionError):
            engine.load_session(tmp_path)
        with pytest.raises(SessionNotFoundError) as missing:
            engine.load_session(tmp_path / "missing")
        assert isinstance(missing.value, FileNotFoundError)
        assert engine.stats().ram_cache_entries == 0
        assert engine.load_session(path).n_restorable > 200
    with simulated("recurrent") as engine, pytest.raises(SessionError, match="another model"):
        engine.load_session(path)
    with (
        Engine("sim:?pass_ms=0", n_ctx=64, prompt_cache_ram_mb=1) as engine,
        pytest.raises(SessionError, match="n_ctx"),
    ):
        engine.load_session(path)


@pytest.mark.skipif(os.name == "nt", reason="a file's mode says little there")
def test_a_file_is_for_its_owner_alone_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "tale"
    path.write_text("an earlier one")
    saved(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["tale"]


def test_saving_beside_running_streams_disturbs_none(tmp_path: Path) -> None:
    with Engine("sim:?pass_ms=1", n_ctx=4096, n_parallel=4, prompt_cache_ram_mb=64) as engine:
        engine.generate(PROMPT, session="tale", **GREEDY).result()
        running = [engine.generate([n, *PROMPT], temp=0, max_tokens=100) for n in range(1, 4)]
        for at in range(5):
            engine.load_session(engine.save_session("tale", tmp_path / str(at)).path)
        assert all(len(generation.result().token_ids) == 100 for generation in running)
