"""llama-cpp-python's class on the simulated model: its shapes, its arguments, its callers."""

from __future__ import annotations

import gc
import inspect
import json
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_batch import EngineClosedError, GrammarError, ModelNotFoundError, OptionError, PromptError
from llama_batch.compat.llama_cpp import CHAT_FORMATS, Llama, LlamaGrammar, hub
from llama_batch.compat.llama_cpp import arguments as tables
from llama_batch.compat.llama_cpp.options import ENDLESS, request_options, start_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llama_batch.compat.arguments import Table

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLS: dict[str, tuple[Any, Table]] = {
    "Llama": (Llama.__init__, tables.LLAMA),
    "from_pretrained": (Llama.from_pretrained, tables.FROM_PRETRAINED),
    "create_completion": (Llama.create_completion, tables.COMPLETION),
    "__call__": (Llama.__call__, tables.COMPLETION),
    "create_chat_completion": (Llama.create_chat_completion, tables.CHAT),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama("sim:", seed=7) as llm:
        yield llm


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(function).parameters)
    return {name: found[name] for name in found if name not in {"self", "options"}}


@pytest.mark.parametrize("name", CALLS)
def test_the_table_has_every_parameter_and_takes_every_default(name: str) -> None:
    function, table = CALLS[name]
    assert set(parameters(function)) == set(table)
    for parameter in parameters(function).values():
        if table[parameter.name].fate == "refused":
            assert parameter.default in table[parameter.name].accepted


def refusals() -> list[tuple[str, str]]:
    return [(call, row.name) for call, (_, table) in CALLS.items() for row in table.values() if row.fate == "refused"]


@pytest.mark.parametrize(("call", "name"), refusals())
def test_what_is_not_supported_raises_and_names_its_replacement(llm: Llama, call: str, name: str) -> None:
    calls: dict[str, Any] = {
        "Llama": lambda **kw: Llama("sim:", **kw),
        "from_pretrained": lambda **kw: Llama.from_pretrained("owner/repo", "model.gguf", **kw),
        "create_completion": lambda **kw: llm.create_completion("x", **kw),
        "__call__": lambda **kw: llm("x", **kw),
        "create_chat_completion": lambda **kw: llm.create_chat_completion(MESSAGES, **kw),
    }
    with pytest.raises(OptionError) as caught:
        calls[call](**{name: object()})
    assert name in str(caught.value)
    assert CALLS[call][1][name].text in str(caught.value)
    assert llm("x", max_tokens=1)["choices"][0]["finish_reason"] == "length"


def test_a_completion_has_the_original_shape(llm: Llama) -> None:
    made = llm("Hello", max_tokens=5, echo=True, logprobs=2, model="name")
    assert set(made) == {"id", "object", "created", "model", "choices", "usage"}
    assert made["id"].startswith("cmpl-")
    assert (made["object"], made["model"]) == ("text_completion", "name")
    [choice] = made["choices"]
    assert set(choice) == {"text", "index", "logprobs", "finish_reason"}
    assert choice["text"].startswith("Hello ")
    assert choice["finish_reason"] == "length"
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == 10
    assert json.dumps(made)


@given(st.text(max_size=20), st.integers(1, 12), st.booleans())
def test_a_stream_adds_up_to_the_whole(llm: Llama, prompt: str, max_tokens: int, echo: bool) -> None:
    prompt = "a" + prompt
    whole = llm(prompt, max_tokens=max_tokens, echo=echo)
    chunks = list(llm(prompt, max_tokens=max_tokens, echo=echo, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_chat_has_the_original_shape_whole_and_streamed(llm: Llama) -> None:
    whole = llm.create_chat_completion(MESSAGES, max_tokens=6, logprobs=True, top_logprobs=1)
    assert (whole["object"], whole["id"][:9]) == ("chat.completion", "chatcmpl-")
    [choice] = whole["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == 6
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=6, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_seed_of_the_model_makes_calls_equal_and_a_random_one_does_not(llm: Llama) -> None:
    texts = [llm("x", seed=seed)["choices"][0]["text"] for seed in (None, None, -1, -1, 3, 3)]
    assert texts[0] == texts[1]
    assert texts[2] != texts[3]
    assert texts[4] == texts[5] != texts[0]
    with Llama("sim:") as other:
        assert other("x")["choices"][0]["text"] != other("x")["choices"][0]["text"]
        other.set_seed(3)
        assert other("x")["choices"][0]["text"] == texts[4]


def test_max_tokens_none_fills_the_context(llm: Llama) -> None:
    for max_tokens in (None, 0, -1):
        made = llm("Hello", max_tokens=max_tokens, stop="no such text")
        assert made["usage"]["total_tokens"] >= llm.n_ctx() == 512
        assert made["choices"][0]["finish_reason"] == "length"


def test_grammars_hold(llm: Llama, tmp_path: Path) -> None:
    file = tmp_path / "g.gbnf"
    file.write_text('root ::= "yes" | "no"')
    for grammar in (LlamaGrammar.from_string(file.read_text()), LlamaGrammar.from_file(file)):
        assert llm("x", grammar=grammar)["choices"][0]["text"] in {"yes", "no"}
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    asked: list[dict[str, Any]] = [
        {"grammar": LlamaGrammar.from_json_schema(json.dumps(schema))},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
    ]
    for kwargs in asked:
        made = llm.create_chat_completion(MESSAGES, max_tokens=300, **kwargs)["choices"][0]
        assert made["finish_reason"] == "length" or json.loads(made["message"]["content"])["a"] in {1, 2}
    with pytest.raises(GrammarError):
        llm("x", grammar=LlamaGrammar.from_string("root ::= nothing"))


def test_a_suffix_stands_behind_the_answer_of_a_model_that_cannot_fill_in(llm: Llama) -> None:
    assert llm("x", suffix="END", max_tokens=2)["choices"][0]["text"].endswith("END")


WRONG: list[dict[str, Any]] = [
    {"max_tokens": "x"},
    {"temperature": -1},
    {"top_k": "x"},
    {"stop": 3},
    {"seed": "x"},
    {"seed": True},
    {"grammar": "root ::= x"},
    {"logit_bias": {"no number": 1}},
    {"logit_bias": 3},
    {"echo": True, "logprobs": 1, "stream": True},
    {"suffix": 3},
]
WRONG_CHATS: list[dict[str, Any]] = [
    {"response_format": {"type": "xml"}},
    {"response_format": "json"},
    {"response_format": {"type": "json_object"}, "grammar": LlamaGrammar.from_string('root ::= "x"')},
    {"tools": [TOOL], "functions": [TOOL["function"]]},
    {"functions": 3},
    {"tools": [TOOL], "tool_choice": "auto", "function_call": "auto"},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"top_logprobs": 3},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_argument_is_an_option_error_and_the_model_goes_on(llm: Llama, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        llm("x", **wrong)
    assert llm("x", max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("wrong", [5, None, [1, 2], {"a": "b"}, b"x"], ids=str)
def test_only_texts_are_embedded(llm: Llama, wrong: Any) -> None:
    for call in (llm.embed, llm.create_embedding):
        with pytest.raises(OptionError):
            call(wrong)


@pytest.mark.parametrize("wrong", WRONG_CHATS, ids=str)
def test_a_wrong_argument_of_a_chat_is_an_option_error(llm: Llama, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        llm.create_chat_completion(MESSAGES, **wrong)
    assert llm.create_chat_completion(MESSAGES, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_wrong_model_or_option_is_told_of_by_the_constructor() -> None:
    for wrong in ({"type_k": 99}, {"split_mode": 7}, {"chat_format": "functionary-v2"}, {"n_ctxx": 5}, {"n_ctx": "x"}):
        arguments: dict[str, Any] = dict(wrong)
        with pytest.raises(OptionError):
            Llama("sim:", **arguments)
    with pytest.raises(ModelNotFoundError):
        Llama("no/such/model.gguf")


def test_start_options_are_those_of_the_original() -> None:
    defaults = {name: parameter.default for name, parameter in parameters(Llama.__init__).items()}
    made = start_options(defaults)
    assert (made["n_ctx"], made["n_gpu_layers"], made["flash_attn"]) == (512, 0, "off")
    assert "yarn_beta_fast" not in made
    assert "seed" not in made
    made = start_options({**defaults, "type_k": 8, "yarn_beta_fast": 16.0, "seed": 1337, "flash_attn": True})
    assert (made["type_k"], made["yarn_beta_fast"], made["seed"], made["flash_attn"]) == ("q8_0", 16.0, 1337, "on")


def test_every_honoured_argument_reaches_the_engine() -> None:
    defaults = {name: parameter.default for name, parameter in parameters(Llama.create_completion).items()}
    plain = request_options(tables.COMPLETION, defaults)
    assert (plain["max_tokens"], plain["temp"], plain["min_p"]) == (16, 0.8, 0.05)
    changed: dict[str, Any] = {
        "temperature": 1.5,
        "top_p": 0.5,
        "min_p": 0.2,
        "typical_p": 0.9,
        "top_k": 3,
        "frequency_penalty": 0.1,
    }
    changed |= {"presence_penalty": 0.2, "repeat_penalty": 1.2, "seed": 5, "mirostat_mode": 2, "mirostat_tau": 4.0}
    changed |= {"mirostat_eta": 0.3, "max_tokens": None, "stop": ["a"], "logit_bias": {"5": 1}, "logprobs": 3}
    for name, value in changed.items():
        made = request_options(tables.COMPLETION, {**defaults, name: value})
        assert made != plain, name
    assert request_options(tables.COMPLETION, {**defaults, "max_tokens": None})["max_tokens"] == ENDLESS
    assert request_options(tables.COMPLETION, {**defaults, "logit_bias": {"5": 1}})["logit_bias"] == {5: 1.0}


def test_several_threads_share_one_model() -> None:
    with Llama("sim:?pass_ms=5", n_parallel=8, n_ctx=4096) as llm:
        texts: dict[int, str] = {}

        def ask(i: int) -> None:
            texts[i] = llm(f"prompt {i}", max_tokens=20, seed=i)["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ticks = llm.engine.stats().n_ticks
        assert ticks < 16 * 20  # they shared passes
        assert texts == {i: llm(f"prompt {i}", max_tokens=20, seed=i)["choices"][0]["text"] for i in range(16)}


def test_leaving_a_stream_cancels_its_request() -> None:
    with Llama("sim:?pass_ms=5", n_ctx=8192) as llm:
        stream = llm("x", max_tokens=None, stream=True)
        next(stream)
        stream.close()
        unread = llm.create_chat_completion(MESSAGES, stream=True)
        del unread
        gc.collect()
        deadline = time.monotonic() + 30
        while llm.engine.stats().in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert llm.engine.stats().n_cancelled == 2


def test_a_model_closes_and_one_that_nobody_holds_does_too() -> None:
    llm = Llama("sim:")
    engine = llm.engine
    llm.reset()
    llm.close()
    assert engine.state == "closed"
    with pytest.raises(EngineClosedError):
        llm("x")
    other = Llama("sim:?pass_ms=5", n_ctx=4096)
    stream = other("x", max_tokens=None, stream=True)
    next(stream)
    gone = weakref.ref(other.engine)
    del other
    assert next(stream)["object"] == "text_completion", "a stream keeps its model"
    del stream
    gc.collect()
    assert gone() is None


def test_tokens_come_and_go_as_bytes(llm: Llama) -> None:
    tokens = llm.tokenize("Hällo".encode())
    assert llm.detokenize(tokens) == "Hällo".encode()
    assert llm.detokenize(tokens[2:], prev_tokens=tokens[:2]) == "Hällo".encode()[2:]
    assert (llm.n_vocab(), llm.token_bos(), llm.token_eos()) == (512, -1, -1)
    wrong: Any = "text"
    for bad in (wrong, b"\xff"):
        with pytest.raises(PromptError):
            llm.tokenize(bad)


def test_what_only_the_original_has_says_what_to_use(llm: Llama) -> None:
    for name, instead in tables.METHODS.items():
        with pytest.raises(AttributeError, match="instead: ") as caught:
            getattr(llm, name)
        assert instead in str(caught.value)
    assert not hasattr(llm, "no_such_thing")


def test_texts_become_vectors(llm: Llama) -> None:
    plain = llm.embed("abc")
    unit, other = llm.embed(["abc", "a" * 100], normalize=True)
    assert sum(number * number for number in unit) == pytest.approx(1, abs=1e-4)
    assert unit != other
    length = math.sqrt(sum(number * number for number in plain))
    assert [number / length for number in plain] == pytest.approx(unit, abs=1e-4)
    made = llm.create_embedding(["ab", "c"])
    assert [row["index"] for row in made["data"]] == [0, 1]
    assert made["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_a_pattern_names_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a-q4_0.gguf", "a-q8_0.gguf", "b-f16-00001-of-00002.gguf", "b-f16-00002-of-00002.gguf", "README.md"]
    monkeypatch.setattr(hub, "_cached", lambda _: [])
    monkeypatch.setattr(hub, "_listed", lambda _: names)
    assert hub.matching_file("o/r", "*q8_0.gguf") == "a-q8_0.gguf"
    assert hub.matching_file("o/r", "*f16*") == "b-f16-00001-of-00002.gguf"
    assert hub.matching_file("o/r", "any-name.gguf") == "any-name.gguf"
    for pattern in ("*.gguf", "*q5*", "*.md"):
        with pytest.raises(OptionError):
            hub.matching_file("o/r", pattern)


def test_from_pretrained_asks_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Llama, "__init__", lambda _, path, **kw: asked.append((path, kw)))
    monkeypatch.setattr(hub, "_cached", lambda _: ["a-q8_0.gguf"])
    Llama.from_pretrained(repo_id="o/r", filename="*q8_0.gguf", verbose=False, n_ctx=2048)
    assert asked == [("hf:o/r:a-q8_0.gguf", {"verbose": False, "n_ctx": 2048})]
    wrong: Any = None
    with pytest.raises(OptionError):
        Llama.from_pretrained("o/r", wrong)


def test_every_chat_format_has_a_template_and_an_end() -> None:
    assert all("{% for" in template and stops for template, stops in CHAT_FORMATS.values())
