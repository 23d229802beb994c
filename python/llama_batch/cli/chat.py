"""`llama-batch chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llama_batch._options import REQUEST_OPTIONS, START_OPTIONS
from llama_batch.cli.app import FAILED, tell
from llama_batch.cli.options import Command, Flag, flags_of, given
from llama_batch.errors import LlamaBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_batch import Engine
    from llama_batch.types import Completion

PROMPT = "> "
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""What would move the cursor, or more: answers are text, whatever their model was made to say."""

_DEFAULTS = {"n_parallel": 1, "max_tokens": 2048, "kv_unified": True}
_ALONE = ("n", "logprobs", "prompt_logprobs")
_REQUEST = {name: spec for name, spec in REQUEST_OPTIONS.items() if name not in _ALONE}
_EPILOG = (
    "A line is a message; a line that ends in a backslash goes on in the next one. Ctrl-C stops an answer, Ctrl-D ends "
    "the conversation. /help lists the commands."
)


@flags_of([("Options of the answers", _REQUEST), ("Options of the engine", START_OPTIONS)], _DEFAULTS)
@click.command(
    "chat",
    cls=Command,
    params=[
        click.Argument(["model"], required=False, metavar="[MODEL]"),
        Flag(["named", "--model", "-m"], metavar="MODEL", help="The same, as the other commands name it."),
        Flag(["--system", "-s"], metavar="TEXT", help="What the model is told before all else."),
        Flag(["--chat-template"], metavar="TEMPLATE", help="A template in place of the model's own: text or a file."),
        Flag(["--no-thinking"], is_flag=True, help="Have a model that thinks aloud answer at once."),
        Flag(["--load"], type=click.Path(exists=True, dir_okay=False), metavar="FILE",
             help="Go on with a conversation that /save wrote."),
    ],
    epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, model: str | None, **flags: Any) -> int:
    """Talk with a model. MODEL is a path, pypi:, hf:OWNER/REPO[:QUANT] or ollama:NAME; SmolLM2 135M otherwise."""
    from llama_batch.cli.run import opened

    if model is not None and flags["named"] is not None:
        raise click.UsageError("MODEL and --model are the same: give one", ctx)
    request = {"max_tokens": _DEFAULTS["max_tokens"], **given(ctx, _REQUEST)}
    start = given(ctx, {name: spec for name, spec in START_OPTIONS.items() if name not in REQUEST_OPTIONS})
    template = {"chat_template": flags["chat_template"], "enable_thinking": False if flags["no_thinking"] else None}
    with opened(flags["named"] if model is None else model, {"n_parallel": _DEFAULTS["n_parallel"], **start}) as engine:
        talk = Talk(engine, request, {name: value for name, value in template.items() if value is not None})
        if flags["load"]:
            talk.load(flags["load"])
        if flags["system"]:
            talk.system(flags["system"])
        return talk.hold()


@dataclass(slots=True)
class Talk:
    """A conversation, and what holds it.

    Attributes:
        engine: answers.
        request: options of the answers.
        template: options of the chat template.
        messages: what was said, the system's message first where there is one.
        last: the last answer.
    """

    engine: Engine
    request: dict[str, Any]
    template: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Completion | None = None

    def hold(self) -> int:
        """Take lines until there are no more; the exit code."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - input() then knows arrows and earlier lines
            tell(f"{self.engine.name}: /help lists the commands, Ctrl-D ends")
        failed = False
        for line in lines():
            if line.startswith("/"):
                if self._obey(*line[1:].split(None, 1)):
                    break
            elif line.strip():
                self.messages.append({"role": "user", "content": line})
                failed = not self._answer()
        return FAILED if failed and not sys.stdin.isatty() else 0

    def system(self, text: str) -> None:
        """Tell the model something before all else; nothing takes it away."""
        if self.messages and self.messages[0]["role"] == "system":
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def load(self, path: str) -> None:
        """Go on with a conversation of a file."""
        try:
            if not Path(path).is_file():  # a device may have no end
                raise FileNotFoundError("there is no such file")
            told = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            tell(f"{path} holds no conversation: {error}")
            return
        if not isinstance(told, list) or not all(isinstance(message, dict) and "role" in message for message in told):
            tell(f"{path} holds no conversation: a list of messages is wanted")
            return
        self.messages = told

    def _answer(self) -> bool:
        """Ask for an answer and show it as it comes; whether there was one. A question without one is taken back."""
        thinks = False
        try:
            generation = self.engine.chat(self.messages, session="chat", **self.template, **self.request)
            try:
                for delta in generation.deltas():
                    if delta.reasoning_content:
                        thinks = self._write(delta.reasoning_content, thinks, now=True)
                    if delta.content:
                        thinks = self._write(delta.content, thinks, now=False)
            except KeyboardInterrupt:
                generation.cancel()
            self.last = generation.result()
        except LlamaBatchError as error:
            self._write("\n" if thinks else "", thinks, now=False)
            tell(str(error))
            self.messages.pop()
            return False
        self._write("\n", thinks, now=False)
        if self.last.finish_reason in {"cancelled", "max_tokens", "context_full"}:
            tell(f"the answer was ended: {self.last.finish_reason}")
        self.messages.append(self.last.message.as_dict())
        return True

    @staticmethod
    def _write(text: str, was: bool, *, now: bool) -> bool:
        """Write a part of an answer, thoughts dimmed and apart; whether it was a thought."""
        styled = sys.stdout.isatty()
        if styled:
            text = text.translate(_CONTROLS)
        if was != now:
            text = (f"{DIM}{text}" if now else f"{PLAIN}\n\n{text}") if styled else (text if now else f"\n\n{text}")
        sys.stdout.write(text)
        sys.stdout.flush()
        return now

    def _obey(self, name: str = "", rest: str = "") -> bool:
        """Do what a command says; whether that ends the conversation."""
        if name in {"exit", "quit", "bye"}:
            return True
        known = COMMANDS.get(name)
        if known is None:
            tell(f"there is no command /{name}; /help lists them")
        else:
            known[1](self, rest.strip())
        return False

    def help(self, _: str) -> None:
        """List the commands."""
        for name, (text, _call) in COMMANDS.items():
            sys.stdout.write(f"/{name:<14} {text}\n")
        sys.stdout.write(f"/{'exit':<14} End the conversation, as Ctrl-D does.\n")

    def clear(self, _: str) -> None:
        """Forget what was said, but for the system's message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]

    def undo(self, _: str) -> None:
        """Take the last question back, and its answer."""
        while self.messages and self.messages[-1]["role"] != "user":
            if self.messages[-1]["role"] == "system":
                return
            self.messages.pop()
        if self.messages:
            self.messages.pop()

    def again(self, _: str) -> None:
        """Ask the last question again."""
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self._answer()
        else:
            tell("nothing was asked yet")

    def save(self, path: str) -> None:
        """Write the conversation to a file."""
        if not path:
            tell("/save FILE: name a file")
            return
        try:
            Path(path).write_text(json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n", "utf-8")
        except OSError as error:
            tell(f"{path} cannot be written: {error.strerror}")

    def show(self, _: str) -> None:
        """Say what the last answer took."""
        if self.last is None:
            tell("there is no answer yet")
            return
        used, took = self.last.usage, self.last.timings
        rate = used.generated_tokens / took.decode_ms * 1e3 if took.decode_ms else 0.0
        sys.stdout.write(
            f"{used.prompt_tokens} prompt tokens, {used.prefix_cache_tokens} of them cached; "
            f"{used.generated_tokens} generated, {rate:.1f} a second; first after {took.ttft_ms:.0f} ms; "
            f"seed {self.last.seed}\n"
        )


COMMANDS: dict[str, tuple[str, Callable[[Talk, str], None]]] = {
    "help": ("List the commands.", Talk.help),
    "system": ("TEXT: what the model is told before all else.", Talk.system),
    "clear": ("Forget what was said.", Talk.clear),
    "undo": ("Take the last question back, and its answer.", Talk.undo),
    "again": ("Ask the last question again.", Talk.again),
    "stats": ("Say what the last answer took.", Talk.show),
    "save": ("FILE: write the conversation.", Talk.save),
    "load": ("FILE: go on with a conversation.", Talk.load),
}


def lines() -> Iterator[str]:
    """What the user says, a message at a time; Ctrl-C drops what was begun."""
    begun = ""
    while True:
        try:
            line = input(("... " if begun else PROMPT) if sys.stdin.isatty() else "")
        except EOFError:
            if begun:
                yield begun
            if sys.stdin.isatty():
                sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            begun = ""
            continue
        if line.endswith("\\"):
            begun += line[:-1] + "\n"
            continue
        yield begun + line
        begun = ""
