"""Images and sounds in prompts: how a model's engine shows them, where they stand, and what gateways ask workers.

A gateway holds the bytes of a request's media while the request lives, and sends them to workers over links, by their
digest. In a job's prompt an item is a run of one id that is outside every vocabulary and derived from its digest, so
that prompts with different items never look alike (as in SGLang's radix cache)."""

from typing import Literal

import msgspec

MediaKind = Literal["image", "audio"]

# The ids that stand for media begin here; vocabularies are smaller.
MEDIA_IDS = 2**30
DIGEST_BYTES = 32
# Bytes that a gateway sends of an item in one message, so that tokens do not wait long behind it.
MEDIA_PART_BYTES = 256 * 1024


class MediaForm(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of media stands in a model's prompts."""

    # Tokens before and after each item.
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    # Items precede the text of their message, wherever they stand in it.
    leads: bool = False


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """One item in a prompt."""

    kind: MediaKind
    # SHA-256 of its content.
    digest: bytes
    # Place of its first token in the prompt, and their number.
    offset: int
    length: int

    def __repr__(self) -> str:
        return f"MediaSpan({self.kind}, {self.length} tokens)"


class MeasureMedia(msgspec.Struct, frozen=True, kw_only=True, tag="measure_media"):
    """Fetch an item from its gateway, and report over the link how many tokens it becomes."""

    gateway_id: str
    gateway_address: str
    kind: MediaKind
    digest: bytes


def media_id(digest: bytes) -> int:
    """Return the token id that stands for an item."""
    return MEDIA_IDS + int.from_bytes(digest[:4], "big") % MEDIA_IDS
