"""Where a request's time went: six parts that add up to the time from its arrival to the end of its answer. Pure.

All instants are of one clock, the event loop's of the gateway that serves the request, in milliseconds since its
arrival. What a worker measured enters as a duration alone: how long the job waited until its prompt was begun, how
long the prompt took, how long a choice was away. A duration is laid on the gateway's clock where it began (the job's
place in the queue) or ended (the gateway heard of it), and is cut where it would reach beyond what the gateway saw.

At each instant the request is in exactly one part:

    network    it is received and admitted, until its jobs stand in the queue; its first token is on its way from the
               worker; and after its last token, until its answer is done
    queue      no step has begun its prompt: no worker has it, or its worker has no room; also after a worker was lost
    prefill    from the step that began its prompt to its first token
    decode     from its first token to its last
    preempted  a choice had to yield to other work, whatever else the request does
    paused     a choice waits for the request's own limits
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

Part = Literal["queue", "prefill", "decode", "preempted", "paused", "network"]
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
        """Their sum."""
        parts: tuple[float, ...] = msgspec.structs.astuple(self)
        return round(sum(parts), 1)

    def until(self, total_ms: float) -> "TimeParts":
        """The same of a request that ended later than these tell, while nobody watched: the rest is `network`."""
        rest_ms = max(0.0, total_ms - self.total)
        return msgspec.structs.replace(self, network=round(self.network + rest_ms, 1))


@dataclass(frozen=True, slots=True)
class Start:
    """A worker began with the request's prompt and its first token under that lease came."""

    heard_ms: float
    """When the gateway heard of that token."""
    waited_ms: float | None = None
    """How long the job had been in the queue when its prompt was begun; None: its worker does not say."""
    prefill_ms: float | None = None
    """How long it took from there to the token, at the worker; None: as above."""
    since_ms: float | None = None
    """The latest token before, of a worker that was lost or gave the job back; None: there was none."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A choice that could not go on."""

    kind: StallKind
    from_ms: float
    until_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What is known of a request's time."""

    total_ms: float
    """Until its answer ended, or until now."""
    has_ended: bool
    queued_ms: float
    """When its jobs were put into the queue."""
    starts: Iterable[Start] = ()
    """In the order in which they were heard."""
    stalls: Iterable[Stall] = ()
    """In any order; they may overlap."""
    last_token_ms: float | None = None
    begun_after_ms: float | None = None
    """How long it had been in the queue when its prompt was begun, where no token followed."""


PARTS: tuple[Part, ...] = ("queue", "prefill", "decode", "preempted", "paused", "network")
"""In the order of `TimeParts`."""


def account(timeline: Timeline) -> TimeParts:
    """The parts of a request's time. Never negative, and together exactly the total, whatever the timeline says."""
    total_ms = max(0.0, timeline.total_ms)
    walk = _walk(timeline, total_ms)
    stalls = [*timeline.stalls]
    if stalls:
        walk = _interrupted(walk, stalls, total_ms)
    spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for part, from_ms, until_ms in walk:
        spent[part] += until_ms - from_ms
    return _rounded(spent)


def _interrupted(
    walk: Iterable[tuple[Part, float, float]], stalls: Iterable[Stall], total_ms: float
) -> Iterator[tuple[Part, float, float]]:
    """The walk with its stalls laid over it: at each instant the part that says most."""
    events: list[tuple[float, Part, int]] = []
    """A part begins (1) or ends (-1); of the parts of the walk exactly one is open at a time."""
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
            yield _most_telling(is_open), at_ms, next_ms


def _most_telling(is_open: Counter[Part]) -> Part:
    """What a request does that does several things at once."""
    order: tuple[Part, ...] = ("preempted", "paused", "queue", "prefill", "decode")
    return next((part for part in order if is_open[part]), "network")


def _walk(timeline: Timeline, total_ms: float) -> Iterator[tuple[Part, float, float]]:
    """The request's way without its stalls: parts one after the other, from its arrival to the total."""
    at_ms = 0.0
    for part, until_ms in _stations(timeline):
        if until_ms > total_ms:
            until_ms = total_ms
        if until_ms > at_ms:
            yield part, at_ms, until_ms
            at_ms = until_ms
    yield "network", at_ms, total_ms


def _stations(timeline: Timeline) -> Iterator[tuple[Part, float]]:
    """Each part of the way and its end; an end that lies before the one before it makes an empty part."""
    queued_ms, has_token = timeline.queued_ms, False
    yield "network", queued_ms
    for start in timeline.starts:
        if start.since_ms is not None and has_token:
            yield "decode", start.since_ms
        has_token = True
        begun_ms = start.heard_ms if start.waited_ms is None else min(queued_ms + start.waited_ms, start.heard_ms)
        yield "queue", begun_ms
        ready_ms = start.heard_ms if start.prefill_ms is None else min(begun_ms + start.prefill_ms, start.heard_ms)
        yield "prefill", ready_ms
        yield "network", start.heard_ms
    if has_token:
        last_ms = timeline.last_token_ms
        yield "decode", timeline.total_ms if last_ms is None or not timeline.has_ended else last_ms
    elif timeline.begun_after_ms is None:
        yield "queue", timeline.total_ms
    else:
        yield "queue", queued_ms + timeline.begun_after_ms
        yield "prefill", timeline.total_ms


def _rounded(spent: Mapping[Part, float]) -> TimeParts:
    """To a tenth of a millisecond, by the sums so far: the rounded parts add up to the rounded total."""
    tenths, before, so_far = list[float](), 0, 0.0
    for part_ms in spent.values():
        so_far += part_ms
        after = int(so_far * 10.0 + 0.5)
        tenths.append((after - before) / 10.0)
        before = after
    return TimeParts(*tenths)
