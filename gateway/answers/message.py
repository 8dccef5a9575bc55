"""The model's output as an assistant message: content, reasoning and tool calls, parsed as the text arrives."""

from collections.abc import Sequence

import msgspec

from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.dialects.tools.deltas import OutputDelta, OutputReader, ToolCallDelta
from fairlane.scheduler.protocol.messages import FinishReason

_NOTHING = OutputDelta()


class ParsedCall(msgspec.Struct):
    """One tool call."""

    id: str
    name: str
    # JSON text, unless the model wrote something else or was cut short.
    arguments: str = ""
    # `arguments` is the input of a custom tool instead.
    is_text: bool = False


class AssistantMessage(msgspec.Struct):
    """The output of one choice."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = []
    # The text of a call that a limit or a stop string left incomplete.
    incomplete: str | None = None


class ReasoningCount(msgspec.Struct):
    """The tokens of one choice whose text is reasoning; their marks do not count."""

    tokens: int = 0
    # Tokens after those, whose text is held back.
    held: int = 0

    def add(self, delta: OutputDelta, tokens: int) -> None:
        """Count tokens by what their text came to."""
        if delta.reasoning:
            self.tokens += self.held + tokens
            self.held = 0
        elif delta.content or delta.calls or not self.tokens:
            self.held = 0
        else:
            self.held += tokens


def read_chunk(reader: OutputReader | None, chunk: TextChunk, thought: ReasoningCount) -> Sequence[OutputDelta]:
    """Parse a chunk, and count its tokens of reasoning. Without a reader, all of its text is content."""
    if reader is None:
        return [OutputDelta(chunk.text)] if chunk.text else []
    tokens = 1 if chunk.cuts else len(chunk.token_ids)
    deltas = list[OutputDelta]()
    for text in chunk.texts:
        _add(deltas, _pushed(reader, text, tokens, thought))
    if chunk.finish_reason is not None:
        _add(deltas, _ended(reader, chunk.finish_reason, chunk.stopped_by, thought))
    return deltas


def read_whole(
    reader: OutputReader | None,
    texts: Sequence[str],
    finish_reason: FinishReason | None,
    stopped_by: str | None,
    thought: ReasoningCount,
) -> AssistantMessage:
    """Parse a whole output, given as the texts of its tokens."""
    if reader is None:
        return AssistantMessage("".join(texts))
    deltas = [_pushed(reader, text, 1, thought) for text in texts]
    deltas.append(_ended(reader, finish_reason, stopped_by, thought))
    return assembled(reader, deltas)


def assembled(reader: OutputReader, deltas: Sequence[OutputDelta]) -> AssistantMessage:
    """Return the message that all deltas of a reader come to."""
    return AssistantMessage(
        "".join([delta.content for delta in deltas]),
        "".join([delta.reasoning for delta in deltas]),
        _calls(deltas)[: reader.calls],
        reader.incomplete,
    )


def _calls(deltas: Sequence[OutputDelta]) -> list[ParsedCall]:
    begun, arguments = list[ToolCallDelta](), list[list[str]]()
    for call in [call for delta in deltas for call in delta.calls]:
        if call.index == len(begun):
            begun.append(call)
            arguments.append([])
        arguments[call.index].append(call.arguments)
    return [
        ParsedCall(call.id or "", call.name or "", "".join(parts), call.is_text)
        for call, parts in zip(begun, arguments, strict=True)
    ]


def _pushed(reader: OutputReader, text: str, tokens: int, thought: ReasoningCount) -> OutputDelta:
    delta = reader.push(text) if text else _NOTHING
    thought.add(delta, tokens)
    return delta


def _ended(
    reader: OutputReader, finish_reason: FinishReason | None, stopped_by: str | None, thought: ReasoningCount
) -> OutputDelta:
    delta = reader.end(is_cut=finish_reason == "length" or stopped_by is not None)
    thought.add(delta, 0)
    return delta


def _add(deltas: list[OutputDelta], delta: OutputDelta) -> None:
    """Add what a push came to, if anything; text that continues the last delta's becomes part of it."""
    if not (delta.content or delta.reasoning or delta.calls):
        return
    last = deltas[-1] if deltas else None
    if last is None or last.calls or delta.calls or (last.content and delta.reasoning):
        deltas.append(delta)
    else:
        deltas[-1] = OutputDelta(last.content + delta.content, last.reasoning + delta.reasoning)
