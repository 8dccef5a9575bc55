"""Responses that are lists of choices: OpenAI's chat and plain completions."""

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, AnswerChoice, Json, as_field
from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.answers.message import ParsedCall, read_chunk, read_whole
from fairlane.gateway.dialects.openai.requests import CompletionRequest
from fairlane.gateway.dialects.tools.deltas import OutputDelta, ToolCallDelta
from fairlane.gateway.http import sse
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs

# Log-probability of an impossible token, as in OpenAI's API: JSON has no infinity.
LOGPROB_MIN = -9999.0
_encode = msgspec.json.Encoder().encode
# Placeholder for the text of a frame; the rest of the frame cannot contain it.
_ANY_TEXT = "\0text\0"


class ChoicesAnswer(AnswerBuilder):
    """A list of choices, each with index, text, log-probabilities and finish reason. All objects of one response share
    id, model, time and tier."""

    # `object` of a whole response, and of a stream's chunks.
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]
    # Content of each choice's first chunk, before its text.
    OPENING: ClassVar[Json | None] = None

    @abstractmethod
    def _new(self, text: str) -> Json: ...

    @abstractmethod
    def _all(self, index: int, choice: AnswerChoice) -> Json: ...

    def _echo(self, index: int) -> str:
        return ""

    @abstractmethod
    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json: ...

    def ending(self) -> bytes:
        if not self._request.include_usage:
            return sse.DONE
        return sse.data(self._chunk([]) | {"usage": self.usage().as_json()}) + sse.DONE

    def whole(self) -> Json:
        choices: list[Json] = []
        remarks: Json = {}
        for index, choice in sorted(self._choices.items()):
            logprobs = None
            if self._request.logprobs is not None:
                logprobs = self._logprobs(choice.token_ids, choice.logprobs, 0)
            choices.append({"index": index, "logprobs": logprobs, **self._all(index, choice)})
            remarks = self._remarks(index, choice.finish_reason, choice.incomplete) | remarks  # of the first choice
        return self._object(self.WHOLE, choices) | {"usage": self.usage().as_json()} | as_field(remarks)

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        frame = sse.data(self._chunk([_choice(index, self._new(_ANY_TEXT), None, None)]))
        before, _, after = frame.rpartition(_encode(_ANY_TEXT))
        choice.frame = before, after
        echo = self._echo(index)
        frames = [] if self.OPENING is None else [sse.data(self._chunk([_choice(index, self.OPENING, None, None)]))]
        return [*frames, before, _encode(echo), after] if echo else frames

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        logprobs = None if self._request.logprobs is None else self._logprobs_of(chunk, choice)
        if logprobs is None and chunk.finish_reason is None and not self._request.continuous_usage:
            before, after = choice.frame
            return [before, _encode(chunk.text), after] if chunk.text else []
        update = _choice(chunk.index, self._new(chunk.text), logprobs, chunk.finish_reason)
        remarks = self._remarks(chunk.index, chunk.finish_reason)
        return [sse.data(self._chunk([update]) | as_field(remarks))]

    def _logprobs_of(self, chunk: TextChunk, choice: AnswerChoice) -> Json | None:
        if self._request.logprobs is None or not chunk.token_ids:
            return None
        logprobs = self._logprobs(chunk.token_ids, chunk.logprobs, choice.characters)
        choice.characters += sum([_characters(self._model.text, token_id) for token_id in chunk.token_ids])
        return logprobs

    def _chunk(self, choices: list[Json]) -> Json:
        usage: Json = {"usage": None} if self._request.include_usage else {}
        if self._request.continuous_usage:
            usage = {"usage": self.usage().as_json()}
        return self._object(self.CHUNK, choices) | usage

    def _object(self, name: str, choices: list[Json]) -> Json:
        return {
            "id": self.response_id,
            "object": name,
            "created": self._created_s,
            "model": self._model.name,
            "system_fingerprint": self._model.text.system_fingerprint,
            "service_tier": self._service_tier,
            "choices": choices,
        }


def _choice(index: int, content: Json, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


class ChatAnswer(ChoicesAnswer):
    """Choices that are assistant messages; the first chunk of each names the role."""

    ID_PREFIX, WHOLE, CHUNK = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    OPENING: ClassVar[Json | None] = {"delta": {"role": "assistant", "content": "", "refusal": None}}
    # Fields that carry reasoning.
    REASONING: ClassVar[tuple[str, ...]] = ("reasoning_content",)

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        choice.reader = self._reader()
        return super()._begin(index, choice)

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        """Send text as content, or, for models with calls or reasoning, as the reader classifies it."""
        reader = choice.reader
        if reader is None:
            return super()._emit(chunk, choice)
        frames, deltas = [], [self._delta(delta) for delta in read_chunk(reader, chunk)]
        logprobs = self._logprobs_of(chunk, choice)
        if not deltas and (logprobs is not None or chunk.finish_reason is not None):
            deltas.append({})
        for number, delta in enumerate(deltas, 1 - len(deltas)):
            finish = _finish(chunk.finish_reason, reader.calls, reader.incomplete) if number == 0 else None
            update = _choice(chunk.index, {"delta": delta}, logprobs, finish)
            remarks = {} if finish is None else self._remarks(chunk.index, finish, reader.incomplete)
            frames.append(sse.data(self._chunk([update]) | as_field(remarks)))
            logprobs = None
        return frames

    def _new(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def _all(self, index: int, choice: AnswerChoice) -> Json:
        said = read_whole(self._reader(), "".join(choice.text), choice.finish_reason, choice.stopped_by)
        choice.incomplete = said.incomplete
        message: Json = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message |= dict.fromkeys(self.REASONING, said.reasoning)
        if said.calls:
            message["content"] = said.content or None
            message["tool_calls"] = [_call(call) for call in said.calls]
        finish = _finish(choice.finish_reason or "stop", len(said.calls), said.incomplete)
        return {"message": message, "finish_reason": finish}

    def _delta(self, delta: OutputDelta) -> Json:
        fields: Json = dict.fromkeys(self.REASONING, delta.reasoning) if delta.reasoning else {}
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = [_call_delta(call) for call in delta.calls]
        return fields

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json:
        return chat_logprobs(self._model.text, token_ids, logprobs)  # chat has no offsets


def _finish(reason: FinishReason | None, calls: int, incomplete: str | None) -> str | None:
    return "tool_calls" if calls and incomplete is None and reason == "stop" else reason


def _call_delta(call: ToolCallDelta) -> Json:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _call(call: ParsedCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class CompletionAnswer(ChoicesAnswer):
    """Choices that are plain text; those of several prompts follow each other."""

    ID_PREFIX, WHOLE, CHUNK = "cmpl-", "text_completion", "text_completion"

    def _echo(self, index: int) -> str:
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return ""
        prompt = request.prompts[index // request.n]
        return prompt if isinstance(prompt, str) else self._model.text.decode(prompt)

    def _new(self, text: str) -> Json:
        return {"text": text}

    def _all(self, index: int, choice: AnswerChoice) -> Json:
        return {"text": self._echo(index) + "".join(choice.text), "finish_reason": choice.finish_reason or "stop"}

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json:
        return completion_logprobs(self._model.text, token_ids, logprobs, before)


def chat_logprobs(text: TextModel, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """Return `logprobs` of a chat choice or chunk. Both sequences have one entry per token."""
    content = []
    for token_id, drawn in zip(token_ids, logprobs, strict=True):
        top = [_named(text, other, logprob) for other, logprob in drawn.top]
        content.append({**_named(text, token_id, drawn.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    text: TextModel, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], text_offset: int
) -> dict[str, Any]:
    """Return `logprobs` of a completion choice or chunk. `text_offset`: characters of the choice that precede these
    tokens."""
    lengths = [_characters(text, token_id) for token_id in token_ids]
    return {
        "tokens": [_completion_name(text, token_id) for token_id in token_ids],
        "token_logprobs": [_finite(drawn.logprob) for drawn in logprobs],
        "top_logprobs": [
            {_completion_name(text, other): _finite(logprob) for other, logprob in drawn.top} for drawn in logprobs
        ],
        "text_offset": list(itertools.accumulate(lengths, initial=text_offset))[: len(token_ids)],
    }


def _named(text: TextModel, token_id: int, logprob: float) -> dict[str, Any]:
    name, _ = text.token_name(token_id)
    return {"token": name, "logprob": _finite(logprob), "bytes": list(text.token_bytes(token_id))}


def _completion_name(text: TextModel, token_id: int) -> str:
    name, is_partial = text.token_name(token_id)
    return f"bytes:{name}" if is_partial else name


def _characters(text: TextModel, token_id: int) -> int:
    """Return the number of characters that begin in a token."""
    return sum([byte & 0xC0 != 0x80 for byte in text.token_bytes(token_id)])


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
