"""Parses a choice's text by the `response_template` that came with its model, with transformers' own parser.

Content and reasoning are emitted as they arrive, a call when its region closes. A region that cannot be parsed is
content. transformers is imported with the first such model: it takes a second and about 45 MB."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.cursor import decoded
from fairlane.gateway.dialects.tools.deltas import DeltaBuilder, OutputDelta

if TYPE_CHECKING:
    from transformers.utils.chat_parsing import ResponseParser

# A longer call is content.
MAX_REGION_CHARS = 256 * 1024
# Text that could become a mark; if a pattern needs more, all that follows is content.
MAX_HELD_CHARS = 4 * 1024
_REASONING = ("reasoning_content", "reasoning", "thinking")


class ResponseTemplate:
    """A compiled template. Immutable, and safe to use from several threads."""

    def __init__(self, source: str) -> None:
        """`source`: the template as JSON. Raises ValueError if transformers cannot read it."""
        from transformers.utils.chat_parsing.response_templates import load_response_template

        self._spec = load_response_template(json.loads(source))
        self._parser = _parser_class()
        self._source = source

    def names(self, token: str) -> bool:
        spelled = (token, re.escape(token), token.replace("|", r"\|"))
        return any(json.dumps(name, ensure_ascii=False)[1:-1] in self._source for name in spelled)

    def reader(self, prompt_tail: str, tools: Sequence[Tool]) -> "TemplateReader":
        has_anchor = self._spec.start_anchor_re.search(prompt_tail) is not None
        definitions = [tool.as_json() for tool in tools]
        return TemplateReader(self._parser(self._spec, prompt_tail if has_anchor else "", tools=definitions), tools)


def _parser_class() -> type["ResponseParser"]:
    from transformers.utils.chat_parsing import ResponseParser

    class Parser(ResponseParser):  # type: ignore[misc, unused-ignore] # transformers ships no types
        """transformers' parser, but with an event for a malformed region, and without keeping emitted text, so that
        unbounded text takes linear time. Both use internal names, which `tests/gateway/tools/test_template_reader.py`
        pins."""

        _buffer: str
        _pos: int
        _body: str
        _current: str | None

        def feed(self, text: str) -> list[dict[str, Any]]:
            events: list[dict[str, Any]] = super().feed(text)
            self._buffer, self._pos = self._buffer[self._pos :], 0
            if self._current is not None and self._current != "tool_calls":
                self._body = ""
            return events

        @property
        def held(self) -> str:
            return str(self._buffer)

        @property
        def region(self) -> str | None:
            return self._current

        def drop_held(self) -> None:
            self._buffer = ""

        def _open_explicit(self, events: list[dict[str, Any]], field: object, found: re.Match[str]) -> None:
            super()._open_explicit(events, field, found)
            events[-1]["mark"] = found[0]

        def _close_current(self, events: list[dict[str, Any]]) -> None:
            try:
                super()._close_current(events)
            except Exception:  # noqa: BLE001 - parsers and transforms of the template's author, which may fail in any way
                events.append({"type": "region_broken", "field": self._current})
                self._reset_to_implicit()

    return Parser


class TemplateReader:
    """An `OutputReader` for a `ResponseTemplate`."""

    def __init__(self, parser: "ResponseParser", tools: Sequence[Tool]) -> None:
        self.calls = 0
        self.incomplete: str | None = None
        self._parser = parser
        self._reads_calls = bool(tools)
        self._delta = DeltaBuilder()
        self._mark = ""
        self._region: list[str] = []
        self._region_chars = 0
        # The parser was abandoned: all that follows is content.
        self._is_plain = False
        self._take(parser.initial_events, is_response=False)

    def push(self, text: str) -> OutputDelta:
        if self._is_plain:
            self._delta.add_content(text)
            return self._delta.take()
        self._take(self._parser.feed(text))
        if self._region_chars > MAX_REGION_CHARS or len(self._parser.held) > MAX_HELD_CHARS:
            self._is_plain = True
            self._give_up_region()
            self._delta.add_content(self._parser.held)
        return self._delta.take()

    def end(self, *, is_cut: bool = False) -> OutputDelta:
        if is_cut and self._reads_calls and not self._is_plain:
            self._end_call()
        if not self._is_plain:
            try:
                _, events = self._parser.finalize()
            except ValueError:  # a field that the template requires is missing: the events were returned before
                events = []
            self._take(events)
            self._give_up_region()
        self._delta.end()
        return self._delta.take()

    def _end_call(self) -> None:
        """Take back a call that a cut left incomplete, or the beginning of its mark."""
        written, held = "".join(self._region), self._parser.held
        if self._parser.region == "tool_calls" and decoded(written) is None:
            self.incomplete, self._is_plain = self._mark + written + held, True
        elif self._parser.region == "tool_calls":
            self._parser.drop_held()
        elif self._parser.region in (None, "content") and held.strip():
            self.incomplete = held
            self._parser.drop_held()

    def _take(self, events: Sequence[Mapping[str, Any]], *, is_response: bool = True) -> None:
        """`is_response`: the events belong to the response, not to its beginning in the prompt."""
        for event in events:
            field, text = event["field"], event.get("text", "")
            if field == "tool_calls":
                self._call(event)
            elif is_response and event["type"] == "region_chunk" and field == "content":
                self._delta.add_content(text)
            elif is_response and event["type"] == "region_chunk" and field in _REASONING:
                self._delta.add_reasoning(text)

    def _call(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "region_open":
                self._mark = event.get("mark", "")
            case "region_chunk":
                self._region.append(event["text"])
                self._region_chars += len(event["text"])
            case "region_close":
                calls = event["value"] if isinstance(event["value"], list) else [event["value"]]
                named = [_named(call) for call in calls]
                if self._reads_calls and all(named):
                    self._region = []
                    for name, arguments in filter(None, named):
                        self._delta.begin_call(self.calls, name)
                        self._delta.add_arguments(self.calls, arguments)
                        self._delta.end_call()
                        self.calls += 1
                self._give_up_region()
            case "region_broken":
                self._give_up_region()

    def _give_up_region(self) -> None:
        self._delta.add_content("".join(self._region))
        self._region, self._region_chars = [], 0


def _named(call: object) -> tuple[str, str] | None:
    function = call.get("function", call) if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        return None
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        return name, arguments
    return name, json.dumps({} if arguments is None else arguments, ensure_ascii=False)
