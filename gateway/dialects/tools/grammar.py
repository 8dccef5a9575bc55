"""The grammar of a model's calls, in llguidance's dialect of Lark, which the worker enforces.

    forced    start: reasoning? calls
    lenient   start: reasoning? (text calls)* text
    answering start: reasoning? (@answer | calls), where `@answer` is a separate grammar

Each function is an alternative: its literal name, then arguments that follow its own schema; references resolve only
within that schema, which the grammar checker has rewritten for llguidance. A mark that is a special token is named by
its id, since text never produces one (llguidance's docs/syntax.md). llguidance treats every added token with a name in
angle brackets as special, even if the tokenizer does not."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairlane.gateway.dialects.openai.tools import MAX_CALLS, Tool
from fairlane.gateway.dialects.tools import tagged
from fairlane.gateway.dialects.tools.syntax import ARGUMENTS, NAME, CallSyntax

# How llguidance writes arguments: as Python does, like most calls in training data. A JSON response may be indented
# instead (`WHITESPACE` in `gateway/dialects/grammar/check_process.py`).
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_ANYTHING = r"/(?s:.*)/"
# A text that is not a call without an opening mark.
_NO_BRACE = r"/\s*([^\s{](?s:.*))?/"
_TAG_NAME = re.compile(r"[^<>\s]{1,128}")
# Applied to a schema as JSON; also matches text that contains one.
_REFERENCE = re.compile(r'"\$ref": "([^"]*)')
# Keywords of a string's schema that tags can satisfy.
_NOTES = frozenset({"type", "enum", "description", "title", "default", "examples"})
# Keywords of an object's schema that lists its properties.
_LISTING = frozenset({"type", "properties", "required", "$schema", "$defs", "definitions", "description", "title"})
_BY_JSON = frozenset({"integer", "number", "boolean", "array", "object", "null"})


class CallGrammar:
    """Writes grammars of one model's calls. Reasoning, if the model has any, may come first."""

    def __init__(
        self,
        syntax: CallSyntax,
        added: Mapping[str, int],
        special: Collection[str],
        reasoning: tuple[str, str] | None,
        *,
        can_force: bool,
    ) -> None:
        """`can_force`: the spelling of the model's calls is known, so a grammar can force one."""
        self.can_force = can_force
        self._syntax = syntax
        is_special = {mark: mark in special or (mark[0], mark[-1]) == ("<", ">") for mark in syntax.markers}
        self._special = {mark: added[mark] for mark in syntax.markers if mark in added and is_special[mark]}
        self._reasoning = reasoning

    def is_reasoning(self, prompt_tail: str) -> bool:
        return self._reasoning is not None and prompt_tail.rstrip().endswith(self._reasoning[0])

    def forced(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str:
        """Return a grammar of one or, if `parallel`, up to MAX_CALLS calls, with arguments by their schemas."""
        return self._whole("calls", self._calls(tools, parallel=parallel, all_strict=True), prompt_tail)

    def lenient(
        self, tools: Sequence[Tool], *, parallel: bool = True, closes: bool = False, prompt_tail: str = ""
    ) -> str | None:
        """Return a grammar of text or calls, in which calls of strict tools follow the schema; None if there is nothing
        to enforce: no tool is strict, parallel calls are allowed, and calls need not be closed."""
        is_free = parallel and not closes and not any(tool.strict for tool in tools)
        if is_free or not tools or not self.can_force:
            return None
        opening, begun = self._opening, None
        text = _NO_BRACE if self._syntax.bare else _ANYTHING
        rules = [f"text: {text}"]
        if self._syntax.said is not None:
            answer, before, after = map(self._literal, self._syntax.said)
            start = f"({answer} text | ({before} text {after})? calls)"
        elif opening is None:  # the calls are the whole response
            tag = self._syntax.open[0]
            tagged_calls = f" | {self._literal(tag)} calls" if tag in self._special else ""
            start = f"(text | calls{tagged_calls})"
        elif opening in self._special:
            start = "text (calls text)*" if parallel else "text calls?"
        else:
            begun = opening
            start = "(begun calls)* text" if parallel else "(text | begun calls)"
            rules = [f"begun[lazy]: TEXT {_text(opening)}", "text: TEXT", f"TEXT: {text}"]
        rules += self._calls(tools, parallel=parallel, all_strict=False, begun=begun)
        return self._whole(start, rules, prompt_tail)

    def answering(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str | None:
        """Return a grammar of the grammar `@answer`, or calls in its place; None if there is only the answer."""
        answer = "@answer" if self._syntax.said is None else f"{self._literal(self._syntax.said[0])} @answer"
        if tools and self.can_force:
            calls = self._calls(tools, parallel=parallel, all_strict=True)
            return self._whole(f"({answer} | calls)", calls, prompt_tail)
        return None if self._reasoning is None else self._whole(answer, (), prompt_tail)

    def _whole(self, start: str, rules: Iterable[str], prompt_tail: str) -> str:
        if self._reasoning is None:
            return "\n".join([f"start: {start}", *rules])
        begin, end = self._reasoning
        reasoned = ["reasoned: thought BLANKS", f"thought[lazy]: {_ANYTHING} {_text(end)}"]
        if any(end.startswith(mark) for mark in self._special):
            reasoned = [f"reasoned: thought {self._literal(end)} BLANKS", f"thought: {_ANYTHING}"]
        reasoning = [f"reasoning: {self._literal(begin)} reasoned", *reasoned, r"BLANKS: /[ \n]{0,4}/"]
        first = "reasoned" if self.is_reasoning(prompt_tail) else "reasoning?"
        return "\n".join([f"start: {first} {start}", *rules, *reasoning])

    @property
    def _opening(self) -> str | None:
        spelled = self._syntax.before or self._syntax.call
        marks = (*self._syntax.open, *self._syntax.silent)
        return next((mark for mark in marks if spelled.startswith(mark)), None)

    def _calls(
        self, tools: Sequence[Tool], *, parallel: bool, all_strict: bool, begun: str | None = None
    ) -> Iterator[str]:
        """Yield the rules of `calls`. `begun`: the mark that has already started them."""
        before = self._syntax.before
        cut = begun or ""
        first = "first" if begun is not None and not before else "call"
        more = f"({self._literal(self._syntax.between)} call){{0,{MAX_CALLS - 1}}}"
        several = more if parallel and not self._syntax.is_only else ""
        yield f"calls: {self._literal(before.removeprefix(cut))} {first} {several} {self._literal(self._syntax.after)}"
        for kind in dict.fromkeys((first, "call")):
            yield f"{kind}: " + " | ".join(f"{kind}{number}" for number in range(len(tools)))
        for number, tool in enumerate(tools):
            is_strict = all_strict or tool.strict
            for kind in dict.fromkeys((first, "call")):
                spelled = self._spelled(tool, is_strict=is_strict).removeprefix(cut if kind == "first" else "")
                yield f"{kind}{number}: " + f" arguments{number} ".join(map(self._literal, spelled.split(ARGUMENTS)))
            yield from self._arguments(f"arguments{number}", tool, is_strict=is_strict)

    def _spelled(self, tool: Tool, *, is_strict: bool) -> str:
        syntax = self._syntax
        if syntax.body == "xml" and is_strict and not _fits_tags(tool.parameters):
            call = f'{syntax.open[0]}\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n{syntax.close[0]}'
            return call.replace(NAME, tool.name)
        return syntax.call.replace(NAME, tool.name)

    def _arguments(self, rule: str, tool: Tool, *, is_strict: bool) -> Iterator[str]:
        if self._syntax.body == "xml" and not is_strict:
            yield f"{rule}: {rule}_tag*"
            yield f'{rule}_tag: {_text(tagged.OPEN)} /[^<>\\s]{{1,128}}/ ">" {rule}_text "\\n"'
            yield f"{rule}_text[lazy]: {_ANYTHING} {_text(tagged.CLOSE)}"
        elif self._syntax.body == "xml" and _fits_tags(tool.parameters):
            properties, required = tool.parameters.get("properties", {}), set(tool.parameters.get("required", ()))
            parts = [f"{rule}_{index}" + ("" if key in required else "?") for index, key in enumerate(properties)]
            yield f"{rule}: {' '.join(parts) or _text('')}"
            for index, (key, value) in enumerate(properties.items()):
                yield from self._tag(f"{rule}_{index}", key, value, tool.parameters)
        else:
            yield f"{rule}: {_json(_closed(tool.parameters) if is_strict else _ANY_OBJECT)}"

    def _tag(self, rule: str, key: str, schema: Mapping[str, Any], within: Mapping[str, Any]) -> Iterator[str]:
        begin, end = _text(f"{tagged.OPEN}{key}>\n"), _text(f"\n{tagged.CLOSE}\n")
        if schema["type"] != "string":
            definitions = {name: within[name] for name in ("$defs", "definitions") if name in within}
            yield f"{rule}: {begin} {_json({**definitions, **schema})} {end}"
        elif "enum" in schema:
            yield f"{rule}: {begin} ({' | '.join(map(_text, schema['enum']))}) {end}"
        else:
            yield f'{rule}: {begin} {rule}_text "\\n"'
            yield f"{rule}_text[lazy]: {_ANYTHING} {_text(tagged.CLOSE)}"

    def _literal(self, text: str) -> str:
        pattern = "|".join(map(re.escape, self._special)) or r"(?!)"
        parts = filter(None, re.split(f"({pattern})", text))
        return " ".join([f"<[{self._special[part]}]>" if part in self._special else _text(part) for part in parts])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for objects only. One that lists arguments allows others only if it says so."""
    lists_all = "properties" in schema and schema.keys() <= _LISTING and _lists_required(schema)
    closed = {"additionalProperties": False} if lists_all else {}
    return {**schema, "type": "object", **closed}


def _lists_required(schema: Mapping[str, Any]) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _fits_tags(schema: Mapping[str, Any]) -> bool:
    """Return whether tags can express all that this schema of arguments requires; otherwise a call is written as JSON,
    which the reader accepts from these models too."""
    if not schema.keys() <= _LISTING | {"additionalProperties"} or not _lists_required(schema):
        return False
    references = _REFERENCE.findall(json.dumps(schema))  # a tag's own schema lacks the whole one and other arguments
    if not all(each.startswith(("#/$defs/", "#/definitions/")) for each in references):
        return False
    properties = schema.get("properties", {})
    return all(_TAG_NAME.fullmatch(name) is not None and _fits_tag(value) for name, value in properties.items())


def _fits_tag(schema: object) -> bool:
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        return False
    if schema["type"] != "string":
        return schema["type"] in _BY_JSON
    texts = schema.get("enum", [""])
    is_plain = isinstance(texts, list) and all(isinstance(text, str) and tagged.CLOSE not in text for text in texts)
    return is_plain and bool(texts) and schema.keys() <= _NOTES
