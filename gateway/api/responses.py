"""`/v1/responses`: conversations as items, their compaction, and stored responses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import QueryParams

from fairlane.gateway.answers.builder import AnswerBuilder
from fairlane.gateway.answers.responses import CompactionAnswer, ResponseAnswer
from fairlane.gateway.api.files import page
from fairlane.gateway.api.generate import Generate, Parts
from fairlane.gateway.api.stored_input import StoredInput, decoded
from fairlane.gateway.dialects.openai.compaction import parse_compaction
from fairlane.gateway.dialects.openai.item_ids import is_response
from fairlane.gateway.dialects.openai.reading import checked_fields
from fairlane.gateway.dialects.openai.response_body import ResponseRequest, parse_input_tokens, parse_response
from fairlane.gateway.dialects.openai.response_conversation import KeptResponse, read_conversation, read_kept
from fairlane.gateway.dialects.openai.response_items import Json
from fairlane.gateway.errors import ApiError, invalid, not_found
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.model_text.truncation import truncated_prompt
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.gateway.pipeline.prepare import Kind, Tokens, conversation
from fairlane.quotas.responses import KeptResponses
from fairlane.store.errors import STORE_ERRORS

PATH = "/v1/responses"
ONE_PATH = PATH + "/{response_id}"
ITEMS_PATH = ONE_PATH + "/input_items"
COMPACT_PATH = PATH + "/compact"
COUNT_PATH = PATH + "/input_tokens"
COUNTED = {"object": "response.input_tokens"}
# A conversation with more items is encoded in a thread, so that the event loop can serve streams meanwhile.
_MANY_ITEMS = 200


def _prompts(text: TextModel, request: ResponseRequest) -> list[Tokens]:
    try:
        return [truncated_prompt(text, request)] if request.truncates else conversation(text, request)
    except ApiError as error:
        if error.param == "messages":  # the field's name in a chat
            error.param = "input"
        raise


RESPONSE = Kind(
    operation="chat",
    prompt_param="input",
    most_prompts=1,
    parse=parse_response,
    prompts=_prompts,
    answer=ResponseAnswer,
)
COMPACT = replace(RESPONSE, answer=CompactionAnswer)


@dataclass(frozen=True, slots=True)
class ResponseKind:
    """A kind of call whose bodies may refer to stored data."""

    kind: Kind[ResponseRequest]
    stored: StoredInput
    # Takes the stored data as `stored`.
    parse: Callable[..., ResponseRequest]
    # Whether the call itself seals data.
    seals: bool = False

    async def __call__(self, body: bytes, caller: Caller) -> Kind[ResponseRequest]:
        """Return the kind with the stored data of one body. Raises StoreUnavailable."""
        found, carried_bytes = await self.stored.of(body, caller, seals=self.seals)
        return replace(self.kind, parse=partial(self.parse, stored=found), carried_bytes=carried_bytes)


class Respond(Generate[ResponseRequest]):
    """The endpoints `POST /v1/responses` and `POST /v1/responses/compact`."""

    def __init__(
        self, parts: Parts, kind_of: ResponseKind, remember: Callable[[Caller, str, bytes], None] | None = None
    ) -> None:
        """`remember` is called with each response's id and what would be stored of it."""
        super().__init__(kind_of.kind, parts)
        self._response_kind = kind_of
        self._remember = remember

    async def _kind_of(self, body: bytes, caller: Caller) -> Kind[ResponseRequest]:
        return await self._response_kind(body, caller)

    async def _finished(self, answer: AnswerBuilder, caller: Caller) -> None:
        assert isinstance(answer, ResponseAnswer)  # noqa: S101 - as the kind says
        request, items = answer.request, list[Json]()
        is_large, keeps = len(request.items) > _MANY_ITEMS, request.store or self._remember is not None
        if keeps or request.conversation is not None:
            items = await asyncio.to_thread(input_items, answer) if is_large else input_items(answer)
        if request.conversation is not None and not await self._add(answer, request.conversation, items, caller):
            answer.mark_without_conversation()
        if keeps:
            whole = KeptResponse(answer.ended(), items)
            content = await asyncio.to_thread(msgspec.json.encode, whole) if is_large else msgspec.json.encode(whole)
            if self._remember is not None:
                self._remember(caller, answer.id, content)
            if request.store and not await self._keep(answer.id, content, caller):
                answer.mark_unstored()

    async def _keep(self, response_id: str, content: bytes, caller: Caller) -> bool:
        try:
            return await self._response_kind.stored.kept.keep(caller.root, caller.account, response_id, content)
        except STORE_ERRORS:
            return False

    async def _add(self, answer: ResponseAnswer, conversation_id: str, items: list[Json], caller: Caller) -> bool:
        """Add the new items and the output to the conversation. Return False if that was not possible."""
        more = [*items[answer.request.earlier_items :], *answer.ended()["output"]]

        def extended(content: bytes) -> bytes:
            return msgspec.json.encode(read_conversation(content).extended(more))

        try:
            kept = self._response_kind.stored.kept
            return await kept.change(caller.root, caller.account, conversation_id, extended) == "kept"
        except STORE_ERRORS:
            return False


def kinds(stored: StoredInput) -> tuple[ResponseKind, ResponseKind, ResponseKind, ResponseKind]:
    """Return the kinds of a response, one in a batch, a compaction, and a count of tokens."""
    return (
        ResponseKind(RESPONSE, stored, parse_response),
        ResponseKind(RESPONSE, stored, partial(parse_response, may_store=False)),
        ResponseKind(COMPACT, stored, parse_compaction, seals=True),
        ResponseKind(RESPONSE, stored, parse_input_tokens),
    )


def input_items(answer: ResponseAnswer) -> list[Json]:
    """Return the items of a finished response's input, as they are stored."""
    return [item.as_json(answer.item_ids.new) for item in answer.request.items]


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ResponseQuery(_Query):
    """The query of `GET /v1/responses/{id}`."""

    stream: Annotated[Literal["false"] | None, Field(description="A stored response is not streamed")] = None
    include_obfuscation: Annotated[Literal["false"] | None, Field(description="Obfuscation is not supported")] = None


class ItemsQuery(_Query):
    """The query of `GET /v1/responses/{id}/input_items`."""

    limit: Annotated[int, Field(ge=1, le=100, description="Items of one page")] = 20
    order: Annotated[Literal["asc", "desc"], Field(description="`desc`: newest first")] = "desc"
    after: Annotated[str | None, Field(description="`last_id` of the previous page")] = None


Query = TypeVar("Query", bound=_Query)


@dataclass(eq=False)
class StoredResponses:
    """The endpoints of stored responses."""

    kept: KeptResponses

    async def show(self, context: RequestContext) -> None:
        read_items_query(ResponseQuery, context)
        found = await self._found(context)
        await send_json(context.send, found.response, [])

    async def list_items(self, context: RequestContext) -> None:
        query = read_items_query(ItemsQuery, context)
        await send_json(context.send, items_page((await self._found(context)).items, query), [])

    async def forget(self, context: RequestContext) -> None:
        caller = context.caller
        response_id = context.path_params["response_id"]
        is_one = is_response(response_id)
        if not (is_one and await self.kept.forget(caller.root, caller.account, response_id)):
            raise not_found("response")
        await send_json(context.send, {"id": response_id, "object": "response", "deleted": True}, [])

    async def _found(self, context: RequestContext) -> KeptResponse:
        caller = context.caller
        response_id = context.path_params["response_id"]
        is_one = is_response(response_id)
        content = await self.kept.read(caller.root, caller.account, response_id) if is_one else None
        if content is None:
            raise not_found("response")
        return await decoded(read_kept, content)


def items_page(items: list[Json], query: ItemsQuery) -> dict[str, object]:
    """Return a page of items. Raises ApiError."""
    if query.order == "desc":
        items = items[::-1]
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise invalid("after", "`after` is not one of the items.")
        items = items[ids.index(query.after) + 1 :]
    return page(items, query.limit, no_id="")


def read_items_query(kind: type[Query], context: RequestContext) -> Query:
    """Parse a query. What would be included in addition is a hint: items are always whole. Raises ApiError."""
    given = dict(QueryParams(context.scope["query_string"]))
    return checked_fields(kind, {}, {name: given[name] for name in given if name not in ("include", "include[]")})
