"""Responses that are lists of choices: OpenAI's chat and plain completions."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, AnswerChoice, Json, as_field
from fairlane.gateway.answers.calls import calls_of_delta, calls_of_message
from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.answers.logprobs import TokenNames, chat_logprobs, completion_logprobs, prompt_logprobs
from fairlane.gateway.answers.message import read_chunk, read_whole
from fairlane.gateway.dialects.openai.requests import ChatRequest, CompletionRequest
from fairlane.gateway.dialects.tools.deltas import OutputDelta
from fairlane.gateway.http import sse
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs

_encode = msgspec.json.Encoder().encode
# Placeholder for the text of a frame; the rest of the frame cannot contain it.
_ANY_TEXT = "\0text\0"


class ChoicesAnswer(AnswerBuilder):
    """A list of choices, each with index, text, log-probabilities and finish reason. All objects of one response share
    id, model, time and tier."""

    # `object` of a whole response, and of a stream's chunks.
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    @abstractmethod
    def _new(self, text: str) -> Json: ...

    @abstractmethod
    def _all(self, index: int, choice: AnswerChoice) -> Json: ...

    def _echoed(self, index: int) -> tuple[Sequence[int], Sequence[PositionLogprobs | None]]:
        """Return the prompt's tokens and log-probabilities if they precede those of the choice."""
        return (), ()

    @abstractmethod
    def _opening(self, index: int, choice: AnswerChoice) -> list[bytes]:
        """Return the frames of a stream that precede the choice's text."""

    @abstractmethod
    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None], before: int) -> Json: ...

    @property
    def _names(self) -> TokenNames:
        return TokenNames(self._model.text, self._request.display.names_by_id)

    def _prompt(self, index: int) -> tuple[Sequence[int], Sequence[PositionLogprobs]]:
        """Return the tokens of a choice's prompt, and the log-probabilities of all but the first."""
        job = self.jobs[index // self._request.n]
        return (() if job.message is None else job.message.prompt), job.prompt_logprobs

    def _prompt_fields(self, index: int) -> Json:
        request, fields = self._request, Json()
        if request.display.token_ids:
            fields["prompt_token_ids"] = [*self._prompt(index)[0]]
        if request.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(self._model.text, *self._prompt(index), request.prompt_logprobs)
        return fields

    def _returned(self) -> list[tuple[int, int, AnswerChoice]]:
        """Return the choices of the answer: the index in it, the choice's own, and the choice."""
        return [(index, index, choice) for index, choice in sorted(self._choices.items())]

    def _ids(self, token_ids: Sequence[int]) -> Json:
        return {"token_ids": [*token_ids]} if self._request.display.token_ids else {}

    def ending(self) -> bytes:
        if not self._request.include_usage:
            return sse.DONE
        return sse.data(self._chunk([]) | {"usage": self.usage().as_json()}) + sse.DONE

    def whole(self) -> Json:
        choices: list[Json] = []
        remarks: Json = {}
        for shown_index, index, choice in self._returned():
            logprobs = None
            if self._request.logprobs is not None:
                token_ids, known = self._echoed(index)
                logprobs = self._logprobs((*token_ids, *choice.token_ids), (*known, *choice.logprobs), 0)
            shown = self._ids(choice.token_ids) if self._request.display.token_ids else {}
            choices.append({"index": shown_index, "logprobs": logprobs, **self._all(index, choice), **shown})
            remarks = self._remarks(index, choice.finish_reason, choice.incomplete) | remarks  # of the first choice
        return self._object(self.WHOLE, choices) | {"usage": self.usage().as_json()} | as_field(remarks)

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        frame = sse.data(self._chunk([_choice(index, self._new(_ANY_TEXT), None, None)]))
        before, _, after = frame.rpartition(_encode(_ANY_TEXT))
        choice.frame = before, after
        return self._opening(index, choice)

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        logprobs = None if self._request.logprobs is None else self._logprobs_of(chunk, choice)
        request = self._request
        is_plain = logprobs is None and not (request.continuous_usage or request.display.token_ids)
        if is_plain and chunk.finish_reason is None:
            before, after = choice.frame
            return [before, _encode(chunk.text), after] if chunk.text else []
        update = _choice(chunk.index, self._new(chunk.text) | self._ids(chunk.token_ids), logprobs, chunk.finish_reason)
        remarks = self._remarks(chunk.index, chunk.finish_reason)
        return [sse.data(self._chunk([update]) | as_field(remarks))]

    def _logprobs_of(self, chunk: TextChunk, choice: AnswerChoice) -> Json | None:
        if self._request.logprobs is None or not chunk.token_ids:
            return None
        logprobs = self._logprobs(chunk.token_ids, chunk.logprobs, choice.characters)
        choice.characters += sum(self._names.characters(chunk.token_ids))
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
    OPENING: ClassVar[Json] = {"delta": {"role": "assistant", "content": "", "refusal": None}}
    # Fields that carry reasoning.
    REASONING: ClassVar[tuple[str, ...]] = ("reasoning_content",)

    def _prepare(self) -> None:
        assert isinstance(self._request, ChatRequest)  # noqa: S101 - its kind parses no other
        self._reasoning = self.REASONING if self._request.includes_reasoning else ()
        self._as_function = self._request.calls_function

    def whole(self) -> Json:
        return super().whole() | self._prompt_fields(0)

    def _opening(self, index: int, choice: AnswerChoice) -> list[bytes]:
        return [sse.data(self._chunk([_choice(index, self.OPENING, None, None)]) | self._prompt_fields(index))]

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        choice.reader = self._reader()
        return super()._begin(index, choice)

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        """Send text as content, or, for models with calls or reasoning, as the reader classifies it."""
        reader = choice.reader
        if reader is None:
            return super()._emit(chunk, choice)
        frames, deltas = (
            [],
            [fields for delta in read_chunk(reader, chunk, choice.thought) if (fields := self._delta(delta))],
        )
        logprobs, ids = self._logprobs_of(chunk, choice), self._ids(chunk.token_ids)
        if not deltas and (logprobs is not None or chunk.finish_reason is not None or ids):
            deltas.append({})
        for number, delta in enumerate(deltas, 1 - len(deltas)):
            finish = self._ended(chunk.finish_reason, reader.calls, reader.incomplete) if number == 0 else None
            update = _choice(chunk.index, {"delta": delta, **ids}, logprobs, finish)
            remarks = {} if finish is None else self._remarks(chunk.index, finish, reader.incomplete)
            frames.append(sse.data(self._chunk([update]) | as_field(remarks)))
            logprobs, ids = None, self._ids(())
        return frames if frames or self._reasoning else [sse.PULSE]  # hidden reasoning keeps the connection alive

    def _new(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def _all(self, index: int, choice: AnswerChoice) -> Json:
        said = read_whole(self._reader(), choice.text, choice.finish_reason, choice.stopped_by, choice.thought)
        choice.incomplete = said.incomplete
        message: Json = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message |= dict.fromkeys(self._reasoning, said.reasoning)
        if said.calls:
            message["content"] = said.content or None
            message |= calls_of_message(said.calls, as_function=self._as_function)
        finish = self._ended(choice.finish_reason or "stop", len(said.calls), said.incomplete)
        return {"message": message, "finish_reason": finish}

    def _delta(self, delta: OutputDelta) -> Json:
        fields: Json = dict.fromkeys(self._reasoning, delta.reasoning) if delta.reasoning else {}
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields |= calls_of_delta(delta.calls, as_function=self._as_function)
        return fields

    def _ended(self, reason: FinishReason | None, calls: int, incomplete: str | None) -> str | None:
        if not calls or incomplete is not None or reason != "stop":
            return reason
        return "function_call" if self._as_function else "tool_calls"

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None], before: int) -> Json:
        return chat_logprobs(self._names, token_ids, [each for each in logprobs if each is not None])  # has no offsets


class CompletionAnswer(ChoicesAnswer):
    """Choices that are plain text; those of several prompts follow each other."""

    ID_PREFIX, WHOLE, CHUNK = "cmpl-", "text_completion", "text_completion"

    def _echo(self, index: int) -> str:
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return ""
        prompt = request.prompts[index // request.n]
        if request.truncate_prompt_tokens is not None:
            prompt = tuple(self._prompt(index)[0])
        return prompt if isinstance(prompt, str) else self._model.text.decode(prompt)

    def _new(self, text: str) -> Json:
        return {"text": text}

    def _all(self, index: int, choice: AnswerChoice) -> Json:
        text, finish_reason = self._echo(index) + "".join(choice.text), choice.finish_reason or "stop"
        return {"text": text, "finish_reason": finish_reason, **self._prompt_fields(index)}

    def _returned(self) -> list[tuple[int, int, AnswerChoice]]:
        request, found = self._request, super()._returned()
        if not isinstance(request, CompletionRequest) or request.returned == request.n:
            return found
        most_likely: list[tuple[int, int, AnswerChoice]] = []
        for first in range(0, len(found), request.n):
            best = sorted(found[first : first + request.n], key=lambda one: -_likelihood(one[2]))[: request.returned]
            most_likely += [(len(most_likely) + place, index, choice) for place, (_, index, choice) in enumerate(best)]
        return most_likely

    def _opening(self, index: int, choice: AnswerChoice) -> list[bytes]:
        echo, fields = self._echo(index), self._prompt_fields(index)
        if not (echo or fields):
            return []
        token_ids, known = self._echoed(index)
        choice.characters = sum(self._names.characters(token_ids))
        logprobs = self._logprobs(token_ids, known, 0) if token_ids else None
        return [sse.data(self._chunk([_choice(index, self._new(echo) | fields, logprobs, None)]))]

    def _echoed(self, index: int) -> tuple[Sequence[int], Sequence[PositionLogprobs | None]]:
        request = self._request
        if request.logprobs is None or not isinstance(request, CompletionRequest) or not request.echo:
            return (), ()
        prompt, logprobs = self._prompt(index)
        most = request.logprobs
        shorter = [PositionLogprobs(each.logprob, each.top[:most], each.rank) for each in logprobs]
        return prompt, (None, *shorter)

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None], before: int) -> Json:
        return completion_logprobs(self._names, token_ids, logprobs, before)


def _likelihood(choice: AnswerChoice) -> float:
    return sum([each.logprob for each in choice.logprobs])
