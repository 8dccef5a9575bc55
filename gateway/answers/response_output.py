"""The output items of a response in the making: what the model says becomes reasoning, messages and calls, one open at
a time, and each step an event as OpenAI names them.

    output_item.added  content_part.added  …delta  …  …done  content_part.done  output_item.done
                       └──── of texts ───┘                  └──── of texts ───┘
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fairlane.gateway.answers.builder import Json
from fairlane.gateway.dialects.openai.response_items import INPUT, Status, new_id
from fairlane.gateway.dialects.openai.response_tools import CalledAs
from fairlane.gateway.dialects.tools.deltas import OutputDelta, ToolCallDelta
from fairlane.gateway.http.json_reader import read_text


class OpenItem(ABC):
    """One item, from its beginning to its end. Its events have no number yet."""

    PREFIX: ClassVar[str]
    """Of its id."""

    def __init__(self, index: int) -> None:
        """`index`: among the response's items."""
        self._id = new_id(self.PREFIX)
        self._index = index
        self._said: list[str] = []

    @property
    def text(self) -> str:
        """All that it holds by now."""
        return "".join(self._said)

    @abstractmethod
    def as_json(self, status: Status) -> Json:
        """The item as it stands."""

    def opening(self) -> Iterator[Json]:
        """The events of its beginning."""
        yield self._of_item("added", "in_progress")

    def closing(self, status: Status) -> Iterator[Json]:
        """The events of its end."""
        yield self._of_item("done", status)

    def _of_item(self, step: str, status: Status) -> Json:
        return {"type": f"response.output_item.{step}", "output_index": self._index, "item": self.as_json(status)}

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self._index, **fields}


class TextItem(OpenItem):
    """An item with one part of text."""

    EVENT: ClassVar[str]
    """How its texts' events are called."""

    @abstractmethod
    def _part(self) -> Json:
        """The part as it stands."""

    def opening(self) -> Iterator[Json]:
        yield from super().opening()
        yield self._event("content_part.added", content_index=0, part=self._part())

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._event(f"{self.EVENT}.done", content_index=0, text=self.text, **self._beside())
        yield self._event("content_part.done", content_index=0, part=self._part())
        yield from super().closing(status)

    def _beside(self) -> Json:
        """What its last event tells beside the text."""
        return {}

    def _parts(self, status: Status) -> list[Json]:
        return [self._part()] if self._said or status != "in_progress" else []


class Thought(TextItem):
    """What the model thinks."""

    PREFIX, EVENT = "rs", "reasoning_text"

    def as_json(self, status: Status) -> Json:
        parts = self._parts(status)
        return {"type": "reasoning", "id": self._id, "summary": [], "content": parts, "status": status}

    def more(self, text: str) -> Iterator[Json]:
        """It thinks on."""
        self._said.append(text)
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class Speech(TextItem):
    """What the model says."""

    PREFIX, EVENT = "msg", "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.logprobs: list[Json] = []

    def as_json(self, status: Status) -> Json:
        parts = self._parts(status)
        return {"type": "message", "id": self._id, "role": "assistant", "content": parts, "status": status}

    def more(self, text: str, logprobs: list[Json]) -> Iterator[Json]:
        """It speaks on."""
        self._said.append(text)
        self.logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _beside(self) -> Json:
        return {"logprobs": self.logprobs}


class FunctionCall(OpenItem):
    """A function that the model calls."""

    PREFIX = "fc"

    def __init__(self, index: int, begun: ToolCallDelta, called_as: CalledAs) -> None:
        super().__init__(index)
        self._call_id, self._name = begun.id, called_as.name
        self._namespace = {} if called_as.namespace is None else {"namespace": called_as.namespace}

    def as_json(self, status: Status) -> Json:
        told = {"type": "function_call", "id": self._id, "call_id": self._call_id, "name": self._name}
        return {**told, **self._namespace, "arguments": self.text, "status": status}

    def more(self, arguments: str) -> Iterator[Json]:
        """Its arguments go on."""
        if arguments:
            self._said.append(arguments)
            yield self._event("function_call_arguments.delta", delta=arguments)

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._event("function_call_arguments.done", name=self._name, arguments=self.text)
        yield from super().closing(status)


class CustomCall(FunctionCall):
    """A call of a tool that takes a text: known only when the JSON that holds it is whole."""

    PREFIX = "ctc"

    def as_json(self, status: Status) -> Json:
        told = {"type": "custom_tool_call", "id": self._id, "call_id": self._call_id, "name": self._name}
        return {**told, **self._namespace, "input": "" if status == "in_progress" else self._input(), "status": status}

    def more(self, arguments: str) -> Iterator[Json]:
        self._said.append(arguments)
        yield from ()

    def closing(self, status: Status) -> Iterator[Json]:
        yield self._event("custom_tool_call_input.delta", delta=self._input())
        yield self._event("custom_tool_call_input.done", input=self._input())
        yield self._of_item("done", status)

    def _input(self) -> str:
        try:
            found = read_text(self.text)
        except ValueError:
            return self.text  # cut short, or no JSON: as it is
        given = found.get(INPUT) if isinstance(found, dict) else None
        return given if isinstance(given, str) else self.text


class OutputItems:
    """What one answer holds so far."""

    def __init__(self, called_as: Mapping[str, CalledAs]) -> None:
        """`called_as`: by the model's name for it, how calls of a tool are told that is no plain function."""
        self._called_as = called_as
        self._open: OpenItem | None = None
        self._blank = ""
        """Blanks that belong to nothing yet: between two items they are none's."""
        self._logprobs: list[Json] = []
        """Of tokens whose text has not come."""
        self.items: list[Json] = []
        """Those that are whole."""
        self.reasoning_tokens = 0
        """Tokens that came while the model was thinking."""

    def hear(self, deltas: Sequence[OutputDelta], logprobs: list[Json], tokens: int) -> Iterator[Json]:
        """The events of what so many tokens brought."""
        self._logprobs += logprobs
        for delta in deltas:
            yield from self._hear(delta)
        if isinstance(self._open, Thought):
            self.reasoning_tokens += tokens

    def close(self, status: Status) -> Iterator[Json]:
        """The events of the end; an answer that says nothing is an empty message."""
        if self._open is None and not self.items:
            yield from self._begin(Speech(0))
            yield from self._speak(self._blank)
        if isinstance(self._open, Speech):
            self._open.logprobs += self._logprobs
        yield from self._end(status)

    def _hear(self, delta: OutputDelta) -> Iterator[Json]:
        continued = delta.continued
        if continued is not None and isinstance(self._open, FunctionCall):
            self._logprobs = []
            yield from self._open.more(continued.arguments)
        if delta.reasoning:
            yield from self._think(delta.reasoning)
        if delta.content:
            yield from self._content(delta.content)
        for call in delta.begun:
            called_as = self._called_as.get(call.name or "") or CalledAs(call.name or "")
            kind = CustomCall if called_as.takes_text else FunctionCall
            opened = kind(self._next(), call, called_as)
            yield from self._begin(opened)
            yield from opened.more(call.arguments)

    def _think(self, text: str) -> Iterator[Json]:
        self._logprobs = []
        if not isinstance(self._open, Thought):
            yield from self._begin(Thought(self._next()))
        if isinstance(self._open, Thought):
            yield from self._open.more(text)

    def _content(self, text: str) -> Iterator[Json]:
        if not isinstance(self._open, Speech):
            text, self._blank = self._blank + text, ""
            if text.isspace():
                self._blank = text
                return
            yield from self._begin(Speech(self._next()))
        yield from self._speak(text)

    def _speak(self, text: str) -> Iterator[Json]:
        if text and isinstance(self._open, Speech):
            logprobs, self._logprobs = self._logprobs, []
            yield from self._open.more(text, logprobs)

    def _next(self) -> int:
        return len(self.items) + (self._open is not None)

    def _begin(self, item: OpenItem) -> Iterator[Json]:
        yield from self._end("completed")
        if not isinstance(item, Speech):
            self._logprobs, self._blank = [], ""
        self._open = item
        yield from item.opening()

    def _end(self, status: Status) -> Iterator[Json]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield from ended.closing(status)
            self.items.append(ended.as_json(status))
