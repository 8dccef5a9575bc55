"""Explains a request's record in a few sentences: where its time went, which request displaced it, how it ended.
Pure."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from fairlane.gateway.insight.request_records.record import RecordedPreemption, RequestRecord

_NEEDED = {
    "blocks": "KV blocks",
    "slots": "its slot in the batch",
    "tokens": "the tokens of a step",
    "pace": "steps short enough for its pace",
}
_REASONS = {
    "queue": "in the queue",
    "slots": "for a slot in the worker's batch",
    "tokens": "for tokens of a step, which went to more urgent work",
    "pace": "so that streams of the first lane keep their pace",
    "blocks": "for KV blocks",
    "host": "for room in the host pool",
    "head": "behind a more urgent request that lacked KV blocks",
    "grant": "for its own limits to allow more tokens",
    "prefix": "for a sibling to compute the prompt that they share",
    "preempted": "while others had its blocks",
}
_PARTS = {
    "queue": "in the queue",
    "prefill": "to compute its prompt",
    "decode": "to generate",
    "preempted": "preempted",
    "paused": "paused by its own limits",
    "network": "to be received, admitted and sent",
}
# Shorter waits are left out.
_LEAST_MS = 1.0


def waits_of(record: RequestRecord) -> list[tuple[str, float]]:
    """Return its waits, longest first: `queue` as in the time account, and the worker's reasons within its parts."""
    waits = dict(record.waits_ms)
    if record.queue_ms is not None:
        waits["queue"] = record.queue_ms
    if record.paused_ms > waits.get("grant", 0.0):
        waits["grant"] = record.paused_ms
    return sorted(waits.items(), key=lambda wait: wait[1], reverse=True)


def words_of(reason: str) -> str:
    """Return the words for a wait's reason, as they follow `it waited`."""
    return _REASONS.get(reason, reason)


def why(record: RequestRecord, now_ms: float | None = None) -> str:
    """Return the explanation. `now_ms`: time since its arrival, for a running request."""
    if record.outcome == "rejected":
        return f"It was refused ({record.code}): {record.message}"
    sentences = [_standing(record, now_ms), _spent(record), _waited(record), _preempted(record.preemptions, record)]
    sentences += [_moved(record), _ended(record)]
    return " ".join(filter(None, sentences))


def _standing(record: RequestRecord, now_ms: float | None) -> str:
    if record.state == "lost":
        return "Its gateway has gone silent; it is settled once its lease has expired."
    if record.state == "ended" or now_ms is None:
        return _first_token(record)
    if record.state == "queued":
        places = [event.figure for event in record.events if event.figure and event.kind in ("queued", "position")]
        place = f", at place {places[-1]:.0f} of its tenant's" if places else ""
        return f"It has waited {_time(now_ms)} for a worker{place}."
    state = {"paused": "waits for its own limits", "preempted": "waits for what others took"}.get(record.state, "runs")
    return f"It {state}, {_time(now_ms)} after it arrived. {_first_token(record)}".rstrip()


def _first_token(record: RequestRecord) -> str:
    if record.ttft_ms is None:
        return "" if record.state != "ended" else "It produced no token."
    target = record.ttft_deadline_ms or record.ttft_target_ms
    first = f"Its first token arrived after {_time(record.ttft_ms)}"
    return f"{first} (target {_time(target)})." if target is not None else f"{first}."


def _spent(record: RequestRecord) -> str:
    parts = sorted(msgspec.structs.asdict(record.time).items(), key=lambda part: part[1], reverse=True)
    long = [f"{_time(ms)} {_PARTS[name]}" for name, ms in parts if ms >= _LEAST_MS]
    return f"Of {_time(record.time.total)}, {_listed(long)}." if long else ""


def _waited(record: RequestRecord) -> str:
    long = [(reason, ms) for reason, ms in waits_of(record) if ms >= _LEAST_MS and reason != "queue"][:3]
    if not long:
        return ""
    return f"At its worker it waited {_listed([f'{_time(ms)} {words_of(reason)}' for reason, ms in long])}."


def _preempted(preemptions: Sequence[RecordedPreemption], record: RequestRecord) -> str:
    if not preemptions:
        return ""
    longest = max(preemptions, key=lambda one: one.stall_ms or 0.0)
    times = "once" if record.preempted == 1 else f"{record.preempted} times"
    takers = Counter((one.lane, one.tenant) for one in preemptions if one.resource is not None)
    often, count = takers.most_common(1)[0] if takers else (("", ""), 0)
    which = "" if record.preempted == 1 else ", the longest"
    if len(takers) > 1:
        which = f", {count} of them by {_whose(*often)}, the longest"
    blocks = "1 block" if longest.blocks == 1 else f"{longest.blocks} blocks"
    taken = f"{blocks} by {longest.mode}" if longest.blocks else "its blocks stayed"
    stall = "it has not come back" if longest.stall_ms is None else f"a stall of {_time(longest.stall_ms)}"
    return f"It was preempted {times}{which} by {_taker(longest)}: {taken}, {stall}."


def _moved(record: RequestRecord) -> str:
    gaps_ms = [event.figure or 0.0 for event in record.events if event.kind == "moved"]
    if not gaps_ms:
        return f"Workers took it {record.takings} times before it began." if record.takings > 1 else ""
    last = record.workers[-1] if record.workers else "another"
    often, longest = ("", "") if len(gaps_ms) == 1 else (f" {len(gaps_ms)} times", " at the longest")
    return (
        f"Its worker was lost or gave it back{often}: it continued at {last}, and no token arrived for "
        f"{_time(max(gaps_ms))}{longest}."
    )


def _taker(preemption: RecordedPreemption) -> str:
    if preemption.resource is None:
        return "work that its worker did not name"
    needed = _NEEDED.get(preemption.resource, preemption.resource)
    return f"{_whose(preemption.lane, preemption.tenant)}, which needed {needed}"


def _whose(lane: str, tenant: str) -> str:
    return f"the {lane} lane of tenant {tenant}" if tenant else f"the {lane} lane"


def _ended(record: RequestRecord) -> str:
    if record.state != "ended":
        return ""
    if record.code == "client_closed":
        return "Its client left before the end."
    if record.code is not None:
        return f"It ended as {record.outcome} ({record.code}): {record.message}"
    if record.message:
        return f"It ended as {record.outcome}: {record.message}"
    return f"It ended after {_time(record.total_ms or 0.0)}."


def _time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1e3:.1f} s"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
