"""The model's output as an assistant message: content, reasoning and tool calls, parsed as the text arrives."""

from collections.abc import Sequence

import msgspec

from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.dialects.tools.deltas import OutputDelta, OutputReader
from fairlane.scheduler.protocol.messages import FinishReason


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
    # The text of a call that a limit or a stop string left incomplete.
    incomplete: str | None = None

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
        deltas.append(reader.end(is_cut=_is_cut(chunk.finish_reason, chunk.stopped_by)))
    return [delta for delta in deltas if delta.content or delta.reasoning or delta.calls]


def read_whole(
    reader: OutputReader | None, text: str, finish_reason: FinishReason | None, stopped_by: str | None
) -> AssistantMessage:
    """Parse a whole text."""
    if reader is None:
        return AssistantMessage(text)
    message = AssistantMessage()
    for delta in (reader.push(text), reader.end(is_cut=_is_cut(finish_reason, stopped_by))):
        message.add(delta)
    del message.calls[reader.calls :]
    message.incomplete = reader.incomplete
    return message


def _is_cut(finish_reason: FinishReason | None, stopped_by: str | None) -> bool:
    return finish_reason == "length" or stopped_by is not None
