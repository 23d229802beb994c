"""No option is only declared: each is read somewhere behind the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llama_batch import EMBED_OPTIONS, REQUEST_OPTIONS, START_OPTIONS

SOURCES = Path(__file__).parents[2] / "src"
READERS = "\n".join(
    path.read_text(encoding="utf-8").split("#[cfg(test)]")[0]
    for path in sorted(SOURCES.rglob("*.rs"))
    if path.parent.name != "options" and not path.stem.endswith("_tests")
)


@pytest.mark.parametrize("name", [*START_OPTIONS, *REQUEST_OPTIONS, *EMBED_OPTIONS])
def test_the_option_is_read(name: str) -> None:
    assert re.search(rf"(?:options|request|sampling|self|limits)\.{name}\b|\b{name}\b\s*[,:}}]", READERS), name
