"""The tree keeps the house rules, and each rule finds what it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]


def found(rule: str, path: str, text: str) -> list[str]:
    return list(getattr(tidy, rule)(tidy.File(path, text)))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source distribution has no list of tracked files")
def test_the_tree_is_tidy() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "tidy.py"], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr


def test_a_long_file_is_found_unless_a_tool_wrote_it() -> None:
    text = "x = 1\n" * 401
    assert found("file_length", "a.py", text) == ["a.py: 401 lines, at most 400"]
    assert found("file_length", "a.py", "# Generated: do not edit.\n" + text) == []
    assert found("file_length", "a.md", text) == []


def test_a_long_python_function_is_found_and_its_docstring_is_free() -> None:
    body = "    x = 1\n" * 70
    assert found("function_length", "a.py", f"def f():\n{body}") == ["a.py:1: f has 71 lines, at most 70"]
    docstring = '    """Text.\n\n    More.\n    """\n'
    assert found("function_length", "a.py", f"def f():\n{docstring}{body[10:]}") == []


def test_a_long_rust_function_is_found_whatever_its_strings_hold() -> None:
    body = "    let a = \"{\"; // }\n    let b = '{';\n" * 35
    assert found("function_length", "a.rs", f"fn f<'a>() {{\n{body}}}\nfn g() {{}}\n") == [
        "a.rs:1: f has 72 lines, at most 70"
    ]
    assert found("function_length", "a.rs", "trait T { fn f(&self); fn g(&self) { } }") == []


@pytest.mark.parametrize(
    "line",
    [
        "use std::collections::HashMap;",
        "let t = std::time::Instant::now();",
        "std::thread::spawn(|| ());",
        "use tokio::sync::mpsc;",
        "unsafe { f() }",
        'std::env::var("X")',
    ],
)
def test_the_core_has_no_clock_thread_environment_or_hash_map(line: str) -> None:
    assert len(found("purity", "src/core/a.rs", line)) == 1
    assert found("purity", "src/engine/a.rs", line) == []
    assert found("purity", "src/core/a.rs", f"// {line}") == []


def test_the_core_may_name_durations_and_forbid_unsafe_code() -> None:
    assert found("purity", "src/core/a.rs", "#![forbid(unsafe_code)]\nuse std::time::Duration;") == []


def test_an_import_against_the_arrows_is_found() -> None:
    assert found("layers", "src/core/a.rs", "use crate::engine::Engine;") == [
        "src/core/a.rs:1: core must not know engine"
    ]
    assert found("layers", "src/engine/a.rs", "use crate::core::Time;") == []


def test_unsafe_code_outside_its_places_is_found() -> None:
    assert len(found("unsafe_places", "src/engine/a.rs", "unsafe { f() }")) == 1
    assert found("unsafe_places", "src/backend/llama/a.rs", "unsafe { f() }") == []
    assert found("unsafe_places", "src/lib.rs", "#![deny(unsafe_code)] // unsafe is banned") == []


def test_unsafe_code_says_why_it_is_sound() -> None:
    assert found("unsafe_reasons", "src/py/a.rs", "fn f() {\n    unsafe { g() }\n}") == [
        "src/py/a.rs:2: unsafe without a // SAFETY: comment"
    ]
    assert found("unsafe_reasons", "src/py/a.rs", "// SAFETY: g has no conditions.\nunsafe { g() }") == []


def test_an_option_that_a_consumer_ignores_is_found() -> None:
    ignored = "let StartOptions {\n    n_ctx,\n    n_batch: _,\n} = options;"
    assert found("ignored_options", "src/a.rs", ignored) == ["src/a.rs:3: n_batch of StartOptions is ignored"]
    assert len(found("ignored_options", "src/a.rs", "let RequestOptions { seed, .. } = options;")) == 1


def test_an_option_struct_may_be_built_from_defaults() -> None:
    assert found("ignored_options", "src/a.rs", "RequestOptions { seed: None, ..RequestOptions::default() }") == []


def test_leftovers_are_found() -> None:
    assert found("leftovers", "src/a.rs", "// TODO: later") == ["src/a.rs:1: TODO"]


@pytest.mark.parametrize(
    "text",
    [
        "see /root/.cache/x",
        "/home/someone/models",
        "index = http://10.0.0.1:3141/root/pypi/simple",
        "https://mirror.example/simple/",
    ],
)
def test_traces_of_a_machine_are_found(text: str) -> None:
    assert found("machine_traces", "README.md", text) != []


@pytest.mark.parametrize("text", ["https://pypi.org/simple", "~/.cache/llama-batch", "../shared/DESIGN.md", "a/home/b"])
def test_what_every_machine_has_is_no_trace(text: str) -> None:
    assert found("machine_traces", "README.md", text) == []
