"""What is cached, in each kind of memory of llama.cpp: reused where it can be, never where it must not, and right.

The models are tiny and random (`tiny_models.py`), so that every kind of memory is real and a text takes milliseconds.
Prompts have 193 tokens, three blocks of 64 and one more: the last token is always computed, and what the RAM tier keeps
in blocks and what it keeps whole can both give all the others.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models
from llama_batch import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llama_batch import Completion

    Told = tuple[Sequence[int], Sequence[int]]  # a prompt and what was answered

N_PROMPT = 193
GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 16}
# Without half precision anywhere the same logits differ by 1e-5 and not by 0.05 between shapes of batches.
PRECISE: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", PRECISE),
    "full-flash": ("full", {}),
    "full-split": ("full", {**PRECISE, "kv_unified": False}),
    "sliding": ("sliding", PRECISE),
    "sliding-full": ("sliding", {**PRECISE, "swa_full": True}),
    "recurrent": ("recurrent", PRECISE),
    "hybrid": ("hybrid", PRECISE),
    "hybrid-split": ("hybrid", {**PRECISE, "kv_unified": False}),
}


class Memory:
    """A kind of memory: engines that have it, prompts, and the judge of what they answer.

    A text is judged token by token, by logits that are computed alone and uncached in a fresh context of one sequence.
    Equal texts are no oracle: where two tokens are as likely the shape of a batch decides. Each token must lie within
    the noise of the likeliest instead, and the noise is measured.
    """

    def __init__(self, name: str, models: dict[str, Path]) -> None:
        model, self._options = KINDS[name]
        self.name = name
        self.split = self._options.get("kv_unified") is False
        # A recurrent state is as large for one token as for a thousand: there is no pool of cells to run short.
        self.has_pool = not self.split and model != "recurrent"
        self._path = models[model]
        precision = {key: value for key, value in self._options.items() if key in PRECISE}
        self.alone = Engine(self._path, n_parallel=1, n_ctx=512, n_threads=1, prompt_cache_ram_mb=0, **precision)
        self.alone.wait_ready()
        self.allowed = max(1e-3, 6 * max(self._noise(seed) for seed in range(3)))
        assert self.allowed < 1, "so much noise would hide anything"

    def engine(self, *, n_parallel: int, n_ctx: int, ram_mb: int = 64, **options: Any) -> Engine:
        """An engine with `n_ctx` cells for each stream: one for all requests, or one for each."""
        total = n_ctx * n_parallel if self.split else n_ctx
        sizes: dict[str, Any] = {"n_parallel": n_parallel, "n_ctx": total, "prompt_cache_ram_mb": ram_mb}
        return Engine(self._path, n_threads=1, **sizes, **self._options, **options)

    def prompt(self, seed: int, n_tokens: int = N_PROMPT) -> list[int]:
        """A prompt of so many tokens that shares its first token alone with those of other seeds."""
        letters = random.Random(seed)
        text = "".join(chr(letters.randrange(32, 127)) for _ in range(3 * n_tokens))
        return self.alone.model.tokenize(text)[:n_tokens]

    def gap(self, prompt: Sequence[int], tokens: Sequence[int]) -> float:
        """How far the least likely token of a text is from the likeliest at its place, in logits."""
        return max(self.alone.model.score([*prompt, *tokens], len(prompt)), default=0)

    def assert_greedy(self, *told: Told) -> None:
        for prompt, tokens in told:
            gap = self.gap(prompt, tokens)
            assert gap <= self.allowed, f"{self.name}: a token is {gap:.3g} off, {self.allowed:.3g} is allowed"

    def _noise(self, seed: int) -> float:
        """How much the same logits differ between chunks: of random tokens, as likely ones have gaps of 0 in all."""
        tokens = self.prompt(seed, N_PROMPT + 32)
        computed = [self.alone.model.score(tokens, N_PROMPT, chunk=chunk) for chunk in (512, 7, 1)]
        pairs = (zip(one, other, strict=True) for one, other in combinations(computed, 2))
        return max(abs(a - b) for pair in pairs for a, b in pair)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny_models.write_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=KINDS)
def memory(request: pytest.FixtureRequest, models: dict[str, Path]) -> Iterator[Memory]:
    memory = Memory(request.param, models)
    with memory.alone:
        yield memory


def ask(engine: Engine, prompt: Sequence[int], **options: Any) -> Completion:
    return engine.generate(list(prompt), **{**GREEDY, **options}).result()


def churn(memory: Memory, engine: Engine, **options: Any) -> None:
    """Push what is cached out of a KV cache of 512 cells, and out of the few ids that hold cached sequences."""
    for seed in range(1000, 1008):
        ask(engine, memory.prompt(seed), max_tokens=1, **options)


def follow_up(memory: Memory, kind: str, prompt: list[int], answer: Sequence[int]) -> list[int]:
    """What is sent after an answer: the same again, the next turn, or the next turn after another answer."""
    new = memory.prompt(77, 40)
    match kind:
        case "retry":
            return prompt
        case "next-turn":
            return [*prompt, *answer, *new]
        case _:
            return [*prompt, *memory.prompt(78, len(answer)), *new]


FOLLOW_UPS = ["retry", "next-turn", "rewritten"]


def test_the_judge_notices_a_prefix_that_is_not_the_prompts_own(memory: Memory) -> None:
    prompt, other = memory.prompt(1), memory.prompt(2)
    answer = ask(memory.alone, prompt, cache_prompt=False)
    memory.assert_greedy((prompt, answer.token_ids))
    for wrong in ([*other[:64], *prompt[64:]], [*prompt[:64], *other[64:128], *prompt[128:]], prompt[:-1]):
        assert memory.gap(wrong, answer.token_ids) > 10 * memory.allowed


@pytest.mark.parametrize("kind", FOLLOW_UPS)
def test_what_follows_an_answer_reuses_the_prompt(memory: Memory, kind: str) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=2048) as engine:
        first = ask(engine, prompt)
        second = follow_up(memory, kind, prompt, first.token_ids)
        answer = ask(engine, second)
    memory.assert_greedy((prompt, first.token_ids), (second, answer.token_ids))
    assert first.usage.prefix_cache_tokens == 0
    assert answer.usage.prefix_cache_tokens >= N_PROMPT - 1


@pytest.mark.parametrize("kind", FOLLOW_UPS)
def test_what_follows_an_answer_that_was_driven_out_reuses_the_prompt(memory: Memory, kind: str) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=512) as engine:
        first = ask(engine, prompt)
        churn(memory, engine)
        second = follow_up(memory, kind, prompt, first.token_ids)
        answer = ask(engine, second)
    memory.assert_greedy((prompt, first.token_ids), (second, answer.token_ids))
    assert answer.usage.prefix_cache_tokens >= N_PROMPT - 1


def test_without_a_ram_tier_what_was_driven_out_is_computed_again(memory: Memory) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=512, ram_mb=0) as engine:
        first = ask(engine, prompt)
        churn(memory, engine)
        again = ask(engine, prompt)
        assert (engine.stats().ram_cache_entries, engine.stats().ram_cache_bytes) == (0, 0)
    memory.assert_greedy((prompt, first.token_ids), (prompt, again.token_ids))
    if memory.has_pool or memory.split:  # a recurrent model may keep as many states as it likes
        assert again.usage.prefix_cache_tokens <= 1  # every prompt begins with the same token


def test_nothing_is_reused_where_the_cache_is_off(memory: Memory) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=2048, cache_prompt=False) as engine:
        answers = [ask(engine, prompt) for _ in range(2)]
        turn = [*prompt, *answers[0].token_ids, *memory.prompt(77, 40)]
        answers.append(ask(engine, turn))
    assert [answer.usage.prefix_cache_tokens for answer in answers] == [0, 0, 0]
    memory.assert_greedy(*((p, a.token_ids) for p, a in zip([prompt, prompt, turn], answers, strict=True)))


@pytest.mark.parametrize("driven_out", [False, True], ids=["cached", "driven-out"])
def test_a_scope_sees_its_own_prompts_alone(memory: Memory, driven_out: bool) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=512 if driven_out else 2048) as engine:
        answers = []
        for scope in ("a", "b", "a"):
            answers.append(ask(engine, prompt, cache_scope=scope))
            if driven_out:
                churn(memory, engine, cache_scope="c")
    memory.assert_greedy(*((prompt, answer.token_ids) for answer in answers))
    assert [answer.usage.prefix_cache_tokens for answer in answers[:2]] == [0, 0]
    assert answers[2].usage.prefix_cache_tokens >= N_PROMPT - 1


def test_a_burst_with_a_common_beginning_computes_it_once(memory: Memory) -> None:
    common = memory.prompt(1, 200)
    prompts = [[*common, *memory.prompt(10 + n, 20)] for n in range(6)]
    engine = memory.engine(n_parallel=6, n_ctx=4096)
    # Sent while the model is still loading, so that all of them are there before the first is planned.
    running = [engine.generate(prompt, **GREEDY) for prompt in prompts]
    with engine:
        answers = [generation.result() for generation in running]
        computed = engine.stats().n_prefill_tokens
    memory.assert_greedy(*((p, a.token_ids) for p, a in zip(prompts, answers, strict=True)))
    # Of 1,320. One of them may have begun, and passed the place where the others part from it, before those came.
    assert computed <= 2 * 200 + 6 * (20 + 16)
