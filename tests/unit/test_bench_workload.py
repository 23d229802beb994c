"""What `llama-batch bench` asks, and when: workloads, files, and the driver."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch.benchmark import (
    Asked,
    BenchmarkError,
    ClosedLoop,
    Conversation,
    OpenLoop,
    Record,
    Synthetic,
    Turn,
    measure,
)
from llama_batch.benchmark.files import read_conversations, read_prompts, read_trace
from llama_batch.benchmark.workload import Sizes, Writer
from llama_batch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def letters(text: str) -> int:
    """A vocabulary of letters."""
    return len(text)


async def words(text: str) -> int:
    """A vocabulary of words."""
    return len(text.split())


class Answers:
    """A target that answers after a while, and keeps what it was asked."""

    def __init__(self, seconds: float = 0.0, failing: Sequence[int] = ()) -> None:
        self.seconds, self.failing = seconds, failing
        self.asked: list[Asked] = []
        self.n_under_way = self.n_most = 0
        self.fifth = asyncio.Event()

    async def count(self, text: str) -> int:
        return len(text.split())

    async def ask(self, asked: Asked, record: Record) -> str:
        self.asked.append(asked)
        if len(self.asked) == 5:
            self.fifth.set()
        self.n_under_way += 1
        self.n_most = max(self.n_most, self.n_under_way)
        record.sent = time.perf_counter()
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.n_under_way -= 1
        record.deliveries.append(time.perf_counter())
        record.ended = time.perf_counter()
        if record.conversation in self.failing:
            record.failure = "broken"
        return f"<answer {len(self.asked)}>"


def chats(n: int, n_turns: int = 1) -> list[Conversation]:
    return [Conversation(tuple(Turn.of(f"question {i}.{j}", 4) for j in range(n_turns))) for i in range(n)]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_prompts_are_as_long_as_asked_but_for_a_word(n_tokens: int, seed: int) -> None:
    for count, longest in ((words, 1), (letters, 10)):
        text = asyncio.run(Writer(seed, count).text(n_tokens))
        n = asyncio.run(count(text))
        assert n <= max(n_tokens, longest)
        assert n > n_tokens - 2 * longest
        assert text == asyncio.run(Writer(seed, count).text(n_tokens))


def test_synthetic_conversations_have_their_sizes_and_their_seed() -> None:
    made = Synthetic(6, Sizes(10, 20), Sizes(5, 9), n_turns=3, shared_tokens=40, seed=4)
    written = asyncio.run(made.write(words))
    assert written == asyncio.run(made.write(words))
    assert written != asyncio.run(Synthetic(6, Sizes(10, 20), Sizes(5, 9), 3, 40, seed=5).write(words))
    assert [len(each.turns) for each in written] == [3] * 6
    systems = {each.turns[0].messages[0]["content"] for each in written}
    assert [len(system.split()) for system in systems] == [40]
    assert all(5 <= turn.n_output <= 9 for each in written for turn in each.turns)
    lengths = {len(turn.messages[-1]["content"].split()) for each in written for turn in each.turns}
    assert min(lengths) >= 10
    assert max(lengths) <= 20
    assert len(lengths) > 1


@pytest.mark.parametrize("word", ["", "x", "0", "-5", "9-3", "0-3", "1-2-3", "1.5"])
def test_a_length_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(OptionError):
        Sizes.parse(word)


def test_lengths_are_read_and_drawn() -> None:
    assert str(Sizes.parse("7")) == "7"
    assert {Sizes.parse("1-3").draw(random.Random(0)) for _ in range(1)} <= {1, 2, 3}


def test_a_closed_loop_asks_no_more_at_once_than_it_has_clients() -> None:
    target = Answers(0.002)
    run = asyncio.run(measure(target, chats(20), ClosedLoop(3)))
    assert target.n_most == 3
    assert sorted(record.conversation for record in run.records) == list(range(20))
    assert not run.interrupted


def test_a_turn_is_asked_with_the_history_and_the_answers_in_it() -> None:
    target = Answers()
    asyncio.run(measure(target, chats(1, 3), ClosedLoop(1)))
    assert [message["content"] for message in target.asked[2].messages] == [
        "question 0.0", "<answer 1>", "question 0.1", "<answer 2>", "question 0.2",
    ]  # fmt: skip
    assert target.asked[2].text.startswith(target.asked[1].text + "<answer 2>")


def test_a_failure_ends_its_conversation_and_no_other() -> None:
    run = asyncio.run(measure(Answers(failing=[1]), chats(3, 2), ClosedLoop(2)))
    assert sorted((record.conversation, record.turn, record.failure) for record in run.records) == [
        (0, 0, None), (0, 1, None), (1, 0, "broken"), (2, 0, None), (2, 1, None),
    ]  # fmt: skip
    assert run.n_planned == 6


def test_open_arrivals_are_due_at_their_times_however_slow_the_target_is() -> None:
    offsets = [0.0, 0.001, 0.002, 0.003]
    run = asyncio.run(measure(Answers(0.02), chats(4), OpenLoop(offsets)))
    assert sorted(round(record.due - run.started, 9) for record in run.records) == offsets
    held = asyncio.run(measure(target := Answers(0.02), chats(4), OpenLoop(offsets, concurrency=1)))
    assert target.n_most == 1
    # What one conversation at a time holds back counts: from the arrival, not from the sending.
    last = max(held.records, key=lambda record: record.due)
    assert last.due - held.started == pytest.approx(0.003)
    assert last.ttft_ms is not None
    assert last.ttft_ms > last.late_ms > 3 * 20 - 10


def test_nothing_is_asked_after_the_time_is_over() -> None:
    run = asyncio.run(measure(Answers(0.01), chats(50), ClosedLoop(2), max_s=0.03))
    assert 0 < len(run.records) < 50
    assert all(record.complete for record in run.records)
    late = asyncio.run(measure(Answers(), chats(3), OpenLoop([0.0, 0.0, 60.0]), max_s=0.001))
    assert len(late.records) <= 2


def test_an_interrupted_run_keeps_what_came() -> None:
    async def stopped() -> object:
        target = Answers(0.01)
        task = asyncio.create_task(measure(target, chats(50), ClosedLoop(2)))
        await target.fifth.wait()
        task.cancel()
        run = await task
        assert target.n_under_way == 0
        return run

    run = asyncio.run(stopped())
    assert run.interrupted  # type: ignore[attr-defined]
    failures = [record.failure for record in run.records]  # type: ignore[attr-defined]
    assert set(failures) == {None, "interrupted"}
    assert 1 <= failures.count("interrupted") <= 2


def test_prompts_come_from_lines_of_text_or_of_json(tmp_path: Path) -> None:
    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\n two \n")
    assert [each.turns[0] for each in read_prompts(plain, 9)] == [Turn.of("one", 9), Turn.of(" two ", 9)]
    lines = tmp_path / "prompts.jsonl"
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    lines.write_text(json.dumps({"prompt": "a", "output_tokens": 3}) + "\n\n" + json.dumps({"messages": chat}))
    assert [each.turns[0] for each in read_prompts(lines, 9)] == [Turn.of("a", 3), Turn(tuple(chat), 9)]


def trace(path: Path, *rows: object) -> list[Conversation]:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return asyncio.run(read_trace(path, 9, 0, words))


def test_a_trace_is_played_in_order_from_its_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"at": 12.5, "prompt": "b", "output_tokens": 2},
        {"at": 10, "prompt_tokens": 30},
        {"at": 14, "prompt_tokens": 50, "shared": "x", "shared_tokens": 20},
        {"at": 15, "prompt_tokens": 40, "shared": "x", "shared_tokens": 20},
    ]
    found = trace(path, *rows)
    assert [each.arrival for each in found] == [0, 2.5, 4, 5]
    texts = [each.turns[0].messages[0]["content"] for each in found]
    assert [len(text.split()) for text in texts] == [30, 1, 50, 40]
    assert texts[2].split()[:20] == texts[3].split()[:20] != texts[0].split()[:20]
    assert [each.turns[0].n_output for each in found] == [9, 2, 9, 9]
    assert [each.arrival for each in asyncio.run(read_trace(path, 9, 0, words, speed=2))] == [0, 1.25, 2, 2.5]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "an object"),
        ({"prompt": "a"}, "at must be"),
        ({"at": -1, "prompt": "a"}, "at must be"),
        ({"at": True, "prompt": "a"}, "at must be"),
        ({"at": "1", "prompt": "a"}, "at must be"),
        ({"at": 1}, "one of"),
        ({"at": 1, "prompt": "a", "prompt_tokens": 4}, "one of"),
        ({"at": 1, "prompt": "a", "messages": []}, "one of"),
        ({"at": 1, "messages": []}, "empty"),
        ({"at": 1, "messages": [{"role": "user", "content": [1]}]}, "no message of text"),
        ({"at": 1, "prompt": ""}, "not empty"),
        ({"at": 1, "prompt": "a", "output_tokens": 0}, "output_tokens"),
        ({"at": 1, "prompt_tokens": 4.5}, "prompt_tokens"),
        ({"at": 1, "prompt_tokens": 4, "shared": "x"}, "belong together"),
        ({"at": 1, "prompt_tokens": 4, "shared": "x", "shared_tokens": 4}, "less"),
        ({"at": 1, "prompt": "a", "arrival": 3}, "unknown field 'arrival'"),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, row: object, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    with pytest.raises(BenchmarkError, match=message) as error:
        trace(path, {"at": 0, "prompt": "fine"}, row)
    assert "trace.jsonl:2" in str(error.value)


def test_recorded_conversations_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    spoken = [("system", "be kind"), ("human", "q1"), ("gpt", "a b c"), ("human", "q2"), ("gpt", "a"), ("human", "q3")]
    kept = [
        {"id": "1", "conversations": [{"from": who, "value": text} for who, text in spoken]},
        {"messages": [{"role": "user", "content": "only"}, {"role": "assistant", "content": "x y"}]},
        {"conversations": [{"from": "gpt", "value": "nobody asked"}]},
    ]
    path.write_text(json.dumps(kept))
    first, second = asyncio.run(read_conversations(path, None, None, 0, words))
    assert [message["role"] for message in first.turns[0].messages] == ["system", "user"]
    assert [(turn.messages[-1]["content"], turn.n_output) for turn in first.turns] == [("q1", 3), ("q2", 1)]
    assert second.turns == (Turn.of("only", 2),)
    longer = asyncio.run(read_conversations(path, 7, None, 0, words))[0]
    assert [turn.n_output for turn in longer.turns] == [7, 7, 7]
    assert len(asyncio.run(read_conversations(path, None, 1, 0, words))) == 1


@pytest.mark.parametrize(
    "content", ["", "[]", "[1]", "{", '{"conversations": 3}', '[{"messages": [{"role": "tool"}]}]']
)
def test_a_file_without_conversations_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(content)
    with pytest.raises(BenchmarkError, match=r"kept\.json"):
        asyncio.run(read_conversations(path, None, None, 0, words))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchmarkError, match="UTF-8"):
        read_prompts(path, 1)
    with pytest.raises(BenchmarkError):
        read_prompts(tmp_path, 1)
