"""Python's exceptions are Rust's errors."""

from __future__ import annotations

import copy
import pickle

import pytest
from llama_batch import Completion, Timings, Usage, _core, errors
from llama_batch.errors import LlamaBatchError, RequestTimeoutError

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_each_error_of_rust_is_an_exception_with_its_code() -> None:
    samples = _core.error_samples()
    for code, retryable, error in samples:
        assert (error.code, error.retryable, error.request_id) == (code, retryable, 7)
        assert str(error)
    raised = {type(error) for _, _, error in samples}
    roots = {LlamaBatchError}
    assert raised | roots == set(CLASSES)


@pytest.mark.parametrize("error", [error for _, _, error in _core.error_samples()], ids=lambda e: e.code)
def test_each_error_survives_pickling(error: LlamaBatchError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


def test_a_time_out_keeps_its_completion_through_pickling() -> None:
    partial = Completion(1, "text", (1, 2), "timeout", None, Usage(3, 2), Timings(), 5)
    error = RequestTimeoutError("late", request_id=1, option="timeout", limit_s=2.0, completion=partial)
    assert pickle.loads(pickle.dumps(error)).completion == partial


def test_each_error_is_caught_by_the_builtin_that_means_it() -> None:
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.ModelNotFoundError, FileNotFoundError)
    assert issubclass(errors.RequestTimeoutError, TimeoutError)
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)
