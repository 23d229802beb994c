"""vLLM's classes on the simulated model: their shapes, their parameters, their callers."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_batch import ContextFullError, GrammarError, LlamaBatchError, OptionError, PromptError
from llama_batch.compat.vllm import (
    LLM,
    GuidedDecodingParams,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
    TokensPrompt,
)
from llama_batch.compat.vllm import arguments as tables
from llama_batch.compat.vllm.llm import _source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llama_batch.compat.arguments import Table

MESSAGES = [{"role": "user", "content": "Hello"}]
CALLS: dict[str, tuple[Any, Table]] = {
    "SamplingParams": (SamplingParams, tables.SAMPLING),
    "StructuredOutputsParams": (StructuredOutputsParams, tables.STRUCTURED),
    "generate": (LLM.generate, tables.GENERATE),
    "chat": (LLM.chat, tables.CHAT),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("sim:") as llm:
        yield llm


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: found[name] for name in found if name not in {"self", "kwargs"}}


def text(outputs: list[RequestOutput], place: int = 0) -> str:
    return outputs[place].outputs[0].text


@pytest.mark.parametrize("name", CALLS)
def test_the_table_has_every_parameter_and_takes_every_default(name: str) -> None:
    function, table = CALLS[name]
    assert set(parameters(function)) == set(table)
    for parameter in parameters(function).values():
        if table[parameter.name].fate == "refused":
            assert parameter.default in table[parameter.name].accepted


def test_the_table_of_the_constructor_has_every_parameter_and_takes_every_default() -> None:
    spelt = parameters(LLM)
    assert set(spelt) <= set(tables.LLM)
    assert {row.name for row in tables.LLM.values() if row.fate == "honoured"} <= set(spelt)
    for name, row in tables.LLM.items():
        if row.fate == "refused" and name in spelt:
            assert spelt[name].default in row.accepted


def refusals() -> list[tuple[str, str]]:
    rows = [(call, row) for call, (_, table) in CALLS.items() for row in table.values()]
    rows += [("LLM", row) for row in tables.LLM.values()]
    return [(call, row.name) for call, row in rows if row.fate == "refused"]


@pytest.mark.parametrize(("call", "name"), refusals())
def test_what_is_not_supported_raises_and_names_its_replacement(llm: LLM, call: str, name: str) -> None:
    calls: dict[str, Any] = {
        "LLM": lambda **kw: LLM("sim:", **kw),
        "SamplingParams": SamplingParams,
        "StructuredOutputsParams": lambda **kw: StructuredOutputsParams(regex="a", **kw),
        "generate": lambda **kw: llm.generate("x", **kw),
        "chat": lambda **kw: llm.chat(MESSAGES, **kw),
    }
    row = {"LLM": tables.LLM, **{key: table for key, (_, table) in CALLS.items()}}[call][name]
    with pytest.raises(OptionError) as caught:
        calls[call](**{name: object()})
    assert name in str(caught.value)
    assert row.text in str(caught.value)
    assert llm.generate("x", use_tqdm=False)[0].finished


def test_an_output_has_the_original_shape(llm: LLM) -> None:
    params = SamplingParams(n=2, max_tokens=4, logprobs=2, prompt_logprobs=1)
    [output] = llm.generate("Hello", params, use_tqdm=False)
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("Hello", list(b"Hello"), True)
    assert output.request_id.isdigit()
    assert output.prompt_logprobs is not None
    assert [told is None for told in output.prompt_logprobs] == [True, False, False, False, False]
    assert [answer.index for answer in output.outputs] == [0, 1]
    for answer in output.outputs:
        assert len(answer.token_ids) == 4
        assert (answer.finish_reason, answer.stop_reason, answer.finished()) == ("length", None, True)
        assert answer.logprobs is not None
        own = [told[token].logprob for told, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert answer.cumulative_logprob == pytest.approx(sum(own))
        assert all(2 <= len(told) <= 3 for told in answer.logprobs)
    assert output.metrics is not None
    assert output.metrics.num_generation_tokens == 8


def test_the_defaults_are_those_of_the_original(llm: LLM) -> None:
    options = SamplingParams().options()
    assert (options["temp"], options["top_p"], options["top_k"], options["min_p"]) == (1.0, 1.0, 0, 0.0)
    [output] = llm.generate("Hello", use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 16
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert llm.get_default_sampling_params() == SamplingParams()


CHANGES: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 5,
    "stop": "a",
    "stop_token_ids": [5],
    "ignore_eos": True,
    "max_tokens": 3,
    "min_tokens": 2,
    "logprobs": 1,
    "prompt_logprobs": 1,
    "include_stop_str_in_output": True,
    "structured_outputs": StructuredOutputsParams(choice=["a"]),
    "guided_decoding": GuidedDecodingParams(regex="a"),
    "logit_bias": {5: 1.0},
    "allowed_token_ids": [300],
    "bad_words": ["a"],
    "skip_reading_prefix_cache": True,
}
ELSEWHERE = {"detokenize", "skip_special_tokens", "truncate_prompt_tokens"}


def test_every_honoured_parameter_reaches_the_engine(llm: LLM) -> None:
    honoured = {row.name for row in tables.SAMPLING.values() if row.fate == "honoured"}
    assert honoured == set(CHANGES) | ELSEWHERE
    plain = SamplingParams().options()
    for name, value in CHANGES.items():
        params = SamplingParams(**{name: value})
        assert params.options() != plain, name
        assert llm.generate("x", params, use_tqdm=False)[0].finished
    assert text(llm.generate("x", SamplingParams(detokenize=False), use_tqdm=False)) == ""
    [cut] = llm.generate("Hello", SamplingParams(truncate_prompt_tokens=2), use_tqdm=False)
    assert cut.prompt_token_ids == list(b"lo")


def test_prompts_are_taken_in_every_form(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=5, seed=1)
    forms: list[Any] = ["ab", {"prompt": "ab"}, [97, 98], {"prompt_token_ids": [97, 98]}]
    forms += [TextPrompt(prompt="ab"), TokensPrompt(prompt_token_ids=[97, 98]), {"prompt": "ab", "cache_salt": "me"}]
    together = llm.generate(forms, greedy, use_tqdm=False)
    assert [output.prompt_token_ids for output in together] == [[97, 98]] * len(forms)
    alone = [llm.generate(form, greedy, use_tqdm=False) for form in forms]
    assert {text(outputs) for outputs in alone} == {text(together, place) for place in range(len(forms))}
    assert together[2].prompt is None
    assert llm.generate([], greedy, use_tqdm=False) == []


@given(st.lists(st.text(min_size=1, max_size=6), max_size=40), st.integers(1, 5))
def test_outputs_come_in_the_order_of_the_prompts(llm: LLM, prompts: list[str], max_tokens: int) -> None:
    params = [SamplingParams(max_tokens=max_tokens, seed=i) for i in range(len(prompts))]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert all(len(output.outputs[0].token_ids) <= max_tokens for output in outputs)
    ids = [int(output.request_id) for output in outputs]
    assert ids == sorted(set(ids))


def test_equal_prompts_get_different_answers_and_each_run_the_same() -> None:
    runs = []
    for _ in range(2):
        with LLM("sim:", seed=3) as llm:
            runs.append([output.outputs[0].text for output in llm.generate(["x"] * 6, use_tqdm=False)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1
    with LLM("sim:", seed=None) as llm:
        assert [output.outputs[0].text for output in llm.generate(["x"] * 6, use_tqdm=False)] != runs[0]


WRONG_PROMPTS: list[Any] = [3, b"x", [3.5], [b"x"], {}, {"prompt": 3}, {"prompt_token_ids": "x"}, [["x"]], "", [9999]]


@pytest.mark.parametrize("wrong", WRONG_PROMPTS, ids=str)
def test_a_wrong_prompt_is_told_of_and_the_model_goes_on(llm: LLM, wrong: Any) -> None:
    with pytest.raises(PromptError):
        llm.generate(wrong, use_tqdm=False)
    with pytest.raises(PromptError):
        llm.generate(["x", wrong, "x"], use_tqdm=False)
    assert len(llm.generate(["x", "y"], use_tqdm=False)) == 2


WRONG: list[dict[str, Any]] = [
    {"temperature": -1},
    {"top_p": 7},
    {"n": 0},
    {"max_tokens": "x"},
    {"logprobs": 5000},
    {"logit_bias": 3},
    {"structured_outputs": {"json": {}}},
    {"truncate_prompt_tokens": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_parameter_is_told_of_and_the_model_goes_on(llm: LLM, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        llm.generate("x", SamplingParams(**wrong), use_tqdm=False)
    assert llm.generate("x", use_tqdm=False)[0].finished


def test_what_is_given_for_each_prompt_has_their_number(llm: LLM) -> None:
    wrong: Any = {"temperature": 1}
    for asked in (
        {"sampling_params": [SamplingParams()]},
        {"sampling_params": wrong},
        {"priority": [1]},
    ):
        arguments: dict[str, Any] = asked
        with pytest.raises(OptionError):
            llm.generate(["x", "y"], use_tqdm=False, **arguments)
    assert len(llm.generate(["x", "y"], priority=[1, 0], use_tqdm=False)) == 2


def test_max_model_len_holds_for_each_request() -> None:
    with LLM("sim:", max_model_len=20, max_num_seqs=2) as llm:
        [output] = llm.generate("a" * 12, SamplingParams(max_tokens=None), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 8
        assert output.outputs[0].finish_reason == "length"
        with pytest.raises(ContextFullError, match="max_model_len=20"):
            llm.generate("a" * 20, use_tqdm=False)
        [cut] = llm.generate("a" * 30, SamplingParams(truncate_prompt_tokens=-1, max_tokens=None), use_tqdm=False)
        assert (len(cut.prompt_token_ids), len(cut.outputs[0].token_ids)) == (19, 1)
        assert llm.engine.stats().n_parallel == 2


def test_structures_hold(llm: LLM) -> None:
    choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
    assert {text([output]) for output in llm.generate(["x"] * 8, choice, use_tqdm=False)} <= {"yes", "no"}
    old = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a{3}"))
    assert text(llm.generate("x", old, use_tqdm=False)) == "aaa"
    wrong: list[dict[str, Any]] = [{}, {"regex": "a", "choice": ["a"]}, {"json_object": False}]
    for fields in wrong:
        with pytest.raises(OptionError):
            StructuredOutputsParams(**fields)
    with pytest.raises(OptionError):
        SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"), structured_outputs=choice.structured_outputs)
    with pytest.raises(GrammarError):
        llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")), use_tqdm=False)


def test_a_chat_is_one_conversation_or_several(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, seed=1)
    [one] = llm.chat(MESSAGES, params, use_tqdm=False)
    assert one.prompt == llm.get_tokenizer().apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    two = llm.chat([MESSAGES, MESSAGES], params, use_tqdm=False)
    assert [text([output]) for output in two] == [text([one])] * 2
    wrong: list[Any] = [3, "x", [], [3], [{"content": "x"}], [MESSAGES, "x", 3]]
    for messages in wrong:
        with pytest.raises(LlamaBatchError):
            llm.chat(messages, use_tqdm=False)
    with pytest.raises(OptionError):
        llm.chat(MESSAGES, SamplingParams(truncate_prompt_tokens=3), use_tqdm=False)


def test_progress_is_told_to_what_is_called_as_tqdm_is(llm: LLM) -> None:
    told: list[Any] = []

    def bar(**kwargs: Any) -> Any:
        told.append(kwargs["total"])
        return SimpleNamespace(update=told.append, close=lambda: told.append("closed"))

    llm.generate(["x", "y", "z"], use_tqdm=bar)
    assert told == [3, 1, 1, 1, "closed"]


def test_several_threads_share_one_model(llm: LLM) -> None:
    outputs: dict[int, list[RequestOutput]] = {}

    def ask(i: int) -> None:
        prompts = [f"{i} {j}" for j in range(5)]
        outputs[i] = llm.generate(prompts, [SamplingParams(seed=j) for j in range(5)], use_tqdm=False)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        assert [output.prompt for output in outputs[i]] == [f"{i} {j}" for j in range(5)]
    ids = [output.request_id for each in outputs.values() for output in each]
    assert len(set(ids)) == 40


def test_parameters_can_be_changed_and_copied() -> None:
    params = SamplingParams(temperature=0.5)
    copied = params.clone()
    params.temperature = 0.9
    assert (copied.temperature, params.options()["temp"]) == (0.5, 0.9)
    assert SamplingParams.from_optional(temperature=None, top_p=0.9) == SamplingParams(top_p=0.9)
    with pytest.raises(OptionError, match="temperature"):
        SamplingParams.from_optional(temperatur=1)
    assert {field.name for field in dataclasses.fields(SamplingParams)} == set(tables.SAMPLING)


def test_the_constructor_takes_options_of_the_engine_and_no_others() -> None:
    with LLM("sim:", n_ctx=512, disable_log_stats=True, trust_remote_code=True, enforce_eager=True) as llm:
        assert llm.engine.stats().kv_cells_total == 512
    wrong: list[dict[str, Any]] = [{"max_model_length": 5}, {"max_model_len": -1}, {"seed": "x"}, {"max_num_seqs": 999}]
    for arguments in wrong:
        with pytest.raises(OptionError):
            LLM("sim:", **arguments)


def test_a_repository_is_told_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model").touch()
    assert _source("Qwen/Qwen3-0.6B-GGUF:Q4_K_M") == "hf:Qwen/Qwen3-0.6B-GGUF:Q4_K_M"
    for same in ("sim:", "model.gguf", "folder/model.gguf", "folder/model", "/a/b/c", "hf:owner/repo", tmp_path):
        assert _source(same) == same


def test_the_tokenizer_is_the_models(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    assert tokenizer.decode(72) == "H"
    assert len(tokenizer) == tokenizer.vocab_size == 512
    assert isinstance(tokenizer.apply_chat_template(MESSAGES), list)


def test_texts_become_vectors(llm: LLM) -> None:
    made = llm.embed(["abc", [1, 2]])
    for output in made:
        assert sum(number * number for number in output.outputs.embedding) == pytest.approx(1, abs=1e-4)
        assert output.outputs.hidden_size == len(output.outputs.embedding)
    with pytest.raises(OptionError):
        llm.embed("abc", pooling_params=3)


def test_a_model_that_nobody_holds_closes_and_says_what_it_lacks() -> None:
    llm: LLM | None = LLM("sim:")
    assert llm is not None
    for name, instead in tables.METHODS.items():
        with pytest.raises(AttributeError) as caught:
            getattr(llm, name)
        assert instead in str(caught.value)
        del caught
    gone = weakref.ref(llm.engine)
    llm = None
    gc.collect()
    assert gone() is None
