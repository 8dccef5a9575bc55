"""The conversation of a response: its input, with the stored items that it continues or refers to."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.openai.response_items import (
    FOREIGN_SUMMARY,
    AnyCall,
    Close,
    CompactionItem,
    GivenItem,
    Item,
    Json,
    ListedItem,
    Open,
    OutputItem,
    ReasoningItem,
    ReferenceItem,
    Summary,
    read_items,
)
from fairlane.gateway.errors import ApiError, invalid


class KeptResponse(Redacted, frozen=True):
    """A stored response with its input: enough to show it and to continue from it."""

    response: Json
    items: list[Json]

    def whole(self) -> list[Json]:
        return [*self.items, *self.response["output"]]


read_kept = msgspec.json.Decoder(KeptResponse).decode


class KeptConversation(Redacted, frozen=True):
    """A stored conversation."""

    id: str
    created_at: int
    items: list[Json]
    metadata: dict[str, str]

    def shown(self) -> Json:
        return {**self.reference(), "object": "conversation", "created_at": self.created_at, "metadata": self.metadata}

    def reference(self) -> Json:
        return {"id": self.id}

    def extended(self, items: Sequence[Json]) -> "KeptConversation":
        """Return the conversation with more items, without those that it already has."""
        known = {item["id"] for item in self.items}
        return replace(self, items=[*self.items, *[item for item in items if item["id"] not in known]])


read_conversation = msgspec.json.Decoder(KeptConversation).decode


class Stored(Redacted, frozen=True):
    """The stored data that a body refers to."""

    # The response of `previous_response_id`.
    previous: bytes | None = None
    conversation: KeptConversation | None = None
    # Items by id, for references to them.
    items: Mapping[str, Json] = {}
    # The tenant's seal, if there is something to open.
    opens: Open | None = None
    closes: Close | None = None


NOTHING_STORED = Stored()


def conversation(
    given: Sequence[ListedItem], previous_id: str | None, stored: Stored, conversation_id: str | None = None
) -> list[Item]:
    """Return all items of a conversation. `previous_id`, `conversation_id`: what it continues. Raises ApiError."""
    if previous_id is not None and conversation_id is not None:
        raise invalid("conversation", "`conversation` and `previous_response_id` are both given.")
    for name, is_named, found in (
        ("previous_response_id", previous_id is not None, stored.previous),
        ("conversation", conversation_id is not None, stored.conversation),
    ):
        if is_named != (found is not None):
            raise invalid(name, f"`{name}` must be written without escapes.")
    earlier, new = _earlier(stored), list(_resolved(given, stored.items))
    if previous_id is not None or conversation_id is not None:
        _check_outputs(earlier, new)
    return [_opened(item, stored.opens) for item in (*earlier, *new)]


def _check_outputs(earlier: Sequence[GivenItem], new: Sequence[GivenItem]) -> None:
    """Raise ApiError for the output of a call that is neither stored nor sent: the conversation is another one."""
    called = {item.call_id for item in (*earlier, *new) if isinstance(item, AnyCall)}
    for index, item in enumerate(new):
        if isinstance(item, OutputItem) and item.call_id not in called:
            message = f"No tool call found for function call output with call_id {item.call_id} (`input.[{index}]`)."
            raise invalid("input", message)


def _resolved(given: Sequence[ListedItem], known: Mapping[str, Json]) -> Iterator[GivenItem]:
    """Yield the items, and for a reference the stored item."""
    for index, item in enumerate(given):
        if not isinstance(item, ReferenceItem):
            yield item
        elif item.id in known:
            yield from _readable([known[item.id]], "input")
        else:
            raise ApiError(f"`input.[{index}]` refers to an item that is not stored.", "not_found", "input")


def _opened(item: GivenItem, opens: Open | None) -> Item:
    if isinstance(item, ReasoningItem):
        return item if opens is None else item.opened(opens)
    if not isinstance(item, CompactionItem):
        return item
    text = FOREIGN_SUMMARY if item.is_foreign else None if opens is None else item.summary(opens)
    if text is None:
        raise invalid("input", "`input` contains a compaction of another tenant, or one that was changed.")
    return Summary(item, text)


def _earlier(stored: Stored) -> list[GivenItem]:
    if stored.conversation is not None:
        return _readable(stored.conversation.items, "conversation")
    return [] if stored.previous is None else _readable(read_kept(stored.previous).whole(), "previous_response_id")


def _readable(kept: list[Json], param: str) -> list[GivenItem]:
    try:
        return read_items(kept)
    except ValidationError:  # such as a call of an earlier version
        refused = invalid(param, "What is stored contains items that cannot be sent to a model again.")
    raise refused
