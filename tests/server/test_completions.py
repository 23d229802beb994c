"""`/v1/completions` and `/completion` over a simulated model."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from asgi_client import AsgiClient, until
from llama_batch.server import create_app
from llama_batch.server.fim import fill_in_the_middle, fim_tokens
from llama_batch.server.requests import CompletionRequest, NativeRequest, engine_options, read

if TYPE_CHECKING:
    from llama_batch import Engine

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"


async def test_a_text_is_gone_on_with(client: AsgiClient, engine: Engine) -> None:
    answer = await client.post(PATH, {"prompt": "Once", "max_tokens": 6, "seed": 1})
    done = await engine.generate("Once", max_tokens=6, seed=1)
    made = answer.json()
    assert made["object"] == "text_completion"
    assert made["model"] == "simulated"
    [choice] = made["choices"]
    assert choice == {"index": 0, "text": done.text, "logprobs": None, "finish_reason": "length", "stop_reason": None}


@pytest.mark.parametrize(
    "prompts",
    [["Once", "Twice"], [[5, 6, 7], [8, 9]], ["Once"]],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_prompt_gets_its_answers_in_order(client: AsgiClient, prompts: list[Any], stream: bool) -> None:
    body = {"max_tokens": 5, "n": 2, "seed": 7}
    alone = [(await client.post(PATH, {**body, "prompt": prompt})).json()["choices"] for prompt in prompts]
    wanted = [choice["text"] for choices in alone for choice in choices]
    answer = await client.post(PATH, {**body, "prompt": prompts, "stream": stream})
    if stream:
        texts = [""] * len(wanted)
        for event in answer.events:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    else:
        texts = [choice["text"] for choice in answer.json()["choices"]]
        assert [choice["index"] for choice in answer.json()["choices"]] == list(range(len(wanted)))
    assert texts == wanted


async def test_a_list_of_token_ids_is_one_prompt(client: AsgiClient) -> None:
    answer = await client.post(PATH, {"prompt": [5, 6, 7], "max_tokens": 3})
    assert len(answer.json()["choices"]) == 1
    assert answer.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompt", ["Once upon", "é☃ x", [79, 110, 200]])
async def test_echoed_tokens_make_the_text_and_know_their_places(client: AsgiClient, prompt: str | list[int]) -> None:
    for n_tokens in (0, 3):
        body = {"prompt": prompt, "max_tokens": n_tokens, "seed": 5, "echo": True, "logprobs": 1}
        choice = (await client.post(PATH, body)).json()["choices"][0]
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None
        assert told["tokens"][0] == choice["text"][:1] or not choice["text"][:1].isascii()
        if choice["text"].isascii():
            assert "".join(told["tokens"]) == choice["text"]
            for token, place in zip(told["tokens"], told["text_offset"], strict=True):
                assert choice["text"][place : place + len(token)] == token


async def test_the_prompt_is_echoed(client: AsgiClient) -> None:
    body = {"prompt": "Once upon", "max_tokens": 4, "seed": 2}
    plain = (await client.post(PATH, body)).json()["choices"][0]["text"]
    whole = await client.post(PATH, {**body, "echo": True})
    stream = await client.post(PATH, {**body, "echo": True, "stream": True})
    assert whole.json()["choices"][0]["text"] == "Once upon" + plain
    assert "".join(event["choices"][0]["text"] for event in stream.events) == "Once upon" + plain


async def test_a_prompt_can_be_scored_without_an_answer(client: AsgiClient) -> None:
    answer = await client.post(PATH, {"prompt": "Once upon", "max_tokens": 0, "echo": True, "logprobs": 1})
    [choice] = answer.json()["choices"]
    logprobs, n = choice["logprobs"], answer.json()["usage"]["prompt_tokens"]
    assert choice["text"] == "Once upon"
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == n
    assert logprobs["token_logprobs"][0] is None
    assert all(isinstance(each, float) for each in logprobs["token_logprobs"][1:])


async def test_logprobs_of_the_prompt_come_in_vllms_shape(client: AsgiClient) -> None:
    asked = {"prompt_logprobs": 2, "max_tokens": 2}
    text = (await client.post(PATH, {"prompt": "Once upon", **asked})).json()
    chat = (
        await client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **asked})
    ).json()
    for told, n in (
        (text["choices"][0]["prompt_logprobs"], text["usage"]["prompt_tokens"]),
        (chat["prompt_logprobs"], chat["usage"]["prompt_tokens"]),
    ):
        assert told[0] is None
        assert len(told) == n
        assert all({"logprob", "rank", "decoded_token"} == set(each) for row in told[1:] for each in row.values())
        assert all(2 <= len(row) <= 3 for row in told[1:])
    for path in (PATH, "/completion"):
        refused = await client.post(path, {"prompt": "Once", "stream": True, **asked})
        assert (refused.status, refused.error["param"]) == (501, "prompt_logprobs")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_lists_with_offsets(client: AsgiClient, stream: bool) -> None:
    answer = await client.post(
        PATH, {"prompt": "Once", "max_tokens": 5, "regex": "[a-z ]{40}", "logprobs": 2, "stream": stream}
    )
    choices = [event["choices"][0] for event in answer.events] if stream else answer.json()["choices"]
    text = "".join(choice["text"] for choice in choices)
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    offsets = [offset for choice in choices if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
    assert "".join(tokens) == text
    assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


async def test_best_of_sends_the_likeliest(client: AsgiClient, engine: Engine) -> None:
    body = {"prompt": "Once", "max_tokens": 5, "seed": 3}
    answer = await client.post(PATH, {**body, "best_of": 6, "n": 2})
    done = await engine.generate("Once", max_tokens=5, seed=3, n=6, logprobs=0)

    def mean(choice: Any) -> float:
        return float(sum(each.logprob for each in choice.logprobs) / len(choice.logprobs))

    wanted = [choice.text for choice in sorted(done.choices, key=mean, reverse=True)[:2]]
    assert [choice["text"] for choice in answer.json()["choices"]] == wanted
    assert answer.json()["choices"][0]["logprobs"] is None
    assert answer.json()["usage"]["completion_tokens"] == 30
    for wrong in ({"best_of": 1, "n": 2}, {"best_of": 3, "stream": True}):
        refused = await client.post(PATH, {**body, **wrong})
        assert (refused.status, refused.error["param"]) == (400, "best_of")


async def test_stops_are_honoured(client: AsgiClient, engine: Engine) -> None:
    text = (await engine.generate("Once", max_tokens=12, seed=1)).text
    stop = text[3:5]
    answer = await client.post(PATH, {"prompt": "Once", "max_tokens": 12, "seed": 1, "stop": stop})
    assert answer.json()["choices"][0]["text"] == text[: text.index(stop)]
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.json()["choices"][0]["stop_reason"] == stop


async def test_biases_name_tokens_by_text_as_json_must(client: AsgiClient) -> None:
    request = read(CompletionRequest, {"prompt": "x", "logit_bias": {"70": -100, "no": False}})
    assert engine_options(request)["logit_bias"] == {70: -100, "no": False}
    native = read(NativeRequest, {"prompt": "x", "logit_bias": [[70, -1.5], ["no", False]]})
    assert engine_options(native)["logit_bias"] == {70: -1.5, "no": False}
    for path in (PATH, "/completion"):
        for wrong in ({"x": "y"}, [[1]], [[True, 1]], [["a", "b"]], "text", {"99999999": 1}):
            assert (await client.post(path, {"prompt": "x", "logit_bias": wrong})).status == 400, wrong


async def test_one_prompt_that_cannot_be_served_ends_all(client: AsgiClient, engine: Engine) -> None:
    answer = await client.post(PATH, {"prompt": ["Once", "x " * 5000], "max_tokens": 3000})
    assert answer.status == 400
    await until(lambda: engine.stats().in_flight == 0)
    mixed = await client.post(PATH, {"prompt": ["Once", ""], "max_tokens": 3000})
    assert (mixed.status, mixed.error["code"]) == (400, "empty_prompt")
    await until(lambda: engine.stats().in_flight == 0)


async def test_more_prompts_than_fit_at_once_are_no_matter_of_patience(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    for path in (PATH, "/completion"):
        four = await client.post(path, {"prompt": ["x"] * 4, "max_tokens": 2})
        five = await client.post(path, {"prompt": ["x"] * 5, "max_tokens": 2})
        assert (four.status, five.status) == (200, 400)
        assert five.error["code"] == "too_many_choices"
        await until(lambda: slow.stats().in_flight == 0)


async def test_a_suffix_needs_a_model_that_fills_in(client: AsgiClient) -> None:
    answer = await client.post(PATH, {"prompt": "Once", "suffix": "end"})
    assert (answer.status, answer.error["param"]) == (501, "suffix")
    assert (await client.post(PATH, {"prompt": "Once", "suffix": "", "max_tokens": 1})).status == 200


# --- llama-server's own ---


async def test_the_native_route_answers_in_its_shape(client: AsgiClient, engine: Engine) -> None:
    answer = await client.post("/completion", {"prompt": "Once", "n_predict": 5, "seed": 1, "return_tokens": True})
    done = await engine.generate("Once", max_tokens=5, seed=1)
    made = answer.json()
    assert made["content"] == done.text
    assert made["tokens"] == list(done.token_ids)
    assert (made["stop"], made["stop_type"], made["truncated"]) == (True, "limit", False)
    assert (made["tokens_predicted"], made["tokens_evaluated"]) == (5, done.usage.prompt_tokens)
    assert made["generation_settings"]["seed"] == 1
    assert made["timings"]["predicted_n"] == 5
    assert "scope" not in answer.text


async def test_native_streams_end_with_the_whole_story(client: AsgiClient) -> None:
    body = {"prompt": "Once", "n_predict": 5, "seed": 1}
    whole = (await client.post("/completion", body)).json()
    answer = await client.post("/completion", {**body, "stream": True, "return_tokens": True})
    *pieces, last = answer.events
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [token for piece in pieces for token in piece["tokens"]]
    assert all(not piece["stop"] for piece in pieces)
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize(
    ("prompt", "n"),
    [
        ("Once", 1),
        ([5, 6], 1),
        ([5, "Once", 6], 1),
        (["Once"], 1),
        (["Once", [5, 6]], 2),
        ({"prompt_string": "Once"}, 1),
    ],
)
async def test_native_prompts_have_many_forms(client: AsgiClient, prompt: Any, n: int) -> None:
    made = (await client.post("/completion", {"prompt": prompt, "n_predict": 3})).json()
    assert len(made if isinstance(made, list) else [made]) == n


async def test_native_probabilities(client: AsgiClient) -> None:
    body = {"prompt": "Once", "n_predict": 3, "n_probs": 4}
    told = (await client.post("/completion", body)).json()["completion_probabilities"]
    assert len(told) == 3
    assert all(len(each["top_logprobs"]) == 4 for each in told)
    post = (await client.post("/completion", {**body, "post_sampling_probs": True})).json()["completion_probabilities"]
    assert all(0 <= each["prob"] <= 1 and "top_probs" in each for each in post)


async def test_native_answers_have_the_fields_that_are_wanted(client: AsgiClient) -> None:
    body = {"prompt": "Once", "n_predict": 3, "response_fields": ["content", "timings/predicted_n", "nothing"]}
    made = (await client.post("/completion", body)).json()
    assert set(made) == {"content", "predicted_n"}


async def test_tokens_and_templates(client: AsgiClient, engine: Engine) -> None:
    ids = engine.model.tokenize("Hello", add_special=False)
    assert (await client.post("/tokenize", {"content": "Hello"})).json() == {"tokens": ids}
    pieces = (await client.post("/tokenize", {"content": "Hello", "with_pieces": True})).json()["tokens"]
    assert [each["id"] for each in pieces] == ids
    vllm = (await client.post("/tokenize", {"prompt": "Hello", "return_token_strs": True})).json()
    assert vllm["count"] == len(vllm["tokens"]) == len(vllm["token_strs"])
    assert vllm["max_model_len"] == 4096
    assert (await client.post("/detokenize", {"tokens": ids})).json() == {"content": "Hello", "prompt": "Hello"}
    messages = [{"role": "user", "content": "Hi"}]
    rendered = (await client.post("/apply-template", {"messages": messages})).json()["prompt"]
    assert rendered == engine.model.apply_chat_template(messages)
    chat = (await client.post("/tokenize", {"messages": messages})).json()["tokens"]
    assert chat == engine.model.tokenize(rendered, add_special=False)
    wrongs: list[dict[str, Any]] = [{}, {"content": "a", "prompt": "b"}, {"messages": []}]
    for wrong in wrongs:
        assert (await client.post("/tokenize", wrong)).status == 400
    assert (await client.post("/detokenize", {"tokens": [10**9]})).status == 400


async def test_operators_are_told(engine: Engine) -> None:
    client = AsgiClient(create_app(engine, model_name="mine"))
    assert (await client.get("/health")).json() == {"status": "ok"}
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == "mine"
    assert (await client.get("/v1/models/mine")).json()["id"] == "mine"
    assert (await client.get("/v1/models/other")).status == 404
    props = (await client.get("/props")).json()
    assert (props["total_slots"], props["model_alias"]) == (4, "mine")
    slots = (await client.get("/slots")).json()
    assert [(slot["id"], slot["is_processing"]) for slot in slots] == [(i, False) for i in range(4)]
    metrics = await client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "llama_batch_num_requests_running" in metrics.text
    assert "vllm:num_requests_running" in (await client.get("/metrics?compat=vllm")).text
    assert (await client.get("/metrics?compat=nobody")).status == 400


async def test_slots_tell_what_runs(slow: Engine) -> None:
    client = AsgiClient(create_app(slow))
    busy = [asyncio.create_task(client.post("/completion", {"prompt": "x", "n_predict": 30})) for _ in range(2)]
    await until(lambda: slow.stats().active_slots == 2)
    slots = (await client.get("/slots")).json()
    assert all(slot["is_processing"] and slot["id_task"] > 0 for slot in slots)
    assert (await client.get("/slots?fail_on_no_slot=1")).status == 503
    await asyncio.gather(*busy)
    assert (await client.get("/slots?fail_on_no_slot=1")).status == 200


async def test_texts_become_vectors(client: AsgiClient, engine: Engine) -> None:
    made = (await client.post("/v1/embeddings", {"input": ["Hello", "x"]})).json()
    expected = engine.embed(["Hello", "x"]).result()
    assert [row["embedding"] for row in made["data"]] == [pytest.approx(vector.tolist()) for vector in expected.vectors]
    assert made["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    packed = await client.post("/v1/embeddings", {"input": "Hello", "encoding_format": "base64"})
    assert base64.b64decode(packed.json()["data"][0]["embedding"]) == expected.vectors[0].tobytes()
    long = await client.post("/v1/embeddings", {"input": "x" * 100_000})
    assert (long.status, "100000" in long.error["message"]) == (400, True)
    assert (await client.post("/v1/embeddings", {"input": ""})).status == 400


class _FillsIn:
    """What the server asks of a model that fills in the middle."""

    metadata: ClassVar[dict[str, str]] = {}
    tokens: ClassVar[dict[str, int]] = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if parse_special and text in self.tokens:
            return [self.tokens[text]]
        return [9] * add_special + [ord(letter) for letter in text]


def test_the_middle_is_asked_for_as_models_learn_it() -> None:
    model: Any = _FillsIn()
    assert fill_in_the_middle(model, "ab", "<|fim_middle|>x") == [9, 1, 97, 98, 2, *map(ord, "<|fim_middle|>x"), 3]
    assert fill_in_the_middle(model, [5, 6], "c") == [9, 1, 5, 6, 2, 99, 3]
    named: Any = _FillsIn()
    named.metadata = {f"tokenizer.ggml.fim_{name}_token_id": str(i) for i, name in enumerate(("pre", "suf", "mid"), 20)}
    assert fim_tokens(named) == (20, 21, 22)
