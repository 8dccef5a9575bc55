"""`/v1/responses`: conversations as items, their compaction, and stored responses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import QueryParams

from fairlane.gateway.answers.builder import AnswerBuilder
from fairlane.gateway.answers.responses import CompactionAnswer, ResponseAnswer
from fairlane.gateway.api.files import page
from fairlane.gateway.api.generate import Generate, Parts
from fairlane.gateway.dialects.openai.compaction import parse_compaction
from fairlane.gateway.dialects.openai.reading import checked_fields
from fairlane.gateway.dialects.openai.response_body import KeptResponse, ResponseRequest, parse_response, read_kept
from fairlane.gateway.errors import ApiError, invalid, not_found
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES, scalars
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.gateway.pipeline.prepare import Kind, Tokens, conversation
from fairlane.quotas.responses import KeptResponses, TenantSeals
from fairlane.store.errors import STORE_ERRORS

PATH = "/v1/responses"
ONE_PATH = PATH + "/{response_id}"
ITEMS_PATH = ONE_PATH + "/input_items"
COMPACT_PATH = PATH + "/compact"
# Contained in every body that has a summary.
COMPACTION = b"compaction"
PARAM = "previous_response_id"
_NAME = PARAM.encode()
# A conversation with more items is encoded in a thread, so that the event loop can serve streams meanwhile.
_MANY_ITEMS = 200


def _prompts(text: TextModel, request: ResponseRequest) -> list[Tokens]:
    try:
        return conversation(text, request)
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


class Respond(Generate[ResponseRequest]):
    """The endpoint `POST /v1/responses`."""

    def __init__(
        self,
        parts: Parts,
        kept: KeptResponses,
        seals: TenantSeals,
        *,
        kind: Kind[ResponseRequest] = RESPONSE,
        may_store: bool = True,
    ) -> None:
        super().__init__(kind, parts)
        self._parse: Callable[..., ResponseRequest] = partial(parse_response, may_store=may_store)
        self._kept = kept
        self._seals = seals

    async def _kind_of(self, body: bytes, caller: Caller) -> Kind[ResponseRequest]:
        """Return the kind with the stored data that the body refers to. Raises StoreUnavailable."""
        known = await self._known(body, caller)
        carried_bytes = len(known.get("previous", b""))
        return replace(self._kind, parse=partial(self._parse, **known), carried_bytes=carried_bytes)

    async def _known(self, body: bytes, caller: Caller) -> dict[str, Any]:
        known: dict[str, Any] = {}
        if _NAME in body:
            room = self._parts.bounds.room
            previous_id = await room.run(caller.tenant_id, len(body), partial(_previous_id, body))
            if previous_id is not None:
                known["previous"] = await self._previous(caller, previous_id)
        if COMPACTION in body or COMPACTION in known.get("previous", b""):
            known["opens"] = (await self._seals.of(caller.root, caller.account)).open
        return known

    async def _previous(self, caller: Caller, response_id: str) -> bytes:
        previous = await self._kept.read(caller.root, caller.account, response_id)
        if previous is None:
            raise ApiError("There is no stored response with this id.", "not_found", PARAM)
        return previous

    async def _finished(self, answer: AnswerBuilder, caller: Caller) -> None:
        assert isinstance(answer, ResponseAnswer)  # noqa: S101 - as the kind says
        if answer.request.store and not await self._keep(answer, caller):
            answer.mark_unstored()

    async def _keep(self, answer: ResponseAnswer, caller: Caller) -> bool:
        try:
            is_large = len(answer.request.items) > _MANY_ITEMS
            content = await asyncio.to_thread(kept_content, answer) if is_large else kept_content(answer)
            return await self._kept.keep(caller.root, caller.account, answer.id, content)
        except STORE_ERRORS:
            return False


class Compact(Respond):
    """The endpoint `POST /v1/responses/compact`."""

    def __init__(self, parts: Parts, kept: KeptResponses, seals: TenantSeals) -> None:
        super().__init__(parts, kept, seals, kind=COMPACT)
        self._parse = parse_compaction

    async def _known(self, body: bytes, caller: Caller) -> dict[str, Any]:
        seal = await self._seals.of(caller.root, caller.account)
        return {**await super()._known(body, caller), "close": seal.close, "opens": seal.open}


def kept_content(answer: ResponseAnswer) -> bytes:
    """Encode a finished response with its input, as it is stored."""
    items = [item.as_json() for item in answer.request.items]
    return msgspec.json.encode(KeptResponse(answer.ended(), items))


def _previous_id(body: bytes) -> str | None:
    found = scalars(body, [PARAM]).get(PARAM)
    return found if isinstance(found, str) and found and found.isprintable() else None


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
        _asked(ResponseQuery, context)
        found = await self._found(context)
        await send_json(context.send, found.response, [])

    async def list_items(self, context: RequestContext) -> None:
        query = _asked(ItemsQuery, context)
        items = (await self._found(context)).items
        if query.order == "desc":
            items = items[::-1]
        if query.after is not None:
            ids = [item["id"] for item in items]
            if query.after not in ids:
                raise invalid("after", "`after` is not an item of the response.")
            items = items[ids.index(query.after) + 1 :]
        await send_json(context.send, page(items, query.limit), [])

    async def forget(self, context: RequestContext) -> None:
        caller = context.caller
        response_id = context.path_params["response_id"]
        if not await self.kept.forget(caller.root, caller.account, response_id):
            raise not_found("response")
        await send_json(context.send, {"id": response_id, "object": "response", "deleted": True}, [])

    async def _found(self, context: RequestContext) -> KeptResponse:
        caller = context.caller
        content = await self.kept.read(caller.root, caller.account, context.path_params["response_id"])
        if content is None:
            raise not_found("response")
        return await asyncio.to_thread(read_kept, content) if len(content) > LARGE_BODY_BYTES else read_kept(content)


def _asked(kind: type[Query], context: RequestContext) -> Query:
    return checked_fields(kind, {}, dict(QueryParams(context.scope["query_string"])))
