"""Options as callers write them: unknown, misspelt, of the wrong type, out of range, under another name."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import llama_batch
import pytest
from llama_batch import REQUEST_OPTIONS, START_OPTIONS, Engine, ModelLoadError, ModelNotFoundError, OptionError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("sim:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokns": 5}, "max_tokens"),
        ({"tempp": 0.5}, "temp"),
        ({"json_shema": {}}, "unknown option"),
        ({"max_tokens": True}, "must be an integer, not bool"),
        ({"max_tokens": "5"}, "must be an integer, not str"),
        ({"max_tokens": 5.0}, "must be an integer, not float"),
        ({"max_tokens": -1}, "must be between 0"),
        ({"max_tokens": 10**40}, "must be between 0"),
        ({"temp": math.nan}, "finite"),
        ({"temp": math.inf}, "finite"),
        ({"temp": -0.1}, "between 0"),
        ({"temp": "hot"}, "must be a number, not str"),
        ({"temp": True}, "must be a number, not bool"),
        ({"top_p": 1.1}, "between 0 and 1"),
        ({"seed": -1}, "between 0"),
        ({"timeout": math.nan}, "finite"),
        ({"timeout": -1}, "between 0"),
        ({"session": 1.5}, "must be text, an integer, bytes, a UUID or a tuple"),
        ({"session": True}, "not bool"),
        ({"cache_scope": ["list"]}, "not list"),
        ({"fair_scope": ["list"]}, "not list"),
        ({"fair_scop": "a"}, "fair_scope"),
        ({"cache_prompt": 1}, "must be True or False, not int"),
        ({"temp": 0.5, "temperature": 0.6}, "given twice"),
        ({"n_ctx": 5}, "unknown option"),
    ],
)
def test_a_wrong_request_option_is_refused_by_the_call_itself(
    engine: Engine, options: dict[str, Any], message: str
) -> None:
    for call in (engine.generate, engine.stream, engine.chat):
        with pytest.raises(OptionError, match=message):
            call("x", **options)
    with pytest.raises(OptionError, match=message):
        list(engine.map(["x"], **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_paralel": 4}, "n_parallel"),
        ({"n_parallel": 0}, "between 1"),
        ({"n_parallel": True}, "not bool"),
        ({"n_ctx": -5}, "between 0"),
        ({"n_ctx": 1e4}, "must be an integer, not float"),
        ({"flash_attn": "maybe"}, "must be one of"),
        ({"type_k": "f15"}, "must be one of"),
        ({"batch_strategy": "fifo"}, "or a callable"),
        ({"batch_strategy": 5}, "or a callable"),
        ({"tensor_split": [1.0, "a"]}, "holds an item"),
        ({"tensor_split": 1.0}, "must be a list"),
        ({"use_mmap": "yes"}, "must be True or False"),
        ({"max_num_seqs": 3, "n_parallel": 5}, "given twice"),
        ({"max_tokens": 5}, "unknown option"),
        ({"name": 5}, "name must be text"),
        ({"model_path": "other.gguf"}, "model is given twice"),
    ],
)
def test_a_wrong_start_option_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine("sim:", **options)


def test_numbers_of_other_libraries_are_numbers(engine: Engine) -> None:
    numpy = pytest.importorskip("numpy")
    done = engine.generate("x", max_tokens=numpy.int32(3), temp=numpy.float32(0.5), seed=numpy.uint64(7)).result()
    assert (done.usage.generated_tokens, done.seed) == (3, 7)
    with pytest.raises(OptionError, match="not bool"):
        engine.generate("x", max_tokens=numpy.True_)
    with pytest.raises(OptionError, match="finite"):
        engine.generate("x", temp=numpy.float64("nan"))


def test_other_names_of_the_field_are_accepted(engine: Engine) -> None:
    greedy = engine.generate("x", temp=0, max_tokens=5).result().text
    assert engine.generate("x", temperature=0, n_predict=5, repeat_penalty=1.0).result().text == greedy
    assert Engine("sim:", max_num_seqs=3).stats().n_parallel == 3


def test_the_engines_sampling_defaults_stand_in(engine: Engine) -> None:
    with Engine("sim:", temp=0, seed=11) as greedy:
        assert (
            greedy.generate("x", max_tokens=5).result().text == engine.generate("x", temp=0, max_tokens=5).result().text
        )
        assert greedy.generate("x").result().seed == 11


def test_none_means_no_limit(engine: Engine) -> None:
    assert engine.generate("x", stall_timeout=None, timeout=None, max_tokens=1).result().finish_reason == "max_tokens"


def test_the_tables_describe_every_option() -> None:
    assert {"n_ctx", "n_parallel", "max_queue", "flash_attn"} <= set(START_OPTIONS)
    assert {"max_tokens", "timeout", "session", "seed"} <= set(REQUEST_OPTIONS)
    for table in (START_OPTIONS, REQUEST_OPTIONS):
        for name, spec in table.items():
            assert spec.name == name
            assert spec.doc.endswith(".")
            assert spec.default is not None or spec.optional
    assert REQUEST_OPTIONS["temp"].aliases == ("temperature",)


SOME_UUID = uuid.uuid4()


@pytest.mark.parametrize(
    ("a", "b"),
    [("1", 1), ("a", b"a"), (("a", "b"), "ab"), (("a", ("b",)), ("a", "b")), (1, -1), (str(SOME_UUID), SOME_UUID)],
)
def test_different_keys_are_different_scopes(a: Any, b: Any) -> None:
    assert _reused(a, b) == 0


@pytest.mark.parametrize(
    "key", ["a", "", "ü\0", "\ud800", 5, -5, 10**60, b"", b"\xff", SOME_UUID, ("a", 1, (b"x", SOME_UUID)), ()]
)
def test_equal_keys_are_one_scope_and_come_back_in_events(key: Any) -> None:
    assert _reused(key, key) > 0
    with Engine("sim:") as engine:
        events = engine.events(events=["request.done"])
        engine.generate("x", session=key, max_tokens=1).result()
        assert next(events).metadata["session"] == key


def test_equal_numbers_of_different_types_are_one_scope() -> None:
    numpy = pytest.importorskip("numpy")
    assert _reused(5, numpy.int64(5)) > 0


def _reused(first: Any, second: Any) -> int:
    """Tokens of a prompt that one scope leaves to another."""
    prompt = "a prompt that is long enough to be worth keeping"
    with Engine("sim:?pass_ms=0") as engine:
        engine.generate(prompt, cache_scope=first, max_tokens=1).result()
        return engine.generate(prompt, cache_scope=second, max_tokens=1).result().usage.prefix_cache_tokens


def test_a_wrong_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no file") as caught:
        Engine(tmp_path / "missing.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelNotFoundError, match="folder"):
        Engine(model_path=tmp_path)
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        Engine("a\0b.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        Engine(str(tmp_path / "text.gguf"))
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        Engine(tmp_path / "empty.gguf")
    with pytest.raises(OptionError, match="path or a URI, not int"):
        Engine(5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown setting"):
        Engine("sim:?nonsense=1")


def test_the_package_says_what_it_is_made_of() -> None:
    assert llama_batch.__version__
    assert isinstance(llama_batch.LLAMA_CPP_BUILD, str)
    with pytest.raises(AttributeError, match="nonsense"):
        llama_batch.nonsense  # noqa: B018
    assert all(hasattr(llama_batch, name) for name in llama_batch.__all__)
