"""Inputs of custom tools: the model writes each as the only argument of a function, and the client gets its text."""

import re
from collections.abc import Collection

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.tools import INPUT, json_object
from fairlane.gateway.dialects.tools.cursor import decoded
from fairlane.gateway.dialects.tools.deltas import OutputDelta, OutputReader, ToolCallDelta

_HEAD = re.compile(r"\s{0,16}".join(["", r"\{", f'"{INPUT}"', ":", '"']))
_MOST_HEAD_CHARS = 96
_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = f"[dD][89abAB]{_HEX}{{2}}", f"[dD][c-fC-F]{_HEX}{{2}}"
# The characters of a JSON string up to its end, or up to an escape that more text may complete.
_CHARACTERS = re.compile(
    rf"""(?:[^"\\]++|\\[^u]|\\u(?!{_HIGH}){_HEX}{{4}}|\\u{_HIGH}\\u{_HEX}{{4}}"""
    rf"""|\\u(?!{_HEX}{{0,3}}\Z|{_HIGH}(?:\\(?:u{_HEX}{{0,3}})?)?\Z))*+"""
)
_ESCAPE = re.compile(rf"\\u{_HIGH}\\u{_LOW}|\\u{_HEX}{{4}}|\\[^u]", re.DOTALL)


class TextInputReader:
    """An `OutputReader` whose calls of custom tools have the text of their input in place of arguments."""

    def __init__(self, reader: OutputReader, names: Collection[str]) -> None:
        """`names`: of the custom tools."""
        self._reader, self._names = reader, names
        # The call of a custom tool that may go on.
        self._call: _Input | None = None

    @property
    def calls(self) -> int:
        return self._reader.calls

    @property
    def incomplete(self) -> str | None:
        return self._reader.incomplete

    def push(self, text: str) -> OutputDelta:
        return self._converted(self._reader.push(text))

    def end(self, *, is_cut: bool = False) -> OutputDelta:
        return self._converted(self._reader.end(is_cut=is_cut), is_last=True)

    def _converted(self, delta: OutputDelta, *, is_last: bool = False) -> OutputDelta:
        calls = list[ToolCallDelta]()
        if self._call is not None:
            ends = is_last or bool(delta.content or delta.reasoning or delta.begun)
            if delta.continued is not None or ends:
                written = "" if delta.continued is None else delta.continued.arguments
                calls.append(ToolCallDelta(self._call.index, self._call.read(written, ends=ends), is_text=True))
            self._call = None if ends else self._call
        elif delta.continued is not None:
            calls.append(delta.continued)
        for number, call in enumerate(delta.begun, 1):
            if call.name not in self._names:
                calls.append(call)
                continue
            ends = is_last or number < len(delta.begun)
            begun = _Input(call.index)
            calls.append(replace(call, arguments=begun.read(call.arguments, ends=ends), is_text=True))
            self._call = None if ends else begun
        return replace(delta, calls=tuple(calls)) if calls else delta


class _Input:
    """The input of one call, read from its arguments as they arrive."""

    def __init__(self, index: int) -> None:
        self.index = index
        # Arguments in another form, which are read once they are whole.
        self._others: list[str] = []
        self._held = ""
        self._is_open = self._is_closed = False

    def read(self, arguments: str, *, ends: bool) -> str:
        text = "" if self._is_closed else self._more(arguments)
        if ends and not (self._is_open or self._is_closed):
            written = "".join([*self._others, self._held])
            given = (json_object(written) or {}).get(INPUT)
            return _printable(given) if isinstance(given, str) else written
        return text

    def _more(self, arguments: str) -> str:
        if self._others:
            self._others.append(arguments)
            return ""
        self._held += arguments
        if not self._is_open:
            head = _HEAD.match(self._held)
            if head is None:
                if len(self._held) > _MOST_HEAD_CHARS:
                    self._others, self._held = [self._held], ""
                return ""
            self._is_open, self._held = True, self._held[head.end() :]
        characters = _CHARACTERS.match(self._held)
        end = 0 if characters is None else characters.end()
        said, self._held = self._held[:end], self._held[end:]
        self._is_closed = self._held.startswith('"')
        return _ESCAPE.sub(lambda found: _unescaped(found[0]), said) if "\\" in said else said


def _unescaped(escape: str) -> str:
    """Return the character of an escape, or the escape if JSON has none like it."""
    character = decoded(f'"{escape}"')
    return _printable(character) if isinstance(character, str) else escape


def _printable(text: str) -> str:
    """Return the text with replacements of lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
