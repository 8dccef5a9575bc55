"""Responses of the Responses API: one object with output items, or its construction as numbered events."""

import time
from collections.abc import Iterable, Iterator

from fairlane.gateway.answers.builder import AnswerBuilder, AnswerChoice, Json, Usage, as_field
from fairlane.gateway.answers.chunks import AnswerChunk, TextChunk
from fairlane.gateway.answers.logprobs import TokenNames, chat_logprobs
from fairlane.gateway.answers.message import ReasoningCount, read_chunk
from fairlane.gateway.answers.response_output import OutputItems
from fairlane.gateway.dialects.openai.compaction import CompactRequest
from fairlane.gateway.dialects.openai.item_ids import ItemIds, new_id
from fairlane.gateway.dialects.openai.response_body import ResponseRequest
from fairlane.gateway.dialects.openai.response_items import CompactionItem, MessageItem, Status
from fairlane.gateway.http import sse
from fairlane.scheduler.protocol.messages import FinishReason

# Types of errors that a response reports as OpenAI's `rate_limit_exceeded`.
_LIMIT_TYPES = frozenset({"rate_limit_error", "insufficient_quota", "overloaded_error"})


class ResponseAnswer(AnswerBuilder):
    """One response. Its whole output is kept, even for a stream, because the last events repeat it."""

    def _prepare(self) -> None:
        assert isinstance(self._request, ResponseRequest)  # noqa: S101 - its kind parses no other
        self.id = new_id("resp")
        self.item_ids = ItemIds(self.id)
        self.request = self._request
        self._reader_of_all, self._thought = self._reader(), ReasoningCount()
        self._output = OutputItems(self.request.called_as, self.item_ids.new, self.request.closes)
        self._stored = self.request.store
        self._finish: FinishReason | None = None
        self._ended: Json | None = None
        # Final events, which are numbered when they are sent.
        self._closing: list[Json] = []
        self._sequence = 0

    def ended(self) -> Json:
        if self._ended is None:
            status: Status = "incomplete" if self._finish == "length" and not self._is_warm_up else "completed"
            self._closing = [] if self._is_warm_up else list(self._output.close(status))
            self._ended = self._object(status)
        return self._ended

    @property
    def _is_warm_up(self) -> bool:
        """Whether only the prompt is to be read."""
        return self.request.max_tokens == 0

    def mark_unstored(self) -> None:
        self._stored = False
        self.ended()["store"] = False

    def mark_without_conversation(self) -> None:
        self.ended()["conversation"] = None

    def whole(self) -> Json:
        return self.ended()

    def ending(self) -> bytes:
        response = self.ended()
        events = [*self._closing, {"type": f"response.{response['status']}", "response": response}]
        return b"".join([*self._opening(), *map(self._event, events)])

    def fault(self, body: Json) -> bytes:
        """Return an error event and the failed response: some clients read only one of the two."""
        error = body["error"]
        details = {"code": error["code"], "message": error["message"], "param": error["param"]}
        code = "rate_limit_exceeded" if error["type"] in _LIMIT_TYPES else "server_error"
        failed = self._object("failed") | {"error": {"code": code, "message": error["message"]}}
        frames = [
            *self._opening(),
            self._event({"type": "error", **details}),
            self._event({"type": "response.failed", "response": failed}),
        ]
        return b"".join(frames)

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        return [self._event(event) for event in self._events(chunk)]

    def _frames(self, chunks: Iterable[AnswerChunk]) -> bytes:
        return b"".join([*self._opening(), super()._frames(chunks)])

    def _keep(self, chunks: Iterable[AnswerChunk]) -> None:
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                for _ in self._events(chunk):
                    pass  # only the items are needed

    def _opening(self) -> list[bytes]:
        if self._sequence:
            return []
        response = self._object("in_progress")
        return [
            self._event({"type": "response.created", "response": response}),
            self._event({"type": "response.in_progress", "response": response}),
        ]

    def _events(self, chunk: TextChunk) -> Iterator[Json]:
        self._finish = chunk.finish_reason or self._finish
        if self._is_warm_up:
            return iter(())
        logprobs: list[Json] = []
        if self._request.logprobs is not None:
            logprobs = chat_logprobs(TokenNames(self._model.text), chunk.token_ids, chunk.logprobs)["content"]
        return self._output.feed(read_chunk(self._reader_of_all, chunk, self._thought), logprobs)

    def _event(self, event: Json) -> bytes:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return sse.event(event["type"], numbered)

    def _object(self, status: str) -> Json:
        is_over = status in ("completed", "incomplete")
        response: Json = {
            "id": self.id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model.name,
            "output": list(self._output.items),
            "service_tier": self._service_tier,
            "usage": self._usage(self.usage()) if is_over else None,
            "temperature": self.request.draw.get("temperature", 1.0),
            "top_p": self.request.draw.get("top_p", 1.0),
            **self.request.echo,
            "store": self._stored,
        }
        incomplete = None if self._reader_of_all is None else self._reader_of_all.incomplete
        return {**response, **as_field(self._remarks(0, self._finish, incomplete))}

    def _usage(self, usage: Usage) -> Json:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._thought.tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


class CompactionAnswer(ResponseAnswer):
    """A compacted conversation: the user's messages, then a summary of everything."""

    def whole(self) -> Json:
        assert isinstance(self.request, CompactRequest)  # noqa: S101 - its kind parses no other
        response = self.ended()
        said = [item for item in self.request.items if isinstance(item, MessageItem) and item.role == "user"]
        parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
        summary = "".join([part["text"] for part in parts]).strip()
        compaction = {
            "id": self.id,
            "object": "response.compaction",
            "created_at": self._created_s,
            "output": [
                *[item.as_json() for item in said],
                CompactionItem.sealed(summary, self.request.close).as_json(),
            ],
            "usage": response["usage"],
        }
        return {**compaction, "fairlane": response["fairlane"]} if "fairlane" in response else compaction
