"""The model's output as an assistant message: content, reasoning and tool calls, parsed as the text arrives."""

from collections.abc import Sequence

import msgspec

from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.dialects.tools.deltas import OutputDelta, OutputReader


class ParsedCall(msgspec.Struct):
    """One tool call."""

    id: str
    name: str
    # JSON text, unless the model wrote something else or was cut short.
    arguments: str = ""


class AssistantMessage(msgspec.Struct):
    """The output of one choice so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = []

    def add(self, delta: OutputDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.calls:
            if call.index == len(self.calls):
                self.calls.append(ParsedCall(call.id or "", call.name or ""))
            self.calls[call.index].arguments += call.arguments


def read_chunk(reader: OutputReader | None, chunk: TextChunk) -> Sequence[OutputDelta]:
    """Parse a chunk. Without a reader, all of its text is content."""
    if reader is None:
        return [OutputDelta(chunk.text)] if chunk.text else []
    deltas = [reader.push(chunk.text)] if chunk.text else []
    if chunk.finish_reason is not None:
        deltas.append(reader.end())
    return [delta for delta in deltas if delta.content or delta.reasoning or delta.calls]


def read_whole(reader: OutputReader | None, text: str) -> AssistantMessage:
    """Parse a whole text."""
    message = AssistantMessage()
    for delta in (OutputDelta(text),) if reader is None else (reader.push(text), reader.end()):
        message.add(delta)
    return message
