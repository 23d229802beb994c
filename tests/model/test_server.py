"""The server over a real model, by the official client of OpenAI."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import pytest
from live_server import Process, post, served, wait_for_slots
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llama_batch import Engine

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def port(engine: Engine) -> Iterator[int]:
    with served(engine, model_name="smollm2") as (port, _):
        yield port


@pytest.fixture
def client(port: int) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_question_is_answered(client: OpenAI) -> None:
    done = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=40)
    assert done.choices[0].message.content
    assert done.choices[0].finish_reason in {"stop", "length"}
    again = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=5)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 10
    assert done.system_fingerprint is not None
    assert done.system_fingerprint.startswith("b")


def test_an_answer_keeps_to_a_class(client: OpenAI) -> None:
    class Capital(BaseModel):
        country: Literal["France", "Italy"]
        city: str

    done = client.chat.completions.parse(
        model="smollm2", messages=QUESTION, response_format=Capital, temperature=0, max_tokens=100
    )
    assert isinstance(done.choices[0].message.parsed, Capital)


def test_biases_reach_the_model(client: OpenAI, engine: Engine) -> None:
    [token] = engine.model.tokenize(" blue", add_special=False)
    done = client.completions.create(
        model="smollm2", prompt="The sky is", max_tokens=3, temperature=0, logit_bias={str(token): 100}
    )
    assert done.choices[0].text == " blue" * 3


def test_a_text_is_scored(client: OpenAI, engine: Engine) -> None:
    def score(text: str) -> float:
        done = client.completions.create(model="smollm2", prompt=text, max_tokens=0, echo=True, logprobs=0)
        told = done.choices[0].logprobs
        assert told is not None
        assert told.token_logprobs is not None
        return sum(told.token_logprobs[1:])

    assert score("The capital of France is Paris") > score("The capital of France is spoon")


def test_many_streams_at_once(port: int) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:

            async def one(i: int) -> tuple[str, int]:
                text, n = "", 0
                async for chunk in await client.completions.create(
                    model="smollm2",
                    prompt=f"Number {i} is",
                    max_tokens=12,
                    seed=i,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                ):
                    text += chunk.choices[0].text if chunk.choices else ""
                    n = chunk.usage.completion_tokens if chunk.usage else n
                return text, n

            answers = await asyncio.gather(*(one(i) for i in range(24)))
            assert all(text and n == 12 for text, n in answers)

    asyncio.run(main())


def test_native_answers_and_tokens(port: int, engine: Engine) -> None:
    def ask(path: str, body: Any = None) -> Any:
        return json.loads(post(port, path, body)[2])

    body = {"prompt": "The sky is", "n_predict": 4, "temperature": 0, "n_probs": 3, "return_tokens": True}
    made = ask("/completion", body)
    assert engine.model.detokenize(made["tokens"]) == made["content"]
    assert len(made["completion_probabilities"]) == 4
    rendered = ask("/apply-template", {"messages": QUESTION})["prompt"]
    assert rendered == engine.model.apply_chat_template(QUESTION)
    counted = ask("/tokenize", {"messages": QUESTION})["count"]
    done = ask("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 1})
    assert counted == done["usage"]["prompt_tokens"]
    props = ask("/props")
    assert props["eos_token"] == "<|im_end|>"
    assert props["chat_template"] == engine.model.chat_template
    assert ask("/v1/models")["data"][0]["meta"]["n_vocab"] == engine.model.n_vocab


def test_a_long_prompt_tells_of_its_reading(port: int) -> None:
    body = {"prompt": "A word and another. " * 150, "max_tokens": 2, "stream": True, "return_progress": True}
    lines = post(port, "/v1/completions", body)[2].splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told[-1]["processed"] == told[-1]["total"] > 500
    assert [each["processed"] for each in told] == sorted(each["processed"] for each in told)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_answers_that_are_under_way(smollm2: Path, first: int) -> None:
    flags = ("--n-parallel", "2", "--n-ctx", "4096", "--drain-timeout", "600")
    body = {"prompt": "Once upon a time", "max_tokens": 1800, "ignore_eos": True}
    with Process("--model", str(smollm2), *flags) as server, ThreadPoolExecutor(2) as pool:
        port = server.port
        stream = pool.submit(post, port, "/v1/completions", {**body, "stream": True})
        whole = pool.submit(post, port, "/v1/completions", body)
        wait_for_slots(port, 2)
        server.signal(first)
        assert server.told("draining")["in_flight"] == 2
        assert post(port, "/v1/completions", body)[0] == 503
        server.signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert stream.result()[2].endswith("data: [DONE]\n\n")
        assert '"finish_reason":"abort"' in stream.result()[2]
        assert json.loads(whole.result()[2])["choices"][0]["finish_reason"] == "abort"
