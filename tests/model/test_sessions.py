"""Sessions in files, on real models of every kind of memory: the answer goes on as the model would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import Engine, SessionError

if TYPE_CHECKING:
    from pathlib import Path

    from oracle import Oracle

GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 16}
STORY = " ".join(f"In the year {1900 + n} the town of Millbrook had {n * 37 % 91} bakers." for n in range(12))


@pytest.mark.parametrize("unified", [True, False])
def test_a_conversation_goes_on_in_another_engine(smollm2: Path, oracle: Oracle, tmp_path: Path, unified: bool) -> None:
    path = tmp_path / "tale"
    options: dict[str, Any] = {"n_ctx": 2048, "n_parallel": 2, "kv_unified": unified}
    with Engine(smollm2, **options) as engine:
        prompt = engine.model.tokenize(STORY)
        first = engine.generate(prompt, session="tale", **GREEDY).result()
        kept = engine.save_session("tale", path)
        turn = [*prompt, *first.token_ids, *engine.model.tokenize(" In the year 1912 the town of")]
    with Engine(smollm2, **options) as engine:
        assert engine.load_session(path).n_restorable == kept.n_restorable > len(prompt) - 8
        second = engine.generate(turn, session="tale", **GREEDY).result()
        assert second.usage.prefix_cache_tokens == kept.n_restorable
    oracle.assert_greedy([(turn, second.token_ids)])


def test_a_file_of_another_kind_of_context_or_model_is_refused(smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "tale"
    with Engine(smollm2, n_ctx=1024) as engine:
        engine.generate("Once upon a time", session="tale", **GREEDY).result()
        engine.save_session("tale", path)
    other = tmp_path / "other.gguf"
    content = bytearray(smollm2.read_bytes())
    content[-100] ^= 1
    other.write_bytes(content)
    others: list[tuple[Path, dict[str, Any]]] = [
        *((smollm2, {"kv_unified": False}), (smollm2, {"flash_attn": "off"}), (other, {}))
    ]
    for model, options in others:
        with Engine(model, n_ctx=1024, **options) as engine, pytest.raises(SessionError, match="another model"):
            engine.load_session(path)
