"""Reads answers to conversations as they come, by the syntax that came with their prompt.

A reader is fed text and gives what that adds to the message. Answers of models that neither think aloud nor call
functions are passed on as they are. Calls that were asked for in words (`src/chat/tools.rs`) are read here. All else is
llama.cpp's to read, which reads a text from its beginning: it is asked where a mark may have come, and at lengths that
grow geometrically, never at each token.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from llama_batch import _core
from llama_batch.messages import ChatMessage, ToolCall, ToolCallDelta

OPEN = "<tool_call>"
"""What begins a call where that was asked for in words."""

CALL = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')
"""The beginning of such a call."""

GROWTH = 8
"""Within a call the text is read again when it has grown by one part in so many."""

MIN_GROWTH = 16
"""Or by so many characters, where that is more."""

MAX_READS = 64
"""How many times its length a text is read in total, but for growth, whatever marks come."""

MAX_SALVAGES = 32
"""From how many marks on an answer that went wrong is tried to be read up to there."""

CLOSING = "</"
"""What begins marks that end something."""


@dataclass(frozen=True, slots=True)
class Added:
    """What a piece of text adds to a message."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        """Whether it adds anything."""
        return bool(self.content or self.reasoning or self.calls)


class Reader(Protocol):
    """Reads one answer."""

    def feed(self, piece: str) -> Added:
        """What a piece of text adds."""

    def finish(self) -> Added:
        """What the end adds: what was held back."""


def reader(syntax: str | None, choice: int = 0) -> Reader:
    """A reader for one answer.

    Args:
        syntax: what came with the conversation's prompt; None where there was no conversation.
        choice: which answer it is, from 0.

    Returns:
        The reader.
    """
    given: dict[str, Any] = json.loads(syntax) if syntax is not None else {"kind": "plain"}
    if given["kind"] == "plain":
        return _Plain()
    key = f"{given['key']}{choice:02x}"
    if given["kind"] == "by_hand":
        return _ByHand(key, in_call=given["in_call"])
    return _Native(key, _core.ChatParser(json.dumps(given)), tuple(given["markers"]))


def read(syntax: str | None, text: str, choice: int = 0) -> ChatMessage:
    """Read a whole answer.

    Args:
        syntax: what came with the conversation's prompt; None where there was no conversation.
        text: the answer.
        choice: which answer it is, from 0.

    Returns:
        The message.
    """
    reading = reader(syntax, choice)
    if isinstance(reading, _Native):
        reading.text = text
        return reading.whole()
    added = [reading.feed(text), reading.finish()]
    calls: list[ToolCall] = []
    for delta in (delta for one in added for delta in one.calls):
        if delta.id is not None:
            calls.append(ToolCall(delta.id, delta.name or "", delta.arguments))
        else:
            calls[-1] = ToolCall(calls[-1].id, calls[-1].name, calls[-1].arguments + delta.arguments)
    return ChatMessage("".join(one.content for one in added), "", tuple(calls))


class _Plain:
    """All is content."""

    def feed(self, piece: str) -> Added:
        return Added(content=piece)

    def finish(self) -> Added:
        return Added()


class _ByHand:
    """Content, then perhaps one call."""

    def __init__(self, key: str, *, in_call: bool) -> None:
        self._key = key
        self._in_call = in_call
        self._mark = ""
        """What began the call, as it was written: what is said if no call comes of it."""
        self._pending = ""
        self._depth: list[str] | None = None
        """What of the arguments is open: braces, brackets, a string, an escape; None before they begin."""
        self._over = False

    def feed(self, piece: str) -> Added:
        self._pending += piece
        content = ""
        if not self._in_call:
            before, mark, rest = self._pending.partition(OPEN)
            if mark:
                content, self._pending, self._in_call = before.rstrip(), rest, True
                self._mark = before[len(content) :] + mark
            else:
                # White space goes with the call where one follows.
                content = _held(self._pending, (OPEN,))[0].rstrip()
                self._pending = self._pending[len(content) :]
                return Added(content=content)
        return Added(content=content, calls=self._call())

    def finish(self) -> Added:
        if self._in_call and self._depth is not None:
            return Added()
        rest, self._pending = self._mark + self._pending, ""
        return Added(content=rest)

    def _call(self) -> tuple[ToolCallDelta, ...]:
        call_id = name = None
        if self._depth is None:
            begun = CALL.match(self._pending)
            if begun is None:
                return ()
            call_id, name = f"call_{self._key}00", json.loads(begun[1])
            self._pending, self._depth = self._pending[begun.end() :], []
        arguments = self._arguments()
        return (ToolCallDelta(0, arguments, call_id, name),) if arguments or call_id else ()

    def _arguments(self) -> str:
        """The part of the pending text that belongs to the arguments; they end where all that they opened is closed."""
        stack = self._depth
        assert stack is not None
        text, self._pending = self._pending, ""
        if self._over:
            return ""
        if not stack:
            text = text.lstrip()  # white space before the arguments may come behind what begins them
        for place, char in enumerate(text):
            if stack and stack[-1] == "\\":
                stack.pop()
            elif stack and stack[-1] == '"':
                if char == "\\":
                    stack.append(char)
                elif char == '"':
                    stack.pop()
            elif char in '{["':
                stack.append(char)
            elif char in "}]" and stack:
                stack.pop()
            if not stack and char in '}]"':
                self._over = True
                return text[: place + 1]
        return text


@dataclass(slots=True)
class _Told:
    """What was told of a message."""

    content: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    """The arguments of each call that was begun."""


class _Native:
    """What llama.cpp reads."""

    def __init__(self, key: str, parser: _core.ChatParser, markers: tuple[str, ...]) -> None:
        self.text = ""
        self._key = key
        self._parser = parser
        self._markers = markers
        self._told = _Told()
        self._open: str | None = None
        """What plain text is added to: the content, the reasoning, or nothing that is known."""
        self._passed = 0
        """How much of the text is told or was read."""
        self._next = 0
        """From which length on it is read again, where nothing is open."""
        self._n_read = 0

    def feed(self, piece: str) -> Added:
        self.text += piece
        if self._open is not None:
            since = self.text[self._passed :]
            if not any(marker in since for marker in self._markers):
                return self._pass_on(since)
            if self._n_read <= MAX_READS * len(self.text):
                return self._read()
        return self._read() if len(self.text) >= self._next else Added()

    def finish(self) -> Added:
        return self._tell(self.whole(), is_whole=True)

    def whole(self) -> ChatMessage:
        """The message that the whole text is; what cannot be read is content."""
        message = self._parsed(self.text)
        if message is not None and (_says(message) or self._is_silence()):
            return self._with_rest(message)
        return self._salvaged()

    def _parsed(self, text: str) -> ChatMessage | None:
        """The message that a text is, if it is one."""
        found = self._parser.parse(text, False)
        return None if found is None else self._message(found)

    def _with_rest(self, message: ChatMessage) -> ChatMessage:
        """A message with what its text ends in, where that began a call of which nothing came: so it was said."""
        last = [at for at, marker in self._places() if not marker.startswith(CLOSING)][-1:]
        for place in (*last, len(_held(self.text, self._markers)[0])):
            if self._is_lost(message, place):
                return ChatMessage(self._said(message, place), message.reasoning_content)
        return message

    def _is_lost(self, message: ChatMessage, place: int) -> bool:
        """Whether what the text ends in, from a mark or the beginning of one on, is nowhere in its message."""
        text = self.text
        if place == len(text) or not _alike(self._parsed(text[:place]), message) or not self._is_saying(place):
            return False
        behind = self._parsed(text + ".")
        return behind is None or text[place:] in behind.content

    def _is_saying(self, place: int) -> bool:
        """Whether what stands at a place of the text, and is no mark, is said."""
        known = self._parsed(self.text[:place] + ".")
        return known is not None and known.content.endswith(".") and not known.tool_calls

    def _places(self) -> list[tuple[int, str]]:
        """Where marks are, in order."""
        return sorted(
            (found.start(), marker) for marker in self._markers for found in re.finditer(re.escape(marker), self.text)
        )

    def _said(self, message: ChatMessage, place: int) -> str:
        """What was said: all from the content on, or from a place where there is none."""
        behind = self.text.find(message.reasoning_content) + len(message.reasoning_content)
        begin = self.text.find(message.content, behind)
        return self.text[begin if message.content and begin >= 0 else place :].lstrip()

    def _is_silence(self) -> bool:
        """Whether a text in which nothing is read is silence, and no call that came to nothing."""
        if not self.text.strip():
            return True
        # Behind thoughts anything can be said; behind what begins a call nothing can, or all of it is what was said.
        message = self._parsed(self.text + ".")
        return message is not None and not message.content.startswith(self.text.lstrip())

    def _salvaged(self) -> ChatMessage:
        """What can be read up to some mark, and the rest as content: a call gone wrong takes nothing with it."""
        text = self.text
        for place, marker in self._places()[: -MAX_SALVAGES - 1 : -1]:
            message = self._parsed(text[:place])
            if message is None or not _says(message):
                continue
            if message.tool_calls:
                rest = text[place:].removeprefix(marker if marker.startswith(CLOSING) else "").strip()
                said = f"{message.content}\n{rest}" if message.content and rest else message.content + rest
            else:
                said = self._said(message, place)
            return ChatMessage(said, message.reasoning_content, message.tool_calls)
        return ChatMessage(text)

    def _pass_on(self, since: str) -> Added:
        """Text without a mark: white space at its end waits, which a mark behind it would swallow."""
        ready, _ = _held(since, self._markers)
        ready = ready.rstrip()
        self._passed += len(ready)
        if self._open == "reasoning":
            self._told.reasoning += ready
            return Added(reasoning=ready)
        self._told.content += ready
        return Added(content=ready)

    def _read(self) -> Added:
        length = len(self.text)
        self._n_read += length
        self._next = length + max(length // GROWTH, MIN_GROWTH if self._told.calls else 1)
        found = self._parser.parse(self.text, True)
        if found is None:
            return Added()
        message = self._message(found)
        added = self._tell(message, is_whole=False)
        self._open = self._opened(message)
        self._passed = length
        return added

    def _opened(self, message: ChatMessage) -> str | None:
        """What the text ends in, where that is text."""
        tail = self.text[-MIN_GROWTH:]
        if message.tool_calls or not tail or tail[-1].isspace():
            return None
        for name, said in (("content", message.content), ("reasoning", message.reasoning_content)):
            if said:
                told = self._told.content if name == "content" else self._told.reasoning
                ends_alike = said.endswith(tail) or tail.endswith(said)
                return name if ends_alike and told == said else None
        return None

    def _tell(self, message: ChatMessage, *, is_whole: bool) -> Added:
        told = self._told
        said, thought = message.content, message.reasoning_content
        if not is_whole:  # white space at the end waits for what comes behind it
            said, thought = said.rstrip(), thought.rstrip()
        content, reasoning = _more(told.content, said), _more(told.reasoning, thought)
        told.content += content
        told.reasoning += reasoning
        calls: list[ToolCallDelta] = []
        for index, call in enumerate(message.tool_calls):
            if index == len(told.calls):
                # A name may still grow until its arguments begin.
                if not call.name or not (call.arguments or is_whole or index + 1 < len(message.tool_calls)):
                    break
                told.calls.append(call.arguments)
                calls.append(ToolCallDelta(index, call.arguments, call.id, call.name))
            elif more := _more(told.calls[index], call.arguments):
                told.calls[index] += more
                calls.append(ToolCallDelta(index, more))
        return Added(content, reasoning, tuple(calls))

    def _message(self, found: str) -> ChatMessage:
        fields = json.loads(found)
        calls = tuple(
            ToolCall(call["id"] or f"call_{self._key}{index:02x}", call["name"], call["arguments"])
            for index, call in enumerate(fields["tool_calls"])
        )
        content = fields["content"].rstrip() if calls else fields["content"]
        return ChatMessage(content, fields["reasoning_content"].rstrip(), calls)


def _says(message: ChatMessage) -> bool:
    """Whether there is anything in a message."""
    return bool(message.content or message.reasoning_content or message.tool_calls)


def _alike(one: ChatMessage | None, other: ChatMessage) -> bool:
    """Whether messages say the same, but for white space at the end."""
    if one is None:
        return not _says(other)
    same = one.reasoning_content == other.reasoning_content and one.content.rstrip() == other.content.rstrip()
    return same and not one.tool_calls and not other.tool_calls


def _more(told: str, now: str) -> str:
    """What a text has more than was told of it; nothing where it is another one: what was told cannot be taken back."""
    return now[len(told) :] if now.startswith(told) else ""


def _held(text: str, marks: tuple[str, ...]) -> tuple[str, str]:
    """A text without what may be the beginning of a mark at its end, and that."""
    for start in range(max(0, len(text) - max(map(len, marks), default=0) + 1), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return text[:start], text[start:]
    return text, ""
