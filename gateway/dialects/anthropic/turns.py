"""Converts messages of content blocks to turns. The result of a call is a separate turn, also one of a tool that
Anthropic ran, which is a block of the assistant's message."""

from collections.abc import Iterator, Sequence

from fairlane.gateway.dialects.anthropic.blocks import (
    Block,
    CompactionBlock,
    DocumentBlock,
    ImageBlock,
    OtherBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    ServerResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from fairlane.gateway.dialects.anthropic.request_bodies import MessageBody
from fairlane.gateway.dialects.media_marks import Mark, Medium, joined, source_of
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.errors import invalid

_ReadBlock = TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock | ImageBlock | OtherBlock
_ASSISTANT_BLOCKS = (
    TextBlock,
    ThinkingBlock,
    RedactedThinkingBlock,
    ToolUseBlock,
    ServerResultBlock,
    CompactionBlock,
    ImageBlock,
    OtherBlock,
)


def turns_of(message: MessageBody, index: int, reading: Reading) -> Iterator[Turn]:
    """Yield the turns of one message, at least one. Raises ApiError naming the block that its role cannot contain."""
    param = f"messages.[{index}].content"
    return (_assistant_turns if message.role == "assistant" else _user_turns)(message, param, reading)


def _user_turns(message: MessageBody, param: str, reading: Reading) -> Iterator[Turn]:
    texts: list[str | Mark] = []
    has_results = False
    for place, block in enumerate(message.content):
        where = f"{param}.[{place}]"
        if message.role == "user" and isinstance(block, ToolResultBlock | ServerResultBlock):
            if texts:
                yield Turn(role="user", content=joined(texts))
            texts, has_results = [], True
            yield _result(block, where, reading)
        elif isinstance(block, TextBlock) or (message.role == "user" and isinstance(block, _ReadBlock)):
            # Claude Code adds what a tool read of a file after the tool's result.
            may_omit = has_results and isinstance(block, DocumentBlock)
            texts += _parts(block, where, reading, may_omit=may_omit)
        else:
            raise _misplaced(message, where)
    if texts or not has_results:
        yield Turn(role=message.role, content=joined(texts))


def _assistant_turns(message: MessageBody, param: str, reading: Reading) -> Iterator[Turn]:
    said: list[Block | Mark] = []
    for place, block in enumerate(message.content):
        if not isinstance(block, _ASSISTANT_BLOCKS):
            raise _misplaced(message, f"{param}.[{place}]")
        if isinstance(block, ServerResultBlock):
            yield _assistant_turn(said)
            yield _result(block, f"{param}.[{place}]", reading)
            said = []
        elif isinstance(block, ImageBlock):
            said.append(_mark(block, f"{param}.[{place}]", reading, may_omit=True))
        elif isinstance(block, OtherBlock):
            reading.ignore(f"{param}.{block.type}")
        else:
            said.append(block)
    if said or not any(isinstance(block, ServerResultBlock) for block in message.content):
        yield _assistant_turn(said)


def _assistant_turn(blocks: Sequence[Block | Mark]) -> Turn:
    texts, thoughts, calls = list[str | Mark](), list[str](), list[ToolCall]()
    for block in blocks:
        match block:
            case Mark():
                texts.append(block)
            case TextBlock():
                texts.append(block.text)
            case CompactionBlock():
                texts.append(block.content or "")
            case ThinkingBlock() if block.thinking:
                thoughts.append(block.thinking)
            case ToolUseBlock():
                calls.append(ToolCall(name=block.name or "", arguments=block.input, id=block.id))
    content = joined(texts)
    return Turn(
        role="assistant",
        content=(content or None) if calls else content,
        tool_calls=tuple(calls),
        reasoning="\n".join(thoughts) or None,
    )


def _result(block: ToolResultBlock | ServerResultBlock, where: str, reading: Reading) -> Turn:
    if isinstance(block, ServerResultBlock):
        text = block.content
    else:
        parts = [
            part
            for at, inner in enumerate(block.content or ())
            for part in _parts(inner, f"{where}.content.[{at}]", reading, may_omit=True)
        ]
        text = joined(parts)
    shown = f"Error: {text}" if block.is_error else text
    return Turn(role="tool", content=shown, tool_call_id=block.tool_use_id)


def _parts(block: _ReadBlock, where: str, reading: Reading, *, may_omit: bool) -> Sequence[str | Mark]:
    if isinstance(block, DocumentBlock):
        headings = filter(None, (block.title, block.context))
        content = [part for inner in block.parts for part in _parts(inner, where, reading, may_omit=may_omit)]
        return [*headings, *content]
    if block.text is not None:
        return [block.text]
    return [_mark(block, where, reading, may_omit=may_omit)]


def _mark(block: ImageBlock | OtherBlock, where: str, reading: Reading, *, may_omit: bool) -> Mark:
    source = source_of("image", block.source, where) if isinstance(block, ImageBlock) else None
    return reading.found.mark(Medium(param=where, type=block.type, source=source, may_omit=may_omit))


def _misplaced(message: MessageBody, where: str) -> Exception:
    return invalid(where, f"A message of the role '{message.role}' cannot contain a block of this type.")
