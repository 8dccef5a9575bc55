"""Conversations on the wire: bodies as they are validated and documented by OpenAPI, and the objects of answers."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.batches import MAX_METADATA, MAX_METADATA_KEY, ListPage
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Lenient
from fairlane.gateway.dialects.openai.response_items import GivenItem, Items, Json, ReferenceItem
from fairlane.gateway.errors import invalid

Metadata = Lenient[
    Annotated[dict[Annotated[Hint, Field(max_length=MAX_METADATA_KEY)], Hint], Field(max_length=MAX_METADATA)]
]


class ConversationBody(Fields):
    """The body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata = None


class ConversationChange(Fields):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: Metadata = None


class ConversationItems(Fields):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Items


def documents(items: Items | None) -> list[Json]:
    """Return items as they are stored. Raises ApiError for a reference."""
    for index, item in enumerate(items or ()):
        if isinstance(item, ReferenceItem):
            raise invalid(f"items.[{index}]", "A conversation contains items, not references to them.")
    return [item.as_json() for item in items or () if not isinstance(item, ReferenceItem)]


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


class ConversationItemList(ListPage):
    """Items of a conversation: messages, reasoning, calls and their results."""

    data: Annotated[list[GivenItem], about("The items")]
