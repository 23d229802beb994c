"""Stop strings and tokens, `min_tokens`, `ignore_eos`: what leaves, what does not, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_batch import Completion, Engine, OptionError

SIM = "sim:?pass_ms=0&row_ms=0"
PROMPT = list(range(10, 30))


def ask(engine: Engine, **options: Any) -> Completion:
    return engine.generate(PROMPT, **{"temp": 0, "max_tokens": 40, **options}).result()


@pytest.fixture
def whole() -> Completion:
    """The answer without any stop."""
    with Engine(SIM) as engine:
        return ask(engine)


def test_a_stop_string_ends_the_answer(whole: Completion) -> None:
    stop = whole.text[50:60]
    at = whole.text.index(stop)
    with Engine(SIM) as engine:
        for given in (stop, [stop], ("never said", stop)):
            done = ask(engine, stop=given)
            assert (done.text, done.finish_reason, done.stop_reason) == (whole.text[:at], "stop", stop)
            assert done.token_ids == whole.token_ids[: len(done.token_ids)]
            assert done.usage.generated_tokens == len(done.token_ids) < 40
        assert ask(engine, stop=stop, include_stop=True).text == whole.text[: at + len(stop)]
        assert ask(engine, stop="never said").text == whole.text
        assert ask(engine, stop=[]).text == whole.text


def test_a_stream_never_shows_the_beginning_of_a_stop_string(whole: Completion) -> None:
    stop = whole.text[50:60]
    with Engine(SIM) as engine:
        chunks = list(engine.stream(PROMPT, temp=0, max_tokens=40, stop=stop))
        text = "".join(chunks)
        assert text == whole.text[: whole.text.index(stop)]
        assert [token for chunk in chunks for token in chunk.token_ids] == list(
            whole.token_ids[: sum(len(chunk.token_ids) for chunk in chunks)]
        )

    async def read() -> str:
        async with Engine(SIM) as engine:
            return "".join([chunk async for chunk in engine.stream(PROMPT, temp=0, max_tokens=40, stop=stop)])

    assert asyncio.run(read()) == text


def test_a_stop_token_ends_the_answer(whole: Completion) -> None:
    stop = whole.token_ids[9]
    first = whole.token_ids.index(stop)
    with Engine(SIM) as engine:
        done = ask(engine, stop_token_ids=[stop])
        assert (done.finish_reason, done.stop_reason) == ("stop", stop)
        assert done.token_ids == whole.token_ids[:first]
        assert ask(engine, stop_token_ids=[stop], include_stop=True).token_ids == whole.token_ids[: first + 1]


def test_min_tokens_and_ignore_eos() -> None:
    with Engine(f"{SIM}&eog_every=5") as engine:
        ends = [ask(engine, seed=seed, temp=1.0) for seed in range(30)]
        assert {done.finish_reason for done in ends} == {"eog"}
        for seed in range(30):
            assert ask(engine, seed=seed, temp=1.0, min_tokens=25).usage.generated_tokens >= 25
            done = ask(engine, seed=seed, temp=1.0, ignore_eos=True)
            assert (done.finish_reason, done.usage.generated_tokens) == ("max_tokens", 40)


def test_an_event_tells_of_the_stop(whole: Completion) -> None:
    with Engine(SIM) as engine:
        events = engine.events(events=["request.done"])
        ask(engine, stop=whole.text[50:60])
        engine.close(drain=True)
        assert [event.metadata["stop_reason"] for event in events] == ["stop"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stop": ""}, "stop must not be empty"),
        ({"stop": ["a", ""]}, "stop must not be empty"),
        ({"stop": 5}, "stop must be text or a list of texts, not int"),
        ({"stop": ["a", 5]}, "stop holds an item that must be text"),
        ({"stop": b"x"}, "stop must be text"),
        ({"stop": "\ud800"}, "stop must be text"),
        ({"stop": ["x"] * 65}, "64 texts"),
        ({"stop": "x" * 1025}, "1024 bytes"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"include_stop": 1}, "include_stop"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
    ],
)
def test_wrong_stops_are_refused_at_once(options: dict[str, Any], reason: str) -> None:
    with Engine(SIM) as engine:
        with pytest.raises(OptionError, match=reason):
            engine.generate("x", **options)
        # A token that the vocabulary lacks stops nothing.
        assert ask(engine, stop_token_ids=[100_000]).finish_reason == "max_tokens"
