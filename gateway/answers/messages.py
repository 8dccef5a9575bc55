"""Anthropic's responses: messages made of blocks.

A stream sends one block after the other: each is opened, continued and closed before the next."""

from functools import partial

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, AnswerChoice, Json, as_field
from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.answers.message import read_chunk, read_whole
from fairlane.gateway.dialects.anthropic.requests import Display, MessagesRequest
from fairlane.gateway.dialects.openai.tools import json_object
from fairlane.gateway.dialects.tools.deltas import OutputDelta
from fairlane.gateway.http import sse
from fairlane.scheduler.protocol.messages import FinishReason

# Signature of thinking. Clients drop blocks without one, and send it back, where it is not checked.
SIGNATURE = "unsigned"
_TIERS = {"priority": "priority", "flex": "batch"}
_PING = sse.event("ping", {"type": "ping"})
_TAIL = b"}}\n\n"
_encode = msgspec.json.Encoder().encode
# Converts the body of an error response to an error event of a stream.
error_frame = partial(sse.event, "error")


class BlockFrames:
    """The blocks of one stream, as frames."""

    def __init__(self, display: Display) -> None:
        self._display = display
        # The type of the open block: `thinking`, `text` or `tool_use`.
        self._open: str | None = None
        self._index = -1
        # The part before the text in frames of the open block.
        self._text_head = b""

    def frames(self, delta: OutputDelta) -> list[bytes]:
        frames: list[bytes] = []
        if delta.continued is not None:
            frames += self._arguments(delta.continued.arguments)
        if delta.reasoning:
            frames += self._thinking(delta.reasoning)
        if delta.content:
            if self._open != "text":
                frames += self._start("text", {"type": "text", "text": ""})
                self._text_head = self._head("text_delta", "text")
            frames += (self._text_head, _encode(delta.content), _TAIL)
        for call in delta.begun:
            block = {"type": "tool_use", "id": _call_id(call.id or ""), "name": call.name or "", "input": {}}
            frames += self._start("tool_use", block)
            frames += self._arguments(call.arguments)
        return frames

    def _arguments(self, text: str) -> tuple[bytes, ...]:
        return (self._head("input_json_delta", "partial_json"), _encode(text), _TAIL) if text else ()

    def close(self) -> list[bytes]:
        if self._open is None:
            return []
        frames = []
        if self._open == "thinking":
            frames = [self._head("signature_delta", "signature"), _encode(SIGNATURE), _TAIL]
        self._open = None
        return [*frames, sse.event("content_block_stop", {"type": "content_block_stop", "index": self._index})]

    def _thinking(self, text: str) -> list[bytes]:
        if self._display == "hidden":
            return [_PING]
        frames = []
        if self._open != "thinking":
            frames = self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if self._display == "omitted":
            return frames or [_PING]
        return [*frames, self._head("thinking_delta", "thinking"), _encode(text), _TAIL]

    def _start(self, opened: str, block: Json) -> list[bytes]:
        frames = self.close()
        self._open, self._index = opened, self._index + 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*frames, sse.event("content_block_start", start)]

    def _head(self, kind: str, field: str) -> bytes:
        head = 'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
        return (head % (self._index, kind, field)).encode()


class MessagesAnswer(AnswerBuilder):
    """One message: thinking, text and calls, in the order of the model's output."""

    ID_PREFIX = "msg_"

    def _prepare(self) -> None:
        self._display: Display = self._request.thinking if isinstance(self._request, MessagesRequest) else "hidden"
        self._blocks = BlockFrames(self._display)
        # Fields of the last frames.
        self._ended: Json = {}

    def fault(self, body: Json) -> bytes:
        return error_frame(body)

    def ending(self) -> bytes:
        delta = {"type": "message_delta", **self._ended, "usage": self._usage()}
        return sse.event("message_delta", delta) + sse.event("message_stop", {"type": "message_stop"})

    def whole(self) -> Json:
        choice = self._choices.get(0) or AnswerChoice()
        said = read_whole(self._reader(), choice.text, choice.finish_reason, choice.stopped_by, choice.thought)
        content: list[Json] = []
        if said.reasoning and self._display != "hidden":
            thinking = said.reasoning if self._display == "shown" else ""
            content.append({"type": "thinking", "thinking": thinking, "signature": SIGNATURE})
        if said.content:
            content.append({"type": "text", "text": said.content})
        content += [
            {"type": "tool_use", "id": _call_id(call.id), "name": call.name, "input": json_object(call.arguments) or {}}
            for call in said.calls
        ]
        finish = choice.finish_reason or "stop"
        stop = self._stop(finish, choice.stopped_by, len(said.calls))
        remarks = self._remarks(0, finish, said.incomplete)
        return {**self._message(content), **stop, "usage": self._usage(), **as_field(remarks)}

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        choice.reader = self._reader()
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [sse.event("message_start", {"type": "message_start", "message": message})]

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        frames: list[bytes] = []
        for delta in read_chunk(choice.reader, chunk, choice.thought):
            frames += self._blocks.frames(delta)
        if chunk.finish_reason is not None:
            reader = choice.reader
            calls, incomplete = (0, None) if reader is None else (reader.calls, reader.incomplete)
            frames += self._blocks.close()
            stop = self._stop(chunk.finish_reason, chunk.stopped_by, calls)
            self._ended = {"delta": stop, **as_field(self._remarks(0, chunk.finish_reason, incomplete))}
        return frames

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model.name,
            "content": content,
        }

    def _stop(self, finish_reason: FinishReason, stopped_by: str | None, calls: int) -> Json:
        reason = "end_turn"
        if finish_reason == "length":
            is_full = self._request.max_tokens is None and self._limited_by(0, finish_reason) is None
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif stopped_by is not None:
            reason = "stop_sequence"
        elif calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": stopped_by}

    def _usage(self) -> Json:
        usage = self.usage()
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "service_tier": _TIERS.get(self._service_tier, "standard"),
        }


def _call_id(call_id: str) -> str:
    return "toolu_" + call_id.removeprefix("call_")
