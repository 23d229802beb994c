"""What the README shows is what runs."""

from __future__ import annotations

import re

import pytest
import readme
from llama_batch import ModelNotFoundError
from llama_batch.models import resolve

TEXT = readme.README.read_text(encoding="utf-8")


def test_the_readme_names_its_two_commands() -> None:
    assert readme.command("install").startswith("pip install . && llama-batch run ")
    assert readme.command("test").endswith("python -m pytest")


def test_a_command_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="no command named publish"):
        readme.command("publish")


def test_blocks_are_found_by_language_with_their_lines() -> None:
    text = "intro\n\n```python\na\n```\n<!-- command: x -->\n```bash\nb\n```\n```console\n$ c\n```\n"
    assert readme.snippets("python", text) == [(4, "a\n")]
    assert readme.snippets("bash", text) == []
    assert readme.command("x", text) == "b"


def test_every_linked_file_is_there() -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", TEXT):
        assert (readme.README.parent / target).exists(), target


@pytest.mark.model
@pytest.mark.parametrize(
    ("line", "code"), readme.snippets("python"), ids=lambda value: str(value).split("\n", 1)[0][:20]
)
def test_every_snippet_runs(line: int, code: str) -> None:
    try:
        resolve(None)
    except ModelNotFoundError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
    padded = "\n" * (line - 1) + code  # so that a traceback names the README's own line
    exec(compile(padded, str(readme.README), "exec"), {"__name__": "__main__"})
