"""One batch: what was asked for, how far it is, and how it is shown.

    validating ──> in_progress ──> finalizing ──> completed | expired | cancelled
         │              │
         └─> failed     └─ cancelling: asked to end, and not ended yet

`failed` is a batch whose file cannot be read at all; a line that fails does so alone.
"""

import hashlib
import secrets
from typing import Literal

import msgspec

from fairlane.quotas import keyspace

Ending = Literal["completed", "expired", "cancelled"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OPEN: frozenset[Status] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class BatchFault(msgspec.Struct, frozen=True):
    """Why a file cannot be read at all."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """As it is kept. Times are epoch seconds."""

    id: str
    tenant: str
    incarnation: str = ""
    """Of the tenant."""
    key_id: str
    """Of the API key that made it, whose limits and scopes its lines keep to."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_expires_s: int
    metadata: dict[str, str] | None = None
    status: Status = "validating"
    ends_as: Ending | None = None
    """From finalizing on."""
    faults: tuple[BatchFault, ...] = ()
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    """Lines."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    traceparent: str = ""
    """Of the request that made it, which its lines' traces name; empty: that one was not traced."""

    @property
    def account(self) -> str:
        """The tenant's, under which the store lists it."""
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def once_until_ms(self) -> int:
        """How long the store knows what was charged for its lines."""
        return (self.expires_at + 3_600) * 1_000

    def line_name(self, place: int) -> str:
        """What all runs of one line have in common: the store charges them once."""
        return f"{self.id}:{place}"

    def status_now(self, cancelling_ms: int | None) -> Status:
        """Its status. `cancelling_ms`: since when it was asked to end, where its owner has not said so."""
        is_asked = cancelling_ms is not None and self.status in ("validating", "in_progress")
        return "cancelling" if is_asked else self.status

    def shown(self, cancelling_ms: int | None = None) -> dict[str, object]:
        """As OpenAI's API has it. `cancelling_ms`: as above."""
        status, cancelling_at = self.status_now(cancelling_ms), self.cancelling_at
        if status == "cancelling" and cancelling_ms is not None:
            cancelling_at = cancelling_ms // 1_000
        faults = [msgspec.to_builtins(fault) for fault in self.faults]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": faults} if faults else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + self.output_tokens,
            },
            "metadata": self.metadata,
        }


def new_id() -> str:
    """Return the id of a new batch; nothing in it comes from a caller."""
    return f"batch_{secrets.token_hex(12)}"


def keyed_id(caller: bytes, key: bytes, day: int) -> str:
    """Return the id of the batch that a caller's idempotency key stands for. `day`: when it was made, in days since
    1970 by UTC."""
    parts = (caller, key, b"%d" % day)
    return f"batch_{hashlib.sha256(b'|'.join([hashlib.sha256(part).digest() for part in parts])).hexdigest()[:24]}"


class Progress(msgspec.Struct, kw_only=True):
    """Which lines have ended, and where their answers stand: written whole with each step, so that a store which has
    lost the last of it hears all of it again."""

    done: bytearray
    """A bit for each line, by its place."""
    segments: dict[str, int] = {}
    """By run: how many segments of answers its owner has put into the storage (results.py)."""

    @classmethod
    def of(cls, lines: int) -> "Progress":
        return cls(done=bytearray(-(-lines // 8)))

    def is_done(self, place: int) -> bool:
        return bool(self.done[place // 8] >> (place % 8) & 1)

    def mark(self, place: int) -> None:
        self.done[place // 8] |= 1 << (place % 8)
