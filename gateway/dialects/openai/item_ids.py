"""Ids of responses, conversations and their items.

An item's id contains that of its response or conversation, so that a reference finds the item without an index."""

import re
import secrets
from collections.abc import Callable

_ID_BYTES = 24
# Prefixes of the ids of responses and conversations.
RESPONSE, CONVERSATION = "resp_", "conv_"
_OF_ITEM = re.compile(rf"[a-z]{{1,8}}_([0-9a-f]{{{2 * _ID_BYTES}}})[0-9a-f]{{4,16}}")
# Makes an id from a prefix.
NewId = Callable[[str], str]


def new_id(prefix: str) -> str:
    """Return an unguessable id in OpenAI's form."""
    return f"{prefix}_{secrets.token_hex(_ID_BYTES)}"


class ItemIds:
    """Makes the ids of the items of one response or conversation."""

    def __init__(self, stored_id: str) -> None:
        self._secret = stored_id.rpartition("_")[2]
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._secret}{self._count:04x}"

    def drawn(self, prefix: str) -> str:
        """Return a random id, for items that are added in several calls."""
        return f"{prefix}_{self._secret}{secrets.token_hex(8)}"


def is_response(stored_id: str) -> bool:
    """Return whether an id can be that of a response; those of conversations are stored alongside."""
    return stored_id.startswith(RESPONSE)


def stored_with(item_id: str) -> tuple[str, str] | None:
    """Return the ids of the response and the conversation in one of which an item got its id; None if it was made
    elsewhere."""
    found = _OF_ITEM.fullmatch(item_id)
    return None if found is None else (RESPONSE + found[1], CONVERSATION + found[1])
