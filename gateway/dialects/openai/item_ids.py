"""Ids of responses and of their items.

An item's id contains its response's id, so that a reference to a stored item finds its response without an index."""

import re
import secrets
from collections.abc import Callable

_ID_BYTES = 24
# Prefixes of the ids of responses and conversations.
RESPONSE, CONVERSATION = "resp_", "conv_"
_OF_ITEM = re.compile(rf"[a-z]{{1,8}}_([0-9a-f]{{{2 * _ID_BYTES}}})[0-9a-f]{{4,6}}")
# Makes an id from a prefix.
NewId = Callable[[str], str]


def new_id(prefix: str) -> str:
    """Return an unguessable id in OpenAI's form."""
    return f"{prefix}_{secrets.token_hex(_ID_BYTES)}"


class ItemIds:
    """Makes the ids of one response's items."""

    def __init__(self, response_id: str) -> None:
        self._secret = response_id.rpartition("_")[2]
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._secret}{self._count:04x}"


def is_response(stored_id: str) -> bool:
    """Return whether an id can be that of a response; those of conversations are stored alongside."""
    return stored_id.startswith(RESPONSE)


def response_of(item_id: str) -> str | None:
    """Return the id of the response in which an item got its id; None for an id that was made elsewhere."""
    found = _OF_ITEM.fullmatch(item_id)
    return None if found is None else RESPONSE + found[1]
