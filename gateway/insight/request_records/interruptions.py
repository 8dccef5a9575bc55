"""Preemptions and pauses of one running request: what is interrupted now, and the time that was lost."""

from fairlane.gateway.insight.request_records.record import RecordedPreemption, RequestRecord, State
from fairlane.gateway.insight.request_records.time_account import Stall, StallKind
from fairlane.gateway.request.live_request import LiveJob, request_of
from fairlane.scheduler.protocol.messages import Cause, Preempted, Resumed


class Interruptions:
    """The interruptions of one request. Times are in ms after its arrival; choices are named by job and index."""

    __slots__ = ("_paused_ms", "_preempted", "_stalls", "count")

    def __init__(self) -> None:
        self.count = 0
        self._preempted: dict[tuple[str, int], RecordedPreemption] = {}
        self._paused_ms: dict[tuple[str, int], float] = {}
        self._stalls: list[Stall] = []

    @property
    def state(self) -> State | None:
        if self._preempted:
            return "preempted"
        return "paused" if self._paused_ms else None

    def stalls(self, until_ms: float) -> list[Stall]:
        away = [Stall("preempted", one.at_ms, until_ms) for one in self._preempted.values()]
        return [*self._stalls, *away, *(Stall("paused", at_ms, until_ms) for at_ms in self._paused_ms.values())]

    def preempt(self, job: LiveJob, event: Preempted, now_ms: float) -> RecordedPreemption:
        self.count += 1
        preemption = self._preempted[job.id, event.choice] = RecordedPreemption(
            at_ms=round(now_ms, 1),
            choice=job.first_choice + event.choice,
            mode=event.mode,
            blocks=event.blocks,
            bytes=event.bytes,
            predicted_ms=round(event.predicted_ms, 3),
        )
        _blame(preemption, event.cause)
        return preemption

    def pause(self, job: LiveJob, choice: int, now_ms: float) -> None:
        self.count += 1
        self._paused_ms[job.id, choice] = now_ms

    def resume(self, job: LiveJob, event: Resumed, now_ms: float, record: RequestRecord) -> None:
        place, stall_ms = (job.id, event.choice), round(event.stalled_ms, 1)
        preemption, paused_ms = self._preempted.pop(place, None), self._paused_ms.pop(place, None)
        kind: StallKind = "preempted" if paused_ms is None or preemption is not None else "paused"
        self._stalls.append(Stall(kind, now_ms - event.stalled_ms, now_ms))
        if preemption is not None:
            preemption.stall_ms = stall_ms
            record.stalled_ms += stall_ms
            if event.blocks:  # it may have lost (more) blocks after its preemption
                preemption.mode, preemption.blocks, preemption.bytes = event.mode, event.blocks, event.bytes
                preemption.predicted_ms = round(event.predicted_ms, 3)
                if preemption.resource is None:  # the first displacement counts as the cause
                    _blame(preemption, event.cause)
        elif paused_ms is not None:
            record.paused_ms += stall_ms
        record.add(now_ms, "resumed", stall_ms)

    def end(self, job: LiveJob, now_ms: float) -> None:
        for place in [place for place in self._preempted if place[0] == job.id]:
            self._stalls.append(Stall("preempted", self._preempted.pop(place).at_ms, now_ms))
        for place in [place for place in self._paused_ms if place[0] == job.id]:
            self._stalls.append(Stall("paused", self._paused_ms.pop(place), now_ms))


def _blame(preemption: RecordedPreemption, cause: Cause | None) -> None:
    if cause is not None:
        preemption.resource, preemption.lane = cause.resource, cause.lane
        preemption.tenant, preemption.request = cause.tenant, request_of(cause.job_id)
