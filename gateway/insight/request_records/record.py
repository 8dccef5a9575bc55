"""One request's record as stored. It is bounded, and contains no prompt or completion text.

Durations are milliseconds; `at_ms` counts from the request's arrival. A new field needs a default, since gateways of
two releases read each other's records."""

from typing import Literal, get_args

import msgspec

from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.quotas import keyspace
from fairlane.quotas.store import Charge

EventKind = Literal["queued", "position", "taken", "first_token", "preempted", "paused", "resumed", "moved", "ended"]
# `lost`: its gateway is silent, and the request has not been settled yet.
State = Literal["queued", "running", "preempted", "paused", "lost", "ended"]
STATES: tuple[State, ...] = get_args(State)
# A record keeps at most this many; then the first half and the most recent ones.
MOST_EVENTS, MOST_PREEMPTIONS = 48, 24
MOST_BYTES = 6_144
LONGEST_TEXT = 300


class RecordedEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One event. `figure` is the place of `queued` and `position`, and the stall in ms of `resumed` and `moved`."""

    at_ms: float
    kind: EventKind
    figure: float | None = None


class RecordedPreemption(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One preemption of a choice: its cause and its cost."""

    at_ms: float
    choice: int = 0
    mode: str
    blocks: int = 0
    bytes: int = 0
    predicted_ms: float = 0.0
    # None: it has not resumed.
    stall_ms: float | None = None
    # None: its worker did not report the cause.
    resource: str | None = None
    lane: str = ""
    tenant: str = ""
    request: str = ""


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything that is stored about a request."""

    id: str
    request_id: str
    tenant: str
    incarnation: str = ""
    key: str
    # Unix seconds.
    arrived_s: float
    endpoint: str = ""
    model: str = ""
    lane: str = ""
    gateway: str = ""
    trace_id: str = ""
    # The response's id, if it does not contain the record's id.
    answer_id: str = ""
    state: State = "queued"
    outcome: str | None = None
    code: str | None = None
    message: str = ""
    limit: str = ""
    # None: it was refused before admission decided.
    guaranteed: bool | None = None
    deadline_ms: float | None = None
    ttft_deadline_ms: float | None = None
    ttft_target_ms: float | None = None
    expected_ttft_ms: float | None = None
    time: TimeParts = TimeParts()
    # The queue's part of `time`, once it is final.
    queue_ms: float | None = None
    taken_ms: float | None = None
    ttft_ms: float | None = None
    last_token_ms: float | None = None
    total_ms: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    choices: int = 1
    # Fields of its body that had no effect.
    ignored: tuple[str, ...] = ()
    # Prompt, cached and output tokens; None: not settled.
    charges: tuple[int, int, int] | None = None
    # Cost of `charges` in nano-units of the currency; None: settled by a gateway that did not know its prices.
    spend: int | None = None
    gpu_us: int = 0
    kv_block_ms: int = 0
    preempted: int = 0
    # Sum over all completed preemptions.
    stalled_ms: float = 0.0
    paused: int = 0
    paused_ms: float = 0.0
    prefill_steps: int = 0
    prefill_tokens: int = 0
    decode_steps: int = 0
    waits_ms: dict[str, float] = {}
    workers: list[str] = []
    takings: int = 0
    events: list[RecordedEvent] = []
    preemptions: list[RecordedPreemption] = []
    left_out: int = 0

    @property
    def account(self) -> str:
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def ended_ms(self) -> int:
        """Time of its end, in epoch ms; 0 while it runs."""
        return 0 if self.total_ms is None else round(self.arrived_s * 1e3 + self.total_ms)

    def add(self, at_ms: float, kind: EventKind, figure: float | None = None) -> float:
        at_ms = round(at_ms, 1)
        self.events += [RecordedEvent(at_ms, kind, figure)]
        if len(self.events) > MOST_EVENTS:
            del self.events[MOST_EVENTS // 2]
            self.left_out += 1
        return at_ms

    def charge(self, charge: Charge) -> None:
        self.outcome, self.output_tokens = charge.outcome, max(self.output_tokens, charge.output_tokens)
        self.charges = charge.prompt_tokens, charge.cached_tokens, charge.output_tokens
        self.gpu_us, self.kv_block_ms = charge.gpu_us, charge.kv_block_ms

    def add_preemption(self, preemption: RecordedPreemption) -> None:
        self.preempted += 1
        if len(self.preemptions) >= MOST_PREEMPTIONS:
            del self.preemptions[MOST_PREEMPTIONS // 2]
            self.left_out += 1
        self.preemptions.append(preemption)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestRecord)


def encode(record: RequestRecord) -> bytes:
    """Encode a record. If it is too long, events and preemptions are dropped from the record itself."""
    encoded = _encoder.encode(record)
    while len(encoded) > MOST_BYTES and (record.events or record.preemptions):
        longest = record.events if len(record.events) >= 2 * len(record.preemptions) else record.preemptions
        half = max(1, len(longest) // 2)
        del longest[-half:]
        record.left_out += half
        encoded = _encoder.encode(record)
    return encoded


def decode(stored: bytes) -> RequestRecord | None:
    """Decode a stored record; None: it is invalid."""
    try:
        return _decoder.decode(stored)
    except msgspec.DecodeError:
        return None
