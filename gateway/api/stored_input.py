"""The stored data that the body of a Responses call needs: an earlier response, items that it refers to, the seal."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fairlane.gateway.dialects.openai.item_ids import CONVERSATION, is_response, stored_with
from fairlane.gateway.dialects.openai.response_conversation import Stored, read_conversation, read_kept
from fairlane.gateway.dialects.openai.response_items import Json, is_reference
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES, raw_fields, read_object, scalar, scalars
from fairlane.gateway.identity.auth import Caller
from fairlane.quotas.responses import KeptResponses, TenantSeals

# Contained in every body that has sealed content: a summary, or reasoning.
_SEALED = (b"compaction", b"encrypted_content")
_PREVIOUS = "previous_response_id"
# A reference has a type, or is an object that ends with an id. The literal beginning makes the search fast, which runs
# on the event loop.
_REFERENCE = b'"item_reference"'
_LAST_ID = re.compile(rb'"id"\s*:\s*"[^"\\]*"\s*(?:,\s*"type"\s*:\s*null\s*)?\}')
T = TypeVar("T")
# Stored responses that the references of one body may be read from.
MOST_READ = 32


@dataclass(frozen=True, slots=True)
class StoredInput:
    """Finds what bodies refer to. Its calls may raise StoreUnavailable."""

    kept: KeptResponses
    seals: TenantSeals
    room: BodyRoom

    async def of(self, body: bytes, caller: Caller, *, seals: bool = False) -> tuple[Stored, int]:
        """Return the stored data of a body, and its size. `seals`: the seal is needed in any case."""
        previous, known, items, size = None, None, dict[str, Json](), 0
        if _PREVIOUS.encode() in body:
            previous_id = await self.room.run(caller.tenant_id, len(body), partial(_previous_id, body))
            if previous_id is not None:
                previous = await self.previous(caller, previous_id)
                size += len(previous)
        if b'"conversation"' in body:
            conversation_id = await self.room.run(caller.tenant_id, len(body), partial(_conversation_id, body))
            if conversation_id is not None:
                content = await self.conversation(caller, conversation_id)
                known = await decoded(read_conversation, content)
                size += len(content)
                seals = seals or any(mark in content for mark in _SEALED)
        if _REFERENCE in body or _LAST_ID.search(body):
            ids = partial(_referenced, body, self.room.most_token_ids(1))
            items, read_bytes = await self._items(caller, await self.room.run(caller.tenant_id, len(body), ids))
            size += read_bytes
        if not (seals or items or any(mark in text for mark in _SEALED for text in (body, previous or b""))):
            return Stored(previous, known, items), size
        seal = await self.seals.of(caller.root, caller.account)
        return Stored(previous, known, items, seal.open, seal.close), size

    async def previous(self, caller: Caller, response_id: str) -> bytes:
        """Return a stored response. Raises ApiError if there is none."""
        previous = await self.kept.read(caller.root, caller.account, response_id) if is_response(response_id) else None
        if previous is None:
            raise ApiError("There is no stored response with this id.", "not_found", _PREVIOUS)
        return previous

    async def conversation(self, caller: Caller, conversation_id: str) -> bytes:
        """Return a stored conversation. Raises ApiError `not_found`."""
        is_one = conversation_id.startswith(CONVERSATION)
        found = await self.kept.read(caller.root, caller.account, conversation_id) if is_one else None
        if found is None:
            raise ApiError("There is no stored conversation with this id.", "not_found", "conversation")
        return found

    async def _items(self, caller: Caller, ids: Sequence[str]) -> tuple[dict[str, Json], int]:
        """Return those items of stored responses and conversations that have one of the ids, and the bytes read.

        A conversation's last response contains the earlier items too, so most bodies need one read."""
        wanted, found, read, size = set(ids), dict[str, Json](), set[str](), 0
        for item_id in reversed(ids):
            places = None if item_id in found else stored_with(item_id)
            if places is None or places[0] in read:
                continue
            if len(read) >= MOST_READ:
                message = (
                    f"`input` refers to items of more than {MOST_READ} stored responses: send the items themselves."
                )
                raise invalid("input", message)
            read.add(places[0])
            for stored_id, items_of in zip(places, (_items_of_response, _items_of_conversation), strict=True):
                content = await self.kept.read(caller.root, caller.account, stored_id)
                if content is not None:
                    size += len(content)
                    found |= {item["id"]: item for item in await decoded(items_of, content) if item["id"] in wanted}
                    break
        return found, size


def _items_of_response(content: bytes) -> list[Json]:
    return read_kept(content).whole()


def _items_of_conversation(content: bytes) -> list[Json]:
    return read_conversation(content).items


async def decoded(read: Callable[[bytes], T], content: bytes) -> T:
    """Decode stored content, in a thread if it is large."""
    return await asyncio.to_thread(read, content) if len(content) > LARGE_BODY_BYTES else read(content)


def _conversation_id(body: bytes) -> str | None:
    try:
        raw = raw_fields(body).get("conversation", b"")
        found = scalar(raw_fields(raw).get("id", b"") if raw.startswith(b"{") else raw)
    except ValueError:
        return None
    return found if isinstance(found, str) and found else None


def _previous_id(body: bytes) -> str | None:
    found = scalars(body, [_PREVIOUS]).get(_PREVIOUS)
    return found if isinstance(found, str) and found and found.isprintable() else None


def _referenced(body: bytes, token_ids: int) -> list[str]:
    """Return the ids of all references in a body's `input`. Raises ApiError for an invalid body."""
    given = read_object(body, token_ids=token_ids).get("input")
    references = (
        [item for item in given if isinstance(item, dict) and is_reference(item)] if isinstance(given, list) else []
    )
    return [item["id"] for item in references if isinstance(item.get("id"), str)]
