"""One batch: its parameters, its progress and its JSON form.

    validating ──> in_progress ──> finalizing ──> completed | expired | cancelled
         │              │                │
         └─> failed     └────────────────┴─ shown as cancelling once cancellation was requested

A batch is `failed` only if its whole file is unreadable or two lines share a `custom_id`; otherwise a failing line does
not fail its batch."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal

import msgspec

from fairlane.common.views import view_of
from fairlane.gateway.dialects.openai.batches import BatchObject, RequestCounts, Status
from fairlane.quotas import keyspace

Ending = Literal["completed", "expired", "cancelled"]
OPEN: frozenset[Status] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class BatchFault(msgspec.Struct, frozen=True):
    """A reason why an input file cannot be run."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as stored. Times are epoch seconds."""

    id: str
    tenant: str
    incarnation: str = ""
    # The API key that created the batch; its limits and scopes apply to the lines.
    key_id: str
    endpoint: str
    input_file_id: str
    # The file was made from a body.
    is_inline: bool = False
    completion_window: str
    created_at: int
    expires_at: int
    output_expires_s: int
    metadata: dict[str, str] | None = None
    status: Status = "validating"
    ends_as: Ending | None = None
    faults: tuple[BatchFault, ...] = ()
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    # Stored by earlier versions; the store has the time of the request for cancellation.
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    # Of the failed lines, those that the batch's end left without a response.
    unrun: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    # Trace context of the request that created the batch; empty: not traced.
    traceparent: str = ""

    @property
    def account(self) -> str:
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def once_until_ms(self) -> int:
        return (self.expires_at + 3_600) * 1_000

    def line_name(self, place: int) -> str:
        """Return the name that all runs of a line share, so that the store charges them once."""
        return f"{self.id}:{place}"


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """A batch with a cancellation request that its owner may not have saved yet."""

    batch: Batch
    cancelling_ms: int | None

    @property
    def status(self) -> Status:
        batch = self.batch
        is_asked = self.cancelling_ms is not None and batch.status in ("validating", "in_progress")
        is_ending = batch.status == "finalizing" and batch.ends_as == "cancelled"
        return "cancelling" if is_asked or is_ending else batch.status

    def shown(self) -> BatchObject:
        batch, status, cancelling_at = self.batch, self.status, self.batch.cancelling_at
        if self.cancelling_ms is not None:
            cancelling_at = self.cancelling_ms // 1_000
        faults = [msgspec.to_builtins(fault) for fault in batch.faults]
        return view_of(
            BatchObject,
            batch,
            object="batch",
            errors={"object": "list", "data": faults} if faults else None,
            status=status,
            cancelling_at=cancelling_at,
            request_counts=view_of(RequestCounts, batch),
            usage={
                "input_tokens": batch.prompt_tokens,
                "input_tokens_details": {"cached_tokens": batch.cached_tokens},
                "output_tokens": batch.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": batch.prompt_tokens + batch.output_tokens,
            },
        )


def new_id() -> str:
    """Return a random batch id."""
    return f"batch_{secrets.token_hex(12)}"


def keyed_id(caller: bytes, key: bytes, day: int) -> str:
    """Return the batch id for a caller's idempotency key. `day`: day of creation, in days since 1970 (UTC)."""
    parts = (caller, key, b"%d" % day)
    return f"batch_{hashlib.sha256(b'|'.join([hashlib.sha256(part).digest() for part in parts])).hexdigest()[:24]}"


class Progress(msgspec.Struct, kw_only=True):
    """The ended lines, and the number of segments with their responses; always stored as a whole."""

    done: bytearray
    # Segments that count, by the run that wrote them (results.py).
    segments: dict[str, int] = {}

    @classmethod
    def of(cls, lines: int) -> "Progress":
        return cls(done=bytearray(-(-lines // 8)))

    def is_done(self, place: int) -> bool:
        return bool(self.done[place // 8] >> (place % 8) & 1)

    def mark(self, place: int) -> None:
        self.done[place // 8] |= 1 << (place % 8)
