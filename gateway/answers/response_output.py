"""Output items of a response (reasoning, messages and calls, one open at a time), and the events of building them:

output_item.added [content_part.added] …delta … …done [content_part.done] output_item.done"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fairlane.gateway.answers.builder import Json
from fairlane.gateway.dialects.openai.item_ids import NewId
from fairlane.gateway.dialects.openai.response_items import Close, Status, close_text
from fairlane.gateway.dialects.openai.response_tools import CalledAs
from fairlane.gateway.dialects.tools.deltas import OutputDelta, ToolCallDelta


class OpenItem(ABC):
    """One item. Its events are not numbered yet."""

    PREFIX: ClassVar[str]

    def __init__(self, index: int, new: NewId) -> None:
        self._id = new(self.PREFIX)
        self._index = index
        self._said: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._said)

    @abstractmethod
    def as_json(self, status: Status) -> Json: ...

    def opening(self) -> Iterator[Json]:
        yield self._of_item("added", "in_progress")

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._of_item("done", status)

    def _of_item(self, step: str, status: Status) -> Json:
        return {"type": f"response.output_item.{step}", "output_index": self._index, "item": self.as_json(status)}

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self._index, **fields}


class TextItem(OpenItem):
    """An item with one text part."""

    # Prefix of the text's event names.
    EVENT: ClassVar[str]

    def __init__(self, index: int, new: NewId) -> None:
        super().__init__(index, new)
        self.logprobs: list[Json] = []

    @abstractmethod
    def _part(self) -> Json: ...

    def more(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        self._said.append(text)
        self.logprobs += logprobs
        yield self._event(f"{self.EVENT}.delta", content_index=0, delta=text, **self._fields(logprobs))

    def opening(self) -> Iterator[Json]:
        yield from super().opening()
        yield self._event("content_part.added", content_index=0, part=self._part())

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._event(f"{self.EVENT}.done", content_index=0, text=self.text, **self._fields(self.logprobs))
        yield self._event("content_part.done", content_index=0, part=self._part())
        yield from super().closing(status)

    def _fields(self, logprobs: list[Json]) -> Json:
        return {}

    def _parts(self, status: Status) -> list[Json]:
        return [self._part()] if self._said or status != "in_progress" else []


class ReasoningOutput(TextItem):
    """A reasoning item."""

    PREFIX, EVENT = "rs", "reasoning_text"

    def __init__(self, index: int, new: NewId, closes: Close | None) -> None:
        super().__init__(index, new)
        self._closes = closes
        self._sealed: Json = {}

    def as_json(self, status: Status) -> Json:
        parts = self._parts(status)
        if self._closes is not None and not self._sealed and status != "in_progress":
            self._sealed = {"encrypted_content": close_text(self.text, self._closes)}
        item = {"type": "reasoning", "id": self._id, "summary": [], "content": parts, "status": status}
        return {**item, **self._sealed}

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class MessageOutput(TextItem):
    """A message item."""

    PREFIX, EVENT = "msg", "output_text"

    def as_json(self, status: Status) -> Json:
        parts = self._parts(status)
        return {"type": "message", "id": self._id, "role": "assistant", "content": parts, "status": status}

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _fields(self, logprobs: list[Json]) -> Json:
        return {"logprobs": logprobs}


class FunctionCall(OpenItem):
    """A function call."""

    PREFIX, TYPE = "fc", "function_call"
    # Prefix of the arguments' event names.
    EVENT = "function_call_arguments"

    def __init__(self, index: int, new: NewId, begun: ToolCallDelta, called_as: CalledAs) -> None:
        super().__init__(index, new)
        self._name = called_as.name
        self._head = {"type": self.TYPE, "id": self._id, "call_id": begun.id, "name": self._name}
        if called_as.namespace is not None:
            self._head["namespace"] = called_as.namespace

    def as_json(self, status: Status) -> Json:
        return {**self._head, **self._given(), "status": status}

    def more(self, arguments: str) -> Iterator[Json]:
        if arguments:
            self._said.append(arguments)
            yield self._event(f"{self.EVENT}.delta", delta=arguments)

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._event(f"{self.EVENT}.done", **self._given())
        yield from super().closing(status)

    def _given(self) -> Json:
        return {"name": self._name, "arguments": self.text}


class CustomCall(FunctionCall):
    """A call of a custom tool."""

    PREFIX, TYPE, EVENT = "ctc", "custom_tool_call", "custom_tool_call_input"

    def _given(self) -> Json:
        return {"input": self.text}


class OutputItems:
    """The output items of one response."""

    def __init__(self, called_as: Mapping[str, CalledAs], new: NewId, closes: Close | None = None) -> None:
        """`called_as`: names of namespaced tools, by the name that the model uses; `new` makes the items' ids; `closes`
        encrypts reasoning, if that is to be included."""
        self._closes = closes
        self._called_as = called_as
        self._new = new
        self._open: OpenItem | None = None
        # Whitespace that is not assigned to an item yet; between two items it is dropped.
        self._blank = ""
        # Log-probabilities of tokens whose text is still held back.
        self._logprobs: list[Json] = []
        self.items: list[Json] = []

    def feed(self, deltas: Sequence[OutputDelta], logprobs: list[Json]) -> Iterator[Json]:
        self._logprobs += logprobs
        for delta in deltas:
            yield from self._read(delta)

    def close(self, status: Status) -> Iterator[Json]:
        """Yield the final events; an empty output is sent as an empty message."""
        if self._open is None and not self.items:
            yield from self._begin(MessageOutput(0, self._new))
            if self._blank:
                yield from self._append(self._blank)
        if isinstance(self._open, MessageOutput):
            self._open.logprobs += self._logprobs
        yield from self._end(status)

    def _read(self, delta: OutputDelta) -> Iterator[Json]:
        continued = delta.continued
        if continued is not None and isinstance(self._open, FunctionCall):
            self._logprobs = []
            yield from self._open.more(continued.arguments)
        if delta.reasoning:
            yield from self._append_reasoning(delta.reasoning)
        if delta.content:
            yield from self._content(delta.content)
        for call in delta.begun:
            called_as = self._called_as.get(call.name or "") or CalledAs(call.name or "")
            kind = CustomCall if call.is_text else FunctionCall
            opened = kind(self._next(), self._new, call, called_as)
            yield from self._begin(opened)
            yield from opened.more(call.arguments)

    def _append_reasoning(self, text: str) -> Iterator[Json]:
        self._logprobs = []
        if not isinstance(self._open, ReasoningOutput):
            yield from self._begin(ReasoningOutput(self._next(), self._new, self._closes))
        yield from self._append(text)

    def _content(self, text: str) -> Iterator[Json]:
        if not isinstance(self._open, MessageOutput):
            text, self._blank = self._blank + text, ""
            if text.isspace():
                self._blank = text
                return
            yield from self._begin(MessageOutput(self._next(), self._new))
        yield from self._append(text)

    def _append(self, text: str) -> Iterator[Json]:
        if isinstance(self._open, TextItem):
            logprobs, self._logprobs = self._logprobs, []
            yield from self._open.more(text, logprobs)

    def _next(self) -> int:
        return len(self.items) + (self._open is not None)

    def _begin(self, item: OpenItem) -> Iterator[Json]:
        yield from self._end("completed")
        if not isinstance(item, MessageOutput):
            self._logprobs, self._blank = [], ""
        self._open = item
        yield from item.opening()

    def _end(self, status: Status) -> Iterator[Json]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield from ended.closing(status)
            self.items.append(ended.as_json(status))
