"""What the READMEs of llama-cpp-python and vLLM show, called in the same way on a real model."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from llama_batch.compat.llama_cpp import CHAT_FORMATS, Llama, LlamaGrammar
from llama_batch.compat.vllm import LLM, SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": "Who is 25 years old?"}]


@pytest.fixture(scope="module")
def llama(smollm2: Path) -> Iterator[Llama]:
    with Llama(model_path=str(smollm2), n_gpu_layers=-1, seed=1337, n_ctx=2048, verbose=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[LLM]:
    with LLM(model=str(smollm2), trust_remote_code=True, max_model_len=1024) as llm:
        yield llm


def test_llama_completes(llama: Llama) -> None:
    output = llama("Q: Which planets are there? A: ", max_tokens=24, stop=["Q:", "\n"], echo=True)
    [choice] = output["choices"]
    assert choice["text"].startswith("Q: Which planets are there? A: ")
    assert choice["finish_reason"] in {"stop", "length"}
    assert output["usage"]["prompt_tokens"] == len(llama.tokenize(b"Q: Which planets are there? A: "))


def test_llama_streams_and_tells_likelihoods(llama: Llama) -> None:
    whole = llama.create_completion("The sky is", max_tokens=6, temperature=0, logprobs=2)["choices"][0]
    chunks = list(llama.create_completion("The sky is", max_tokens=6, temperature=0, logprobs=2, stream=True))
    tokens = [token for chunk in chunks if (told := chunk["choices"][0]["logprobs"]) for token in told["tokens"]]
    assert "".join(tokens) == "".join(whole["logprobs"]["tokens"]) == whole["text"]


def test_llama_chats_keeps_to_a_schema_and_calls_tools(llama: Llama) -> None:
    shape: dict[str, Any] = {"type": "json_object", "schema": PERSON}
    answer = llama.create_chat_completion(MESSAGES, response_format=shape, temperature=0.7, max_tokens=120)
    [choice] = answer["choices"]
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    tool = {"type": "function", "function": {"name": "Person", "parameters": PERSON}}
    named = {"type": "function", "function": {"name": "Person"}}
    answer = llama.create_chat_completion(MESSAGES, tools=[tool], tool_choice=named, max_tokens=120)
    [choice] = answer["choices"]
    if choice["finish_reason"] == "tool_calls":
        [call] = choice["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), PERSON)
    else:
        assert choice["finish_reason"] == "length"
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
    assert llama("Is it? ", grammar=grammar)["choices"][0]["text"] in {"yes", "no"}


def test_llama_serves_threads(llama: Llama) -> None:
    answers: dict[int, str] = {}

    def ask(i: int) -> None:
        said = llama.create_chat_completion([{"role": "user", "content": f"Say {i}."}], max_tokens=8)
        answers[i] = said["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert all(answers.values())


def test_chat_formats_render_what_was_said(smollm2: Path) -> None:
    with Llama(str(smollm2), chat_format="chatml-function-calling") as llama:
        for template, _ in CHAT_FORMATS.values():
            talk = [*MESSAGES, {"role": "assistant", "content": "Jason."}, {"role": "user", "content": "And who not?"}]
            prompt = llama.engine.model.apply_chat_template(talk, chat_template=template)
            places = [prompt.index(str(message["content"])) for message in talk]
            assert places == sorted(places)
            assert prompt.count("You answer briefly.") == 1
        assert llama.create_chat_completion(MESSAGES, max_tokens=4)["choices"][0]["message"]["content"]


def test_vllm_generates(llm: LLM) -> None:
    prompts = ["Hello, I am called", "The president of a country is", "The capital of France is", "One day, AI will"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    outputs = llm.generate(prompts, sampling_params)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == prompt
        assert output.prompt_token_ids == llm.get_tokenizer().encode(prompt)
        assert output.outputs[0].text
        assert len(output.outputs[0].token_ids) <= 16


def test_vllm_chats_with_the_tokens_that_the_engine_counts(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6)
    [output] = llm.chat(MESSAGES, params, use_tqdm=False)
    assert output.prompt is not None
    assert output.prompt.count("You answer briefly.") == 1
    counted = llm.engine.chat(MESSAGES, max_tokens=1).result().usage.prompt_tokens
    assert len(output.prompt_token_ids) == counted
    choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["Positive", "Negative"]))
    [output] = llm.generate("Is this good or bad: llamas are wonderful! It is", choice, use_tqdm=False)
    assert output.outputs[0].text in {"Positive", "Negative"}


def test_vllm_writes_control_tokens_where_they_are_wanted(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("<|im_start|>")
    params = SamplingParams(allowed_token_ids=ids, max_tokens=2, skip_special_tokens=False)
    assert llm.generate("x", params, use_tqdm=False)[0].outputs[0].text == "<|im_start|>" * 2
