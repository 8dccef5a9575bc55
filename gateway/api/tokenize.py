"""`POST /tokenize` and `POST /detokenize`, which need only the model's card. Nothing is enqueued or charged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from fairlane.gateway.api.completions import CHAT
from fairlane.gateway.dialects.openai.chat_requests import read_chat
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Text
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT
from fairlane.gateway.dialects.openai.reading import Reading, checked, checked_fields
from fairlane.gateway.dialects.openai.request_bodies import ChatBody
from fairlane.gateway.errors import context_length, invalid
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.http.json_reader import read_object
from fairlane.gateway.http.lifted import MAX_TOKEN_ID
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.model_text.tokenizer import PromptTooLong
from fairlane.gateway.pipeline.context import Bounds, RequestContext
from fairlane.gateway.pipeline.fitting import allowed_model
from fairlane.gateway.pipeline.media_desk import with_media
from fairlane.gateway.pipeline.prepare import ignored_header

TOKENIZE_PATH, DETOKENIZE_PATH = "/tokenize", "/detokenize"

Model = Annotated[Hint, Field(min_length=1)]
Tokens = tuple[int, ...]
# (body, caller, reading) → response. Raises ApiError. Called in a thread for a large body.
Answer = Callable[[bytes, Caller, Reading], Mapping[str, Any]]


def _token_ids(value: object) -> Tokens:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < MAX_TOKEN_ID for each in value):
        raise PydanticCustomError("tokens", "must be a list of token ids")
    return tuple(value)


_COUNTERS = "/v1/messages/count_tokens` and `/v1/responses/input_tokens"


class TokenizeTextBody(Fields):
    """The body of `POST /tokenize` for a text, parsed as the prompt of a plain completion."""

    model: Model
    prompt: Text
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(ChatBody):
    """The body of `POST /tokenize` for a conversation, with all fields of a chat."""

    return_token_strs: bool | None = None


class DetokenizeBody(Fields):
    """The body of `POST /detokenize`."""

    model: Model
    tokens: Annotated[
        Tokens,
        PlainValidator(_token_ids, json_schema_input_type=list[Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]]),
    ]


@dataclass(eq=False)
class TextEndpoints:
    """The endpoints that need only the body and the model's card."""

    fleet_cache: FleetCache
    bounds: Bounds
    # Returns the rules by which a body is read.
    reading: Callable[[RequestContext], Reading]

    async def tokenize(self, context: RequestContext) -> None:
        await self._answer(context, self._tokenized)

    async def detokenize(self, context: RequestContext) -> None:
        await self._answer(context, self._detokenized)

    async def _answer(self, context: RequestContext, answer: Answer) -> None:
        room, timeout_s, reading = self.bounds.room, self.bounds.body_timeout_s, self.reading(context)
        try:
            body = await context.read_body(max_bytes=room.most_bytes(1), timeout_s=timeout_s)
            document = await room.run(context.tenant, len(body), partial(answer, body, context.caller, reading))
        finally:
            context.exchange.release()
        await send_json(context.send, document, ignored_header(reading.ignored))

    def _tokenized(self, body: bytes, caller: Caller, reading: Reading) -> Mapping[str, Any]:
        """Return vLLM's response: the prompt tokens that a completion or chat of this body would be charged.

        Raises ApiError `context_length_exceeded`, with the count, for a prompt that is too long."""
        fields = read_object(body, token_ids=reading.token_ids)
        if "messages" in fields:
            asked: TokenizeTextBody | TokenizeChatBody = checked_fields(
                TokenizeChatBody, {**NEUTRAL_CHAT, "prompt": ()}, fields, reading
            )
        else:
            asked = checked_fields(TokenizeTextBody, {}, fields, reading)
        model = allowed_model(self.fleet_cache, asked.model, caller)
        param = "prompt" if isinstance(asked, TokenizeTextBody) else "messages"
        try:
            ids = _prompt(model, asked, reading)
        except PromptTooLong as long:
            raise context_length(model.context_length, f"at least {long.least_tokens}", None, param) from None
        if len(ids) > model.context_length:
            raise context_length(model.context_length, len(ids), None, param)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.context_length, "tokens": ids}
        if asked.return_token_strs:
            answer["token_strs"] = [model.text.token_text(token_id) for token_id in ids]
        return answer

    def _detokenized(self, body: bytes, caller: Caller, reading: Reading) -> Mapping[str, Any]:
        asked = checked(DetokenizeBody, {}, body, reading)
        model = allowed_model(self.fleet_cache, asked.model, caller)
        if len(asked.tokens) > model.context_length:
            raise invalid("tokens", f"`tokens` must have at most {model.context_length} items.")
        vocab_size = model.text.card.vocab_size
        if asked.tokens and max(asked.tokens) >= vocab_size:
            raise invalid("tokens", f"`tokens` contains a token id that is not below {vocab_size}.")
        return {"prompt": model.text.spelled_out(asked.tokens)}


def _prompt(model: ServedModel, asked: TokenizeTextBody | TokenizeChatBody, reading: Reading) -> Tokens:
    if isinstance(asked, TokenizeTextBody):
        return model.text.encode(asked.prompt, marked=asked.add_special_tokens is not False)
    request = read_chat(asked, reading)
    if reading.found.given:
        if model.text.card.media_forms:
            raise invalid("messages", f"`messages` contains images or sounds, which `{_COUNTERS}` count.")
        request = with_media(request, reading, {})
    [prompt] = CHAT.prompts(model.text, request.fitted(model.longest))
    return prompt
