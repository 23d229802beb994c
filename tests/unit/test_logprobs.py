"""`logprobs` and `prompt_logprobs`: which token each belongs to, and the shapes that others use."""

from __future__ import annotations

import json
import math
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import Engine, Logprob, TokenLogprobs
from llama_batch.logprobs import as_openai_completion

SIM = "sim:?pass_ms=0&row_ms=0"
PROMPT = [65 + i % 26 for i in range(200)]


def test_each_token_is_told_of_and_nothing_where_nobody_asks() -> None:
    with Engine(SIM) as engine:
        plain = engine.generate(PROMPT, max_tokens=9).result()
        assert plain.logprobs is None
        assert plain.prompt_logprobs is None
        done = engine.generate(PROMPT, max_tokens=9, logprobs=2, prompt_logprobs=1, n=2).result()
        for choice in done.choices:
            assert choice.logprobs is not None
            assert choice.prompt_logprobs is not None
            assert tuple(told.token_id for told in choice.logprobs) == choice.token_ids
            assert all(len(told.top) == 2 for told in choice.logprobs)
            assert choice.prompt_logprobs[0] is None
            assert [told.token_id for told in choice.prompt_logprobs[1:] if told] == PROMPT[1:]
        assert engine.generate(PROMPT, max_tokens=0, logprobs=0).result().logprobs == ()


def test_a_prompt_that_is_told_of_is_computed_whatever_the_cache_has() -> None:
    with Engine(SIM) as engine:
        for _ in range(2):
            done = engine.generate(PROMPT, max_tokens=1, prompt_logprobs=0).result()
            assert done.usage.prefix_cache_tokens == 0
            assert done.prompt_logprobs is not None
            assert None not in done.prompt_logprobs[1:]
        assert engine.generate(PROMPT, max_tokens=1).result().usage.prefix_cache_tokens == 199


@settings(max_examples=20, deadline=None)
@given(stop=st.integers(0, 60), length=st.integers(1, 12), include=st.booleans())
def test_what_is_told_leaves_with_its_token_held_text_included(stop: int, length: int, include: bool) -> None:
    with Engine(SIM) as engine:
        whole = engine.generate(PROMPT, temp=0, max_tokens=40).result().text
        text = whole[stop : stop + length]
        stream = engine.stream(PROMPT, temp=0, max_tokens=40, logprobs=1, stop=text, include_stop=include)
        chunks = list(stream)
        for chunk in chunks:
            assert chunk.logprobs is not None
            assert tuple(told.token_id for told in chunk.logprobs) == chunk.token_ids
        done = stream.result()
        assert done.logprobs == tuple(told for chunk in chunks for told in chunk.logprobs or ())
        assert tuple(told.token_id for told in done.logprobs) == done.token_ids


def test_the_shapes_of_others() -> None:
    top = (Logprob(7, -0.5, 1, b" a"), Logprob(9, -math.inf, 2, b"\xff"))
    told = TokenLogprobs(8, -1.0, 3, " ☃".encode(), top)
    assert told.text == told.decoded_token == " ☃"
    assert math.isclose(told.probability, math.exp(-1))
    assert told.as_vllm() == {8: Logprob(8, -1.0, 3, " ☃".encode()), 7: top[0], 9: top[1]}
    assert told.as_openai() == {
        "token": " ☃",
        "logprob": -1.0,
        "bytes": list(" ☃".encode()),
        "top_logprobs": [
            {"token": " a", "logprob": -0.5, "bytes": [32, 97]},
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [255]},
        ],
    }
    assert json.loads(json.dumps(told.as_openai(), allow_nan=False)) == told.as_openai()
    shape = as_openai_completion([None, told, told], text_offset=4)
    assert shape["tokens"] == ["", " ☃", " ☃"]
    assert shape["token_logprobs"] == [None, -1.0, -1.0]
    assert shape["top_logprobs"] == [None, *[{" a": -0.5, "\ufffd": -9999.0}] * 2]
    assert shape["text_offset"] == [4, 4, 6]
    assert pickle.loads(pickle.dumps(told)) == told
