"""One request's record, as it is stored: who asked for what, what it waited for, what happened to it, how it ended.

Bounded: events and preemptions beyond the first and last few are counted, not kept. It holds figures, ids and names
alone; nothing of a prompt or an answer is ever in it. Durations are milliseconds; those called `at_ms` count from the
request's arrival. Fields that are added need a default: gateways of two releases read each other's.
"""

from typing import Literal

import msgspec

from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.quotas import keyspace

State = Literal["queued", "running", "preempted", "paused", "lost", "ended"]
"""`lost`: its gateway has gone silent, and nobody has settled it yet."""
STATES: tuple[State, ...] = ("queued", "running", "preempted", "paused", "lost", "ended")
MOST_EVENTS, MOST_PREEMPTIONS = 48, 24
"""That a record keeps; of more, the first half and the last ones."""
MOST_BYTES = 6_144
"""Of one record as it is stored."""
LONGEST_TEXT = 300
"""Of an error's message."""


class RecordedEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Something that happened: `queued` and `position` (its place), `taken`, `first_token`, `preempted`, `paused`,
    `resumed` (after how many ms), `ended`."""

    at_ms: float
    kind: str
    figure: float | None = None


class RecordedPreemption(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One choice that had to yield, to whom, and what that cost."""

    at_ms: float
    choice: int = 0
    mode: str
    blocks: int = 0
    bytes: int = 0
    predicted_ms: float = 0.0
    stall_ms: float | None = None
    """None: it has not come back."""
    resource: str | None = None
    """None: its worker did not say for whom."""
    lane: str = ""
    tenant: str = ""
    request: str = ""
    """Id of the request that it yielded to."""


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All that is kept of a request."""

    id: str
    request_id: str
    tenant: str
    incarnation: str = ""
    """Of the tenant."""
    key: str
    arrived_s: float
    """Unix seconds."""
    endpoint: str = ""
    model: str = ""
    lane: str = ""
    gateway: str = ""
    trace_id: str = ""
    """Of its trace; empty: nobody keeps one."""
    answer_id: str = ""
    """Of its answer, where that does not hold the record's id."""
    state: State = "queued"
    outcome: str | None = None
    code: str | None = None
    message: str = ""
    """Of the error."""
    limit: str = ""
    """That refused or cut it."""
    guaranteed: bool | None = None
    """None: it was refused before anything was promised."""
    deadline_ms: float | None = None
    ttft_deadline_ms: float | None = None
    ttft_target_ms: float | None = None
    expected_ttft_ms: float | None = None
    """What admission reckoned with."""
    time: TimeParts | None = None
    """Where its time went so far; None: a gateway of an earlier release wrote the record."""
    queue_ms: float | None = None
    """The account's part of the queue, once it is known that the queue is over."""
    taken_ms: float | None = None
    """When the worker that ended it took it from the queue."""
    ttft_ms: float | None = None
    last_token_ms: float | None = None
    total_ms: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    """That were published."""
    choices: int = 1
    charges: tuple[int, int, int] | None = None
    """Tokens of prompt, of that from a cache, and of output; None: nothing is settled yet."""
    spend: int | None = None
    """What these cost, in nano-units of the currency; None: a gateway settled it that did not know its prices."""
    gpu_us: int = 0
    kv_block_ms: int = 0
    preempted: int = 0
    stalled_ms: float = 0.0
    """Of all preemptions that are over."""
    paused: int = 0
    paused_ms: float = 0.0
    prefill_steps: int = 0
    prefill_tokens: int = 0
    decode_steps: int = 0
    waits_ms: dict[str, float] = {}
    """At the worker, by the planner's reason."""
    workers: list[str] = []
    takings: int = 0
    """How often a worker took it from the queue."""
    events: list[RecordedEvent] = []
    preemptions: list[RecordedPreemption] = []
    left_out: int = 0
    """Events and preemptions that are not kept."""

    @property
    def account(self) -> str:
        """The tenant's, by which it finds the record."""
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def ended_ms(self) -> int:
        """When it ended, epoch ms; 0: it has not."""
        return 0 if self.total_ms is None else round(self.arrived_s * 1e3 + self.total_ms)

    def add(self, at_ms: float, kind: str, figure: float | None = None) -> None:
        """Note an event."""
        if len(self.events) >= MOST_EVENTS:
            del self.events[MOST_EVENTS // 2]
            self.left_out += 1
        self.events.append(RecordedEvent(round(at_ms, 1), kind, figure))

    def add_preemption(self, preemption: RecordedPreemption) -> None:
        """Note a preemption."""
        self.preempted += 1
        if len(self.preemptions) >= MOST_PREEMPTIONS:
            del self.preemptions[MOST_PREEMPTIONS // 2]
            self.left_out += 1
        self.preemptions.append(preemption)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestRecord)


def encode(record: RequestRecord) -> bytes:
    """As it is stored; what makes it too long is left out of it for good."""
    encoded = _encoder.encode(record)
    while len(encoded) > MOST_BYTES and (record.events or record.preemptions):
        longest = record.events if len(record.events) >= 2 * len(record.preemptions) else record.preemptions
        half = max(1, len(longest) // 2)
        del longest[-half:]
        record.left_out += half
        encoded = _encoder.encode(record)
    return encoded


def decode(stored: bytes) -> RequestRecord:
    """What was stored. Raises msgspec.DecodeError where it is none."""
    return _decoder.decode(stored)
