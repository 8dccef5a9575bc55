"""The objects that answer a request, in OpenAI's shapes: whole answers, stream chunks, usage."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway import sse
from scheduler.messages import FinishReason

Json = dict[str, Any]
_ANY_TEXT = "\0text\0"
"""Stands for a text in a frame: what comes after it cannot hold the like."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request, all its choices together, as they are charged."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> Json:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Choice(msgspec.Struct, frozen=True):
    """One finished choice. `logprobs`: as `gateway.logprobs` shapes it for the endpoint, None where not asked for."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: Mapping[str, Any] | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Makes every object that answers one request: all carry the same id, model, time and tier."""

    kind: Literal["chat", "completion"]
    id: str
    model: str
    created_s: int
    service_tier: str
    """The tier that was granted: `priority`, `flex` or `default`."""
    include_usage: bool = False
    """Chunks say `usage: null` until the last one tells it."""

    def opening(self, index: int) -> Json | None:
        """The chunk that names the role of a chat choice; a plain completion has none."""
        if self.kind == "completion":
            return None
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(
        self,
        index: int,
        text: str,
        *,
        finish_reason: FinishReason | None = None,
        logprobs: Mapping[str, Any] | None = None,
        limited_by: str | None = None,
    ) -> Json:
        """New text of one choice; its last chunk has the finish reason, and the limit that cut it short if one did."""
        said: Json = {"text": text}
        if self.kind == "chat":
            said = {"delta": {"content": text} if text else {}}
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk([choice]) | _limited(limited_by)

    def text_frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text, as JSON, in a frame of `chunk` that says nothing else."""
        frame = sse.data(self.chunk(index, _ANY_TEXT))
        before, _, after = frame.rpartition(msgspec.json.encode(_ANY_TEXT))
        return before, after

    def usage_chunk(self, usage: Usage) -> Json:
        """The chunk before `[DONE]` where `stream_options.include_usage` asked for it."""
        return self._chunk([]) | {"usage": usage.as_json()}

    def whole(self, choices: Sequence[Choice], usage: Usage, *, limited_by: str | None = None) -> Json:
        """The answer of a request that does not stream."""
        told = [self._told(choice) for choice in choices]
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        return self._object(kind, told) | {"usage": usage.as_json()} | _limited(limited_by)

    def _told(self, choice: Choice) -> Json:
        said: Json = {"text": choice.text}
        if self.kind == "chat":
            said = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        ends = {"logprobs": choice.logprobs, "finish_reason": choice.finish_reason}
        return {"index": choice.index, **said, **ends}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        usage = {"usage": None} if self.include_usage else {}
        return self._object(kind, choices) | usage

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "service_tier": self.service_tier,
            "choices": choices,
        }


def _limited(limited_by: str | None) -> Json:
    return {} if limited_by is None else {"fairlane": {"limited_by": limited_by}}
