"""The README's commands and snippets, read from the README: what it promises is what is run.

python tools/readme.py test     prints the command that stands under `<!-- command: test -->`
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
_BLOCK = re.compile(
    r"^(?:<!-- command: (?P<name>[\w-]+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


def command(name: str, text: str | None = None) -> str:
    """The shell command under the comment that names it."""
    for found in _BLOCK.finditer(README.read_text(encoding="utf-8") if text is None else text):
        if found["name"] == name:
            return found["body"].strip()
    raise LookupError(f"the README has no command named {name}")


def snippets(language: str, text: str | None = None) -> list[tuple[int, str]]:
    """The code blocks in a language that no comment names, each with the number of its first line."""
    text = README.read_text(encoding="utf-8") if text is None else text
    return [
        (text.count("\n", 0, found.start("body")) + 1, found["body"])
        for found in _BLOCK.finditer(text)
        if found["language"] == language and found["name"] is None
    ]


if __name__ == "__main__":
    print(command(sys.argv[1]))
