"""The tidy test: house rules that no linter knows, checked over every tracked file.

    python tools/tidy.py            prints what is wrong, one line each, and exits with 1 if anything is

Each rule is a function from a file to the problems in it. `tests/tidy` runs them in the test suite.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
GENERATED_MARK = "do not edit"  # in the first lines of a file that a tool of this tree writes

# The modules under src/ that each module may name: the arrows of ARCHITECTURE.md.
LAYERS = {
    "error": {"core", "options"},
    "options": {"error"},
    "core": {"error", "options"},
    "grammar": {"options", "core"},
    "sampling": {"error", "options", "core", "grammar"},
    "rpc": {"error", "options"},
    "store": set(),
    "tune": set(),
    "backend": {"error", "options", "core", "grammar", "sampling", "rpc", "tune"},
    "sim": {"error", "options", "core", "sampling", "backend"},
    "engine": {"error", "options", "core", "sampling", "backend", "store", "tune"},
    "py": {"error", "options", "core", "sampling", "backend", "sim", "engine", "store", "rpc", "tune"},
}
# What makes a decision depend on anything but the inputs of the core.
IMPURE = re.compile(
    r"\b(Instant|SystemTime|HashMap|HashSet|RandomState|std::(?:thread|env|fs|net|process|io)|tokio|rayon|rand|log|tracing"
    r"|unsafe|pyo3|llama_cpp_2|llama_cpp_sys_2)\b"
)
PURE_FOLDERS = ("src/core/", "src/options/", "src/error.rs")
UNSAFE_FOLDERS = ("src/backend/llama/", "src/py/")
SELF = ("tools/tidy.py", "tests/tidy/")  # which name what they look for
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/[\w.]")
REGISTRIES = re.compile(r"https?://[^\s\"'<>)\]]*(?:/simple\b|pypi\.|crates\.io|/pip/)[^\s\"'<>)\]]*")
# What everybody's package tools use by themselves says nothing about a machine.
PUBLIC_REGISTRIES = re.compile(
    r"https://(?:pypi\.org(?:/(?:simple|project)\b|/?$)|crates\.io/crates/|img\.shields\.io/|github\.com/rust-lang/crates\.io-index)"
)


@dataclass(frozen=True)
class File:
    """A tracked text file."""

    path: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The text, line by line."""
        return self.text.splitlines()

    @property
    def is_generated(self) -> bool:
        """Whether the file says that a tool writes it."""
        return any(GENERATED_MARK in line.lower() for line in self.lines[:5])

    def line_of(self, offset: int) -> int:
        """The number of the line, from 1, that holds a character."""
        return self.text.count("\n", 0, offset) + 1


# --- reading Rust ---

_RUST_NOISE = re.compile(
    r"""//[^\n]*                                  # comments
      | /\*.*?\*/
      | \bb?r(?P<hashes>\#*)".*?"(?P=hashes)      # raw strings
      | b?"(?:\\.|[^"\\])*"
      | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])'     # characters, not lifetimes
    """,
    re.VERBOSE | re.DOTALL,
)


def rust_code(text: str) -> str:
    """The text with comments, strings and characters blanked, every offset and line kept."""
    return _RUST_NOISE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def matching_brace(code: str, opening: int) -> int:
    """The offset just behind the brace that closes the one at `opening`."""
    depth = 0
    for found in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.end()
    return len(code)


def rust_functions(code: str) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each function that has a body."""
    for found in re.finditer(r"\bfn\s+(\w+)", code):
        ahead = re.compile(r"[{;]").search(code, found.end())
        if ahead is not None and ahead.group() == "{":
            yield found.group(1), found.start(), matching_brace(code, ahead.start())


# --- the rules ---


def file_length(file: File) -> Iterator[str]:
    """A file that does not fit in the head is two files."""
    if file.path.endswith((".rs", ".py", ".cpp", ".h")) and not file.is_generated and len(file.lines) > MAX_FILE_LINES:
        yield f"{file.path}: {len(file.lines)} lines, at most {MAX_FILE_LINES}"


def function_length(file: File) -> Iterator[str]:
    """Lines with code are counted: comments, docstrings and blank lines are free."""
    if file.is_generated:
        return
    measured: Iterable[tuple[str, int, int]] = ()
    if file.path.endswith(".rs"):
        measured = _rust_lengths(rust_code(file.text))
    elif file.path.endswith(".py"):
        measured = _python_lengths(file.text)
    for name, line, length in measured:
        if length > MAX_FUNCTION_LINES:
            yield f"{file.path}:{line}: {name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def _rust_lengths(code: str) -> Iterator[tuple[str, int, int]]:
    for name, start, end in rust_functions(code):
        length = sum(bool(line.strip()) for line in code[start:end].splitlines())
        yield name, code.count("\n", 0, start) + 1, length


def _python_lengths(text: str) -> Iterator[tuple[str, int, int]]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            free: set[int] = set()
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                free = set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
            numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            code = (lines[n - 1].strip() for n in numbers if n not in free)
            yield node.name, node.lineno, sum(bool(line) and not line.startswith("#") for line in code)


def purity(file: File) -> Iterator[str]:
    """The core is a function of its inputs: the same trace gives the same plans."""
    if not file.path.endswith(".rs") or not file.path.startswith(PURE_FOLDERS):
        return
    for found in IMPURE.finditer(rust_code(file.text)):
        yield f"{file.path}:{file.line_of(found.start())}: {found.group(1)} in the core"


def layers(file: File) -> Iterator[str]:
    """Imports follow the arrows."""
    owner = re.match(r"src/(\w+)", file.path)
    if not file.path.endswith(".rs") or owner is None or owner.group(1) not in LAYERS:
        return
    code = rust_code(file.text)
    for found in re.finditer(r"\bcrate::(\w+)", code):
        if found.group(1) in LAYERS and found.group(1) not in {owner.group(1), *LAYERS[owner.group(1)]}:
            yield f"{file.path}:{file.line_of(found.start())}: {owner.group(1)} must not know {found.group(1)}"


def unsafe_places(file: File) -> Iterator[str]:
    """Unsafe code lives where foreign code is called, and nowhere else."""
    if file.path.endswith(".rs") and file.path.startswith("src/") and not file.path.startswith(UNSAFE_FOLDERS):
        for found in re.finditer(r"\bunsafe\b", rust_code(file.text)):
            yield f"{file.path}:{file.line_of(found.start())}: unsafe outside {' and '.join(UNSAFE_FOLDERS)}"


def unsafe_reasons(file: File) -> Iterator[str]:
    """Each use of unsafe code says why it is sound, right above it."""
    if not file.path.endswith(".rs"):
        return
    for found in re.finditer(r"\bunsafe\s*(?:\{|impl\b)", rust_code(file.text)):
        line = file.line_of(found.start())
        if not any("SAFETY:" in above for above in file.lines[max(0, line - 5) : line]):
            yield f"{file.path}:{line}: unsafe without a // SAFETY: comment"


def ignored_options(file: File) -> Iterator[str]:
    """Who takes an option struct apart uses every field: an option that nobody reads is a lie to the user."""
    if not file.path.endswith(".rs") or not file.path.startswith("src/"):
        return
    code = rust_code(file.text)
    for found in re.finditer(r"\b(?:Start|Request|Sampling|Scheduler)Options\s*\{", code):
        inside = code[found.end() : matching_brace(code, found.end() - 1)]
        for ignored in re.finditer(r"\b(\w+)\s*:\s*_\s*(?=[,}])|\.\.\s*(?=})", inside):
            line = file.line_of(found.end() + ignored.start())
            yield f"{file.path}:{line}: {ignored.group(1) or '..'} of {found.group()[:-1].strip()} is ignored"


def leftovers(file: File) -> Iterator[str]:
    """What is unfinished is an issue, not a comment."""
    if file.path.endswith((".rs", ".py", ".pyi", ".cpp", ".h")) and not file.path.startswith(SELF):
        for found in LEFTOVERS.finditer(file.text):
            yield f"{file.path}:{file.line_of(found.start())}: {found.group()}"


def machine_traces(file: File) -> Iterator[str]:
    """Nothing in the tree depends on, or tells about, the machine that it was written on."""
    if file.path.startswith(SELF):
        return
    for found in MACHINE_PATHS.finditer(file.text):
        yield f"{file.path}:{file.line_of(found.start())}: the machine path {found.group()}…"
    for found in REGISTRIES.finditer(file.text):
        if not PUBLIC_REGISTRIES.match(found.group()):
            yield f"{file.path}:{file.line_of(found.start())}: the registry address {found.group()}"


RULES: tuple[Callable[[File], Iterator[str]], ...] = (
    file_length,
    function_length,
    purity,
    layers,
    unsafe_places,
    unsafe_reasons,
    ignored_options,
    leftovers,
    machine_traces,
)


def generated_files() -> Iterator[str]:
    """Generated files are what their generator would write now."""
    generator = ROOT / "tools" / "gen_options.py"
    done = subprocess.run([sys.executable, str(generator), "--check"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield (done.stdout + done.stderr).strip() or f"{generator.name} --check failed"


def tracked_files(root: Path) -> Iterator[File]:
    """The text files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if b"\0" not in content:
                yield File(name, content.decode())


def problems(files: Iterable[File]) -> list[str]:
    """Everything that any rule finds in any of the files."""
    return [problem for file in files for rule in RULES for problem in rule(file)]


def main() -> int:
    """Check the whole tree."""
    found = [*problems(tracked_files(ROOT)), *generated_files()]
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
