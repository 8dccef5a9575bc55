"""Log of why, and for how long, steps left sequences out; reported when their job ends.

A sequence that a step does not examine keeps its last reason. The log is bounded by the number of sequences: the
entries of a job are removed with it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from fairlane.scheduler.planner.steps import SeqId, WaitReason


class _Wait(NamedTuple):
    reason: WaitReason
    since_ms: float


class WaitLog:
    """The waits of one planner's sequences."""

    def __init__(self) -> None:
        self._waits: dict[SeqId, _Wait] = {}
        # Milliseconds of completed waits, by job, sequence and reason.
        self._over: defaultdict[str, dict[tuple[SeqId, WaitReason], float]] = defaultdict(dict)
        self._now_ms = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._waits

    def note(self, reasons: Mapping[SeqId, WaitReason], running: Collection[SeqId], now_ms: float) -> None:
        waits, self._now_ms = self._waits, now_ms
        for seq in [seq for seq in running if seq in waits] if waits else ():
            self._end(seq, waits.pop(seq))
        for seq, reason in reasons.items():
            known = waits.get(seq)
            if known is None or known.reason is not reason:
                if known is not None:
                    self._end(seq, known)
                waits[seq] = _Wait(reason, now_ms)

    def leave(self, job_id: str, sequences: Iterable[SeqId]) -> dict[str, float]:
        """Remove a job and return its waits in ms by reason, each of the choice that waited longest."""
        for seq in sequences:
            known = self._waits.pop(seq, None)
            if known is not None:
                self._end(seq, known)
        longest: dict[str, float] = {}
        for (_, reason), waited_ms in self._over.pop(job_id, {}).items():
            longest[reason.value] = max(longest.get(reason.value, 0.0), waited_ms)
        return longest

    def _end(self, seq: SeqId, wait: _Wait) -> None:
        waited_ms, over = self._now_ms - wait.since_ms, self._over[seq.job_id]
        if waited_ms > 0.0:
            place = seq, wait.reason
            over[place] = over.get(place, 0.0) + waited_ms
