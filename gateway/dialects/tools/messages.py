"""Parses a choice's text as it arrives if it consists of messages with headers, as gpt-oss writes them (OpenAI's
Harmony format):

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

A message with a recipient is a call. One without is reasoning in the channel `analysis`, and content in any other."""

import re
from collections.abc import Sequence
from enum import Enum

from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.cursor import Marks, decoded
from fairlane.gateway.dialects.tools.deltas import DeltaBuilder, OutputDelta

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_ALL = (START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS)
_MARKS, _ANY_MARK = Marks(_ALL), re.compile("|".join(map(re.escape, _ALL)))
MAX_HEADER_CHARS = 512
_TO = re.compile(r"(?:^|[\s>])to=(?:functions\.)?([\w.-]{1,128})(?=[\s<]|$)", re.ASCII)
# How a response may begin that continues its prompt's `<|start|>assistant`.
_BEGINS_TO = re.compile(r"\s{0,8}(?:t|to|to=[^\s<]{0,80}\s{0,8})?")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")
# Recipients that do not make a message a call.
_PEOPLE = frozenset({"assistant", "user", "all"})


class _Place(Enum):
    OUTSIDE = "between messages"
    HEADER = "in a header"
    REASONING = "in a message of reasoning"
    CONTENT = "in one of content"
    CALL = "in a call's arguments"


class MessageReader:
    """An `OutputReader` of messages."""

    def __init__(self, prompt_tail: str, tools: Sequence[Tool]) -> None:
        """`prompt_tail`: the end of the prompt, which may have begun a message. `tools`: those that may be called;
        without any, a call is content."""
        self.calls = 0
        self.incomplete: str | None = None
        # The current call as it was written: header, mark and arguments.
        self._call: list[str] = []
        self._reads_calls = bool(tools)
        self._delta = DeltaBuilder()
        # Text that could become a mark.
        self._held = ""
        self._header = ""
        self._has_said = self._has_arguments = False
        self._place = _Place.OUTSIDE
        self._begin_as(prompt_tail.rpartition(START)[2])

    def push(self, text: str) -> OutputDelta:
        self._read(text, ended=False)
        return self._delta.take()

    def end(self, *, is_cut: bool = False) -> OutputDelta:
        if is_cut and self._reads_calls:
            self._end_call()
        self._read("", ended=True)
        self._leave()
        self._delta.end()
        return self._delta.take()

    def _end_call(self) -> None:
        """Take back a call that a cut left incomplete, or the beginning of its mark."""
        written = "".join(self._call) + self._held
        if self._place is _Place.CALL:
            if isinstance(decoded("".join(self._call[2:])), dict):
                self._held = ""
                return
            self.calls -= 1
        elif self._place is _Place.HEADER and "to=" in self._header:
            written = self._header + self._held
        elif not self._held:
            return
        self.incomplete, self._held, self._header, self._place = written, "", "", _Place.OUTSIDE

    def _begin_as(self, begun: str) -> None:
        header, is_message, _ = begun.partition(MESSAGE)
        if CHANNEL in header:
            self._header, self._place = header, _Place.HEADER
            if is_message:
                self._begin_message()

    def _read(self, text: str, *, ended: bool) -> None:
        text, at = self._held + text, 0
        while True:
            start, at_next, mark = _MARKS.find(text, at, ended=ended)
            self._take(text[at:start])
            at = at_next
            if mark is None:
                break
            self._pass(mark)
        self._held = text[at:]

    def _take(self, text: str) -> None:
        match self._place:
            case _Place.REASONING:
                self._delta.add_reasoning(text)
            case _Place.CALL:
                text = text if self._has_arguments else text.lstrip()
                self._has_arguments = self._has_arguments or bool(text)
                self._delta.add_arguments(self.calls - 1, text)
                self._call.append(text)
            case _Place.CONTENT:
                self._has_said = self._has_said or bool(text)
                self._delta.add_content(text)
            case _Place.HEADER:
                self._header += text
                if len(self._header) > MAX_HEADER_CHARS:
                    self._give_up_header()
            case _Place.OUTSIDE:
                self._header += text
                if not _BEGINS_TO.fullmatch(self._header):
                    self._give_up_header()

    def _pass(self, mark: str) -> None:
        is_in_header = self._place in (_Place.HEADER, _Place.OUTSIDE)
        if mark == MESSAGE and is_in_header:
            self._begin_message()
        elif mark in (CHANNEL, CONSTRAIN) and is_in_header:
            self._place = _Place.HEADER
            self._take(mark)
        elif mark in (START, CHANNEL):
            self._leave()
            self._place, self._header = _Place.HEADER, mark if mark == CHANNEL else ""
        elif mark in _ENDS:
            self._leave()

    def _begin_message(self) -> None:
        header, self._header = self._header, ""
        to = _TO.search(header)
        if to is not None and self._reads_calls and to[1] not in _PEOPLE:
            self._place, self._has_arguments, self._call = _Place.CALL, False, [header, MESSAGE]
            self._delta.begin_call(self.calls, to[1])
            self.calls += 1
        elif to is None and _ANALYSIS.search(header):
            self._place = _Place.REASONING
        else:
            self._place = _Place.CONTENT
            if self._has_said:  # each message is a paragraph
                self._delta.end_call()
                self._delta.add_content("\n\n")

    def _leave(self) -> None:
        if self._place is _Place.HEADER:
            self._header = ""
        elif self._place is _Place.CALL:
            if not self._has_arguments:
                self._delta.add_arguments(self.calls - 1, "{}")
            self._delta.end_call()
            self._call = []
        elif self._place is _Place.OUTSIDE and self._header:
            self._give_up_header()
        self._place = _Place.OUTSIDE

    def _give_up_header(self) -> None:
        said, self._header = _ANY_MARK.sub("", self._header), ""
        self._has_said = self._has_said or bool(said)
        self._place = _Place.CONTENT
        self._delta.add_content(said)
