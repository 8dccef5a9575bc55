"""Which records a gateway keeps, and when it writes them: over a store and queues that tests write by hand."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from unittest.mock import AsyncMock

import pytest

from fairlane.gateway.insight.request_records import recorder as recorders
from fairlane.gateway.insight.request_records.live import LiveRecord
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore
from fairlane.gateway.request.live_request import LiveJob
from fairlane.quotas.store import Charge
from fairlane.scheduler.protocol.messages import Finished, JobSteps, Outcome, Preempted, Resumed, TokenDelta
from fairlane.store.errors import StoreUnavailable
from tests.support.counted import bytecodes
from tests.support.gateway.one_request import job

pytestmark = pytest.mark.anyio


class HandStore(RecordStore):
    """Notes what is written; may be away."""

    def __init__(self) -> None:
        super().__init__(AsyncMock(), "gw", most=1_000)
        self.of_ended: list[EndedRecord] = []
        self.of_running: list[RequestRecord] = []
        self.gone: list[str] = []
        self.calls = 0
        self.is_away = False

    async def write(
        self, ended: Sequence[EndedRecord], running: Sequence[RequestRecord], gone: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("away")
        self.of_ended += ended
        self.of_running += running
        self.gone += [name for name, _ in gone]


@dataclass
class HandQueues:
    """Everybody waits at the same place."""

    place: int | None = 3
    asked: list[str] = field(default_factory=list)

    async def position(self, job: LiveJob) -> int | None:
        self.asked.append(job.id)
        return self.place


class Desk:
    """A recorder, and requests for it whose time tests set."""

    def __init__(self) -> None:
        self.store, self.queues = HandStore(), HandQueues()
        self.recorder = RequestRecorder(self.store, self.queues.position, "gw", enabled=True)
        self.count = 0

    def begin(self, *, age_s: float = 0.0, name: str = "") -> LiveRecord:
        self.count += 1
        names = name or f"req-{self.count}", ""
        request = job(f"{self.count:024x}").request
        arrived_s = asyncio.get_running_loop().time() - age_s
        live = self.recorder.open(_begun, request, names, arrived_s, due_ms=1_000.0)
        assert live is not None
        return live

    def end(self, live: LiveRecord, outcome: Outcome = Outcome.FINISHED, code: str | None = None) -> None:
        live.charged(Charge(prompt_tokens=10, output_tokens=0, outcome=outcome.value))
        live.answered(code, outcome, "", "")


def _begun(live: LiveRecord) -> RequestRecord:
    return RequestRecord(id=live.id, request_id=live.names[0], tenant=live.account, key="k", arrived_s=1.0)


async def test_of_many_ordinary_requests_some_are_kept_and_of_those_that_failed_all_that_fit() -> None:
    desk = Desk()
    for _ in range(500):
        desk.end(desk.begin())
    for _ in range(40):
        desk.end(desk.begin(), Outcome.FAILED, "internal_error")

    await desk.recorder.flush()

    special = [one for one in desk.store.of_ended if one.is_special]
    assert (len(special), len(desk.store.of_ended)) == (40, 40 + recorders.MOST_A_FLUSH)
    assert desk.recorder.dropped == 500 - recorders.MOST_A_FLUSH
    assert max(int(one.record.id, 16) for one in desk.store.of_ended if not one.is_special) > recorders.MOST_A_FLUSH


async def test_what_yielded_is_special_however_it_ended() -> None:
    desk = Desk()
    live = desk.begin()
    live.observe(live.jobs[0], Preempted(job_id=live.id, choice=0, mode="keep", blocks=0, predicted_ms=0.0))
    live.observe(live.jobs[0], Resumed(job_id=live.id, choice=0, stalled_ms=5.0))
    desk.end(live)

    await desk.recorder.flush()

    assert [one.is_special for one in desk.store.of_ended] == [True]


async def test_what_moved_to_another_worker_is_special_and_names_both() -> None:
    desk = Desk()
    live = desk.begin()
    live.progress = HandTimes()
    for epoch, worker in ((1, "w1"), (2, "w2")):
        live.observe(
            live.jobs[0],
            TokenDelta(job_id=live.id, epoch=epoch, choice=0, first_index=epoch - 1, token_ids=(5,), worker_id=worker),
        )
        live.jobs[0].choices[0].published += 1
        live.jobs[0].begun = True
    desk.end(live)

    await desk.recorder.flush()

    [kept] = desk.store.of_ended
    assert kept.is_special
    assert kept.record.workers == ["w1", "w2"]
    assert [event.kind for event in kept.record.events].count("moved") == 1


class HandTimes:
    """A request whose last token came when its first did."""

    first_token_s = last_token_s = 0.5
    queued_s = None


async def test_finding_a_request_costs_the_same_however_many_run() -> None:
    def work(desk: Desk) -> int:
        names = (first.id, "req-1", "unknown")
        return bytecodes(lambda: [desk.recorder.local(name, of) for name in names for of in (None, first.account)])

    desk = Desk()
    first = desk.begin()
    desk.recorder.local(first.id)  # makes its record
    alone = work(desk)
    for _ in range(100):
        desk.begin()

    assert work(desk) == alone


async def test_a_name_of_several_requests_means_the_newest_that_runs() -> None:
    desk = Desk()
    lives = [desk.begin(name="same") for _ in range(3)]
    account = lives[0].account

    def found(of: str | None) -> str | None:
        record = desk.recorder.local("same", of)
        return None if record is None else record.id

    assert (found(None), found(account), found("another")) == (lives[2].id, lives[2].id, None)
    desk.end(lives[2])
    assert (found(None), found(account)) == (lives[1].id, lives[1].id)


async def test_an_idle_gateway_asks_nothing_of_the_store() -> None:
    desk = Desk()

    await desk.recorder.flush()

    assert desk.store.calls == 0


async def test_while_the_store_is_away_what_waits_is_bounded_and_is_written_later() -> None:
    desk = Desk()
    desk.store.is_away = True
    for _ in range(2 * recorders.MOST_WAITING // recorders.MOST_A_FLUSH):
        for _ in range(recorders.MOST_A_FLUSH):
            desk.end(desk.begin())
        with pytest.raises(StoreUnavailable):
            await desk.recorder.flush()
    desk.store.is_away = False
    for _ in range(2 * recorders.MOST_WAITING // recorders.MOST_A_FLUSH):
        await desk.recorder.flush()

    written = [int(one.record.id, 16) for one in desk.store.of_ended]
    assert written == [*range(recorders.MOST_WAITING + 1, 2 * recorders.MOST_WAITING + 1)]
    assert desk.recorder.dropped == recorders.MOST_WAITING


async def test_a_request_that_is_over_soon_is_written_once_and_another_when_there_is_news() -> None:
    desk = Desk()
    desk.begin()
    slow = desk.begin(age_s=0.9)

    await desk.recorder.flush()
    await desk.recorder.flush()
    assert [record.id for record in desk.store.of_running] == [slow.id]
    slow.observe(slow.jobs[0], Preempted(job_id=slow.id, choice=0, mode="keep", blocks=0, predicted_ms=0.0))
    await desk.recorder.flush()
    desk.end(slow)
    await desk.recorder.flush()

    assert [record.id for record in desk.store.of_running] == [slow.id, slow.id]
    assert desk.store.gone == [slow.id]


async def test_what_happens_while_it_is_written_is_written_the_next_time() -> None:
    desk = Desk()
    live = desk.begin(age_s=0.9)

    writing = asyncio.create_task(desk.recorder.flush())
    await asyncio.sleep(0)  # it is on its way
    live.observe(live.jobs[0], Preempted(job_id=live.id, choice=0, mode="keep", blocks=0, predicted_ms=0.0))
    await writing
    await desk.recorder.flush()

    assert len(desk.store.of_running) == 2


async def test_places_are_asked_for_of_a_few_in_turns() -> None:
    desk = Desk()
    waiting = [desk.begin(age_s=2.0) for _ in range(2 * recorders.PLACES_A_FLUSH)]

    await desk.recorder.flush()
    await desk.recorder.flush()

    assert sorted(desk.queues.asked) == sorted(live.id for live in waiting)
    assert [event.kind for event in waiting[0].record.events] == ["position"]
    desk.queues.place = None
    await desk.recorder.flush()
    assert waiting[0].record.state == "running"
    assert [event.kind for event in waiting[0].record.events] == ["position"], "when it was taken, its worker says"


async def test_when_a_worker_took_it_is_what_the_worker_measured_and_not_when_the_gateway_looked() -> None:
    desk = Desk()
    live = desk.begin(age_s=2.0)
    desk.queues.place = None
    await desk.recorder.flush()
    steps = JobSteps(taken_ms=5.0)
    live.observe(live.jobs[0], Finished(job_id=live.id, epoch=1, outcome=Outcome.FINISHED, steps=steps))

    (taken,) = [event for event in live.record.events if event.kind == "taken"]
    assert taken.at_ms == 5.0


async def test_of_a_tenants_refusals_a_few_are_kept_each_time() -> None:
    desk = Desk()
    for number in range(300):
        code = "rate_limit_exceeded"
        refused = RequestRecord(
            id=f"{number}", request_id=f"r{number}", tenant=f"t{number % 30}", key="k", arrived_s=0.0, code=code
        )
        desk.recorder.refused(refused, asyncio.get_running_loop().time())

    await desk.recorder.flush()

    tenants = [one.record.tenant for one in desk.store.of_ended]
    assert len(tenants) == recorders.MOST_REFUSALS
    assert max(map(tenants.count, tenants)) <= recorders.MOST_OF_A_TENANT
