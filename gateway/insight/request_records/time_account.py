"""The account of a request's time: six parts that add up to the time from its arrival to the end of its response. Pure.

Instants are on the serving gateway's clock, in milliseconds since the arrival. A worker's durations are placed on it by
their start (the job was enqueued) or end (its event was received), and cut where they exceed the gateway's own times.

    network    before its jobs are enqueued, the first token's transfer from the worker, and after its last token
    queue      no step has started its prompt, including after a worker was lost
    prefill    from the step that started its prompt to its first token
    decode     from its first token to its last
    preempted  at least one choice is preempted
    paused     a choice waits for the request's own limits"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Literal, get_args

import msgspec

Part = Literal["queue", "prefill", "decode", "preempted", "paused", "network"]
# In the order of TimeParts.
_NOTHING: Mapping[Part, float] = dict.fromkeys(get_args(Part), 0.0)
_PRECEDENCE: tuple[Part, ...] = ("preempted", "paused", "queue", "prefill", "decode")
StallKind = Literal["preempted", "paused"]


class TimeParts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The six parts in milliseconds, rounded so that their sum is the rounded total."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    preempted: float = 0.0
    paused: float = 0.0
    network: float = 0.0

    @property
    def total(self) -> float:
        parts: tuple[float, ...] = msgspec.structs.astuple(self)
        return round(sum(parts), 1)

    def until(self, total_ms: float) -> "TimeParts":
        """Return the parts of a request that ended later than these, unobserved: the rest is `network`."""
        rest_ms = max(0.0, total_ms - self.total)
        return msgspec.structs.replace(self, network=round(self.network + rest_ms, 1))


class Start(msgspec.Struct, frozen=True, gc=False):
    """The first token under one lease."""

    received_ms: float
    # Time in the queue until the prompt was started; None: not reported by the worker.
    waited_ms: float | None = None
    # Time from there to the token, at the worker; None: not reported.
    prefill_ms: float | None = None
    # The previous token, from a worker that was lost or gave the job back; None: there was none.
    since_ms: float | None = None


class Stall(msgspec.Struct, frozen=True, gc=False):
    """A span in which a choice could not continue."""

    kind: StallKind
    from_ms: float
    until_ms: float


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of a request's time."""

    total_ms: float
    has_ended: bool
    queued_ms: float
    starts: Iterable[Start] = ()
    # Unordered; they may overlap.
    stalls: Iterable[Stall] = ()
    last_token_ms: float | None = None
    begun_after_ms: float | None = None


def account(timeline: Timeline) -> TimeParts:
    """Return the parts, which are never negative and always add up to the total."""
    total_ms = max(0.0, timeline.total_ms)
    walk = _walk(timeline, total_ms)
    stalls = [*timeline.stalls]
    if stalls:
        walk = _interrupted(walk, stalls, total_ms)
    spent = {**_NOTHING}
    for part, from_ms, until_ms in walk:
        spent[part] += until_ms - from_ms
    return _rounded(spent)


def _interrupted(
    walk: Iterable[tuple[Part, float, float]], stalls: Iterable[Stall], total_ms: float
) -> Iterator[tuple[Part, float, float]]:
    # (time, part, 1 at its start or -1 at its end); exactly one part of the walk is open at a time.
    events: list[tuple[float, Part, int]] = []
    for part, from_ms, until_ms in walk:
        events += ((from_ms, part, 1), (until_ms, part, -1))
    for stall in stalls:
        from_ms, until_ms = (min(max(0.0, at_ms), total_ms) for at_ms in (stall.from_ms, stall.until_ms))
        if from_ms < until_ms:
            events += ((from_ms, stall.kind, 1), (until_ms, stall.kind, -1))
    is_open: Counter[Part] = Counter()
    for (at_ms, part, change), (next_ms, _, _) in pairwise([*sorted(events), (total_ms, "network", 0)]):
        is_open[part] += change
        if next_ms > at_ms:
            yield next((part for part in _PRECEDENCE if is_open[part]), "network"), at_ms, next_ms


def _walk(timeline: Timeline, total_ms: float) -> Iterable[tuple[Part, float, float]]:
    walk: list[tuple[Part, float, float]] = []
    at_ms = 0.0
    for part, until_ms in _stations(timeline):
        if until_ms > total_ms:
            until_ms = total_ms
        if until_ms > at_ms:
            walk += ((part, at_ms, until_ms),)
            at_ms = until_ms
    walk += (("network", at_ms, total_ms),)
    return walk


def _stations(timeline: Timeline) -> list[tuple[Part, float]]:
    queued_ms, has_token = timeline.queued_ms, False
    stations: list[tuple[Part, float]] = [("network", queued_ms)]
    for start in timeline.starts:
        if start.since_ms is not None and has_token:
            stations += (("decode", start.since_ms),)
        has_token = True
        begun_ms = start.received_ms if start.waited_ms is None else min(queued_ms + start.waited_ms, start.received_ms)
        ready_ms = (
            start.received_ms if start.prefill_ms is None else min(begun_ms + start.prefill_ms, start.received_ms)
        )
        stations += (("queue", begun_ms), ("prefill", ready_ms), ("network", start.received_ms))
    if has_token:
        last_ms = timeline.last_token_ms
        stations += (("decode", timeline.total_ms if last_ms is None or not timeline.has_ended else last_ms),)
    elif timeline.begun_after_ms is None:
        stations += (("queue", timeline.total_ms),)
    else:
        stations += (("queue", queued_ms + timeline.begun_after_ms), ("prefill", timeline.total_ms))
    return stations


def _rounded(spent: Mapping[Part, float]) -> TimeParts:
    so_far_ms, before, parts = 0.0, 0, list[float]()
    for part in _NOTHING:
        so_far_ms += spent[part]
        tenths = int(so_far_ms * 10.0 + 0.5)
        parts += ((tenths - before) / 10.0,)
        before = tenths
    return TimeParts(*parts)
