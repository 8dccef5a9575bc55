"""`/v1/conversations`: stored conversations, to which responses are added. They are kept as long as responses are."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.api.files import page
from fairlane.gateway.api.responses import ItemsQuery, items_page, read_items_query
from fairlane.gateway.api.stored_input import StoredInput, decoded
from fairlane.gateway.dialects.openai.batches import MAX_METADATA, MAX_METADATA_KEY, ItemPage
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, NoneIfNoItems
from fairlane.gateway.dialects.openai.item_ids import CONVERSATION, ItemIds, new_id
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.response_conversation import KeptConversation, read_conversation
from fairlane.gateway.dialects.openai.response_items import GivenItem, Items, Json, ReferenceItem
from fairlane.gateway.errors import ApiError, invalid, not_found
from fairlane.gateway.http.sse import Headers, send_json
from fairlane.gateway.pipeline.context import Bounds, Endpoint, RequestContext
from fairlane.gateway.pipeline.prepare import ignored_header

PATH = "/v1/conversations"
ONE_PATH = PATH + "/{conversation}"
ITEMS_PATH = ONE_PATH + "/items"
ITEM_PATH = ITEMS_PATH + "/{item}"
Body = TypeVar("Body", bound=Fields)


Metadata = Annotated[dict[Annotated[Hint, Field(max_length=MAX_METADATA_KEY)], Hint], Field(max_length=MAX_METADATA)]


class ConversationBody(Fields):
    """The body of `POST /v1/conversations`."""

    items: Annotated[Items | None, NoneIfNoItems] = None
    metadata: Metadata | None = None


class ConversationChange(Fields):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None = None


class ConversationItems(Fields):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[Items | None, NoneIfNoItems]


def documents(items: Items | None, conversation_id: str) -> list[Json]:
    """Return items as they are stored. Raises ApiError for a reference."""
    for index, item in enumerate(items or ()):
        if isinstance(item, ReferenceItem):
            raise invalid(f"items.[{index}]", "A conversation contains items, not references to them.")
    return [item.as_json(ItemIds(conversation_id).drawn) for item in items or () if not isinstance(item, ReferenceItem)]


class ConversationObject(TypedDict):
    """A stored conversation."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["conversation"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    metadata: Annotated[dict[str, str], about("For the caller's own use; it has no effect")]


class DeletedConversation(TypedDict):
    """A deleted conversation."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["conversation.deleted"], about("Type of this object")]
    deleted: Annotated[bool, about("Always true")]


class ConversationItemList(ItemPage):
    """Items of a conversation: messages, reasoning, calls and their results."""

    data: Annotated[list[GivenItem], about("The items")]


@dataclass(eq=False)
class Conversations:
    """The endpoints for conversations."""

    stored: StoredInput
    bounds: Bounds
    # Returns the rules by which a body is read.
    reading: Callable[[RequestContext], Reading]

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        return [
            ("POST", PATH, self.create),
            ("GET", ONE_PATH, self.show),
            ("POST", ONE_PATH, self.update),
            ("DELETE", ONE_PATH, self.delete),
            ("POST", ITEMS_PATH, self.add_items),
            ("GET", ITEMS_PATH, self.list_items),
            ("GET", ITEM_PATH, self.show_item),
            ("DELETE", ITEM_PATH, self.delete_item),
        ]

    async def create(self, context: RequestContext) -> None:
        asked, headers = await self._read(context, ConversationBody)
        caller, conversation_id = context.caller, new_id(CONVERSATION.removesuffix("_"))
        made = KeptConversation(
            conversation_id, int(time.time()), documents(asked.items, conversation_id), asked.metadata or {}
        )
        content = msgspec.json.encode(made)
        if not await self.stored.kept.keep(caller.root, caller.account, conversation_id, content):
            raise _too_large()
        await send_json(context.send, made.shown(), headers)

    async def show(self, context: RequestContext) -> None:
        await send_json(context.send, (await self._found(context)).shown(), [])

    async def update(self, context: RequestContext) -> None:
        asked, headers = await self._read(context, ConversationChange)
        changed = await self._change(context, lambda known: replace(known, metadata=asked.metadata or {}))
        await send_json(context.send, changed.shown(), headers)

    async def delete(self, context: RequestContext) -> None:
        caller, conversation_id = context.caller, context.path_params["conversation"]
        is_one = conversation_id.startswith(CONVERSATION)
        if not (is_one and await self.stored.kept.forget(caller.root, caller.account, conversation_id)):
            raise not_found("conversation")
        document = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        await send_json(context.send, document, [])

    async def add_items(self, context: RequestContext) -> None:
        asked, headers = await self._read(context, ConversationItems)
        items = documents(asked.items, context.path_params["conversation"])
        await self._change(context, lambda known: known.extended(items))
        await send_json(context.send, page(items, len(items), no_id=""), headers)

    async def list_items(self, context: RequestContext) -> None:
        query = read_items_query(ItemsQuery, context)
        await send_json(context.send, items_page((await self._found(context)).items, query), [])

    async def show_item(self, context: RequestContext) -> None:
        for item in (await self._found(context)).items:
            if item["id"] == context.path_params["item"]:
                await send_json(context.send, item, [])
                return
        raise not_found("item")

    async def delete_item(self, context: RequestContext) -> None:
        def without(known: KeptConversation) -> KeptConversation:
            return replace(known, items=[item for item in known.items if item["id"] != context.path_params["item"]])

        if all(item["id"] != context.path_params["item"] for item in (await self._found(context)).items):
            raise not_found("item")
        await send_json(context.send, (await self._change(context, without)).shown(), [])

    async def _read(self, context: RequestContext, kind: type[Body]) -> tuple[Body, Headers]:
        room = self.bounds.room
        reading = self.reading(context)
        try:
            body = await context.read_body(max_bytes=room.most_bytes(1), timeout_s=self.bounds.body_timeout_s)
            parse = partial(checked, kind, {}, body or b"{}", reading)
            asked = await room.run(context.tenant, len(body), parse)
            return asked, ignored_header(reading.ignored)
        finally:
            context.exchange.release()

    async def _found(self, context: RequestContext) -> KeptConversation:
        content = await self.stored.conversation(context.caller, context.path_params["conversation"])
        return await decoded(read_conversation, content)

    async def _change(
        self, context: RequestContext, change: Callable[[KeptConversation], KeptConversation]
    ) -> KeptConversation:
        """Change a conversation, also if others change it at the same time, and return it."""
        caller, conversation_id = context.caller, context.path_params["conversation"]
        changed: KeptConversation | None = None

        def encoded(content: bytes) -> bytes:
            nonlocal changed
            changed = change(read_conversation(content))
            return msgspec.json.encode(changed)

        if not conversation_id.startswith(CONVERSATION):
            raise not_found("conversation")
        outcome = await self.stored.kept.change(caller.root, caller.account, conversation_id, encoded)
        if outcome == "full":
            raise _too_large()
        if outcome == "contended":
            message = "Too many calls change this conversation at the same time."
            raise ApiError(message, "concurrency_limit_exceeded", retry_after_s=1.0)
        if changed is None or outcome == "gone":
            raise not_found("conversation")
        return changed


def _too_large() -> ApiError:
    message = "The conversation is larger than what is kept, or this deployment keeps none."
    return ApiError(message, "request_exceeds_limit", "items")
