"""A rolling update to other weights of one name: what becomes of requests whose card's workers went."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from fairlane.gateway import fleet as fleet_cache
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, ModelCard, Outcome
from fairlane.scheduler.protocol.settings import LaneSettings, LanesSettings
from fairlane.scheduler.queue.keys import prefix
from fairlane.scheduler.queue.registry import RedisRegistry, card_sha256, queue_name
from fairlane.scheduler.queue.types import Progress
from tests.support.gateway.cards import byte_level_card, metaspace_card
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, error_of, gateway, settings, until
from tests.support.quotas.house import ask
from tests.support.scheduler.queues import PLENTY, TakingQueue
from tests.support.tasks import end

pytestmark = pytest.mark.anyio
OLD, NEW = (msgspec.structs.replace(byte_level_card(), fingerprint=name) for name in ("old", "new"))
OTHER_TOKENIZER = metaspace_card()
CHATS, BATCH = {"x_fairlane_lane": "latency"}, {"x_fairlane_lane": "throughput"}
LEASE_S, GRACE_S = 0.4, 0.5
MEASURED = (1.0, 0.01, 0.01, 0.0, 0.0)
"""Weights of steps that a worker has learnt, so that a door can promise a time."""
HOUR_MS = 3_600_000


@dataclass
class Rollout:
    """A gateway, and workers that come and go."""

    served: Served

    @asynccontextmanager
    async def worker(self, card: ModelCard, name: str, **script: Any) -> AsyncIterator[HandWorker]:
        """One that serves this card until the block ends, as if it were killed then."""
        made = HandWorker(self.served.store, card=card, worker_id=name, lease_ms=round(LEASE_S * 1e3), **script)
        running = asyncio.create_task(made.run())
        try:
            await until(lambda: any(each.worker_id == name for each in self.served.resources.fleet.cache.workers))
            yield made
        finally:
            await end(running)

    def ask(self, headers: Mapping[str, str] = CHATS) -> "asyncio.Task[httpx.Response]":
        """A plain request on its way."""
        return asyncio.create_task(self.served.post(CHAT, ASKED, tenant="acme", **headers))

    async def asked(
        self, worker: HandWorker, headers: Mapping[str, str] = BATCH, *, tokens: int = 0
    ) -> "asyncio.Task[httpx.Response]":
        """One that waits for this worker, or has so many tokens of it."""
        running = self.ask(headers)
        if tokens:
            await until(lambda: [len(made) for made in worker.produced.values()] == [tokens])
        await until(lambda: [job.message is not None for job in self.jobs] == [True])
        await until(lambda: self.jobs[0].choices[0].published == tokens)
        return running

    @property
    def jobs(self) -> list[Any]:
        return list(self.served.resources.fleet.dispatcher.jobs.values())


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_cache, "REFRESH_EVERY_S", 0.05)


@pytest.fixture
async def rollout(valkey_url: str) -> AsyncIterator[Rollout]:
    chosen = settings(valkey_url, section={"reservation_lease_s": 1.0}, lease_s=LEASE_S, orphan_grace_s=GRACE_S)
    async with gateway(chosen) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        yield Rollout(served)


@pytest.mark.parametrize("is_promised", [True, False])
async def test_what_no_worker_began_goes_on_with_the_new_card(rollout: Rollout, is_promised: bool) -> None:
    """Its guarantee too, where the new workers know what they can promise; else it is best effort."""
    stated = {"x_fairlane_ttft_ms": "60000", **BATCH}
    async with rollout.worker(OLD, "old", taking=False, step_weights=MEASURED) as old:
        running = await rollout.asked(old, stated)
        assert rollout.jobs[0].message.guaranteed
    async with rollout.worker(NEW, "new", step_weights=MEASURED if is_promised else ()) as new:
        answer = await running
    await rollout.served.landed()

    assert answer.status_code == 200
    [lease] = new.seen
    assert lease.job.guaranteed is is_promised
    # Its deadlines count from its arrival, not from the move. The grace began with the worker's last lease, before it.
    assert lease.arrived_ms_ago >= 1e3 * GRACE_S / 2
    assert lease.job.hard_ttft_ms == pytest.approx(60_000, abs=2_000)
    usage = answer.json()["usage"]
    assert await rollout.served.ledger() == [("finished", usage["prompt_tokens"], usage["completion_tokens"])]


async def test_chats_that_have_begun_end_as_unavailable_and_pay_for_what_came(rollout: Rollout) -> None:
    """One that streams by an error event, though there is a new card: its weights are others."""
    events: list[str] = []
    headers = {"authorization": f"Bearer {rollout.served.keys['acme']}"}
    async with AsyncExitStack() as stack:
        async with rollout.worker(OLD, "old", limit=3) as old:
            plain = await rollout.asked(old, CHATS, tokens=3)
            client = await stack.enter_async_context(rollout.served.http)
            asked = client.build_request("POST", CHAT, json={**ASKED, "stream": True}, headers=headers)
            stream = await client.send(asked, stream=True)
            await until(lambda: [len(made) for made in old.produced.values()] == [3, 3])
            await stack.enter_async_context(rollout.worker(NEW, "new"))
        events = [line async for line in stream.aiter_lines() if line.startswith("data:")]
        answer = await plain
    await rollout.served.landed()

    assert error_of(answer) == (503, "unavailable")
    assert "retry-after" in answer.headers
    assert json.loads(events[-1].removeprefix("data:"))["error"]["code"] == "unavailable"
    assert [(outcome, output) for outcome, _, output in await rollout.served.ledger()] == [("unavailable", 3)] * 2


async def test_batch_work_that_has_begun_waits_for_its_own_weights(rollout: Rollout) -> None:
    async with rollout.worker(OLD, "old", limit=3) as old:
        running = await rollout.asked(old, tokens=3)
    async with rollout.worker(NEW, "new") as new:
        queue = rollout.jobs[0].queue
        await until(lambda: queue in rollout.served.resources.fleet.cache.orphans)
        for _ in range(3):
            await rollout.served.resources.requests.orphans.tend()
        async with rollout.worker(OLD, "again", words=old.words) as again:
            answer = await running

    assert (answer.status_code, new.seen) == (200, [])
    assert again.seen[0].generated == (tuple(old.script[:3]),)
    assert answer.json()["choices"][0]["message"]["content"] == old.words


async def test_nothing_moves_to_a_card_with_another_tokenizer(rollout: Rollout) -> None:
    async with rollout.worker(OLD, "old", taking=False) as old:
        batch = await rollout.asked(old)
        chat = rollout.ask()
        await until(lambda: [job.message is not None for job in rollout.jobs] == [True, True])
    async with rollout.worker(OTHER_TOKENIZER, "new") as new:
        refused = await chat
        assert not batch.done()
        async with rollout.worker(OLD, "again"):
            answer = await batch

    assert (error_of(refused), answer.status_code, new.seen) == ((503, "unavailable"), 200, [])


async def test_what_finds_the_new_lane_full_waits_where_it_is(valkey_url: str) -> None:
    lanes = LanesSettings(throughput=LaneSettings(max_queued=1))
    async with gateway(settings(valkey_url, lease_s=LEASE_S, orphan_grace_s=GRACE_S, lanes=lanes)) as served:
        await served.tenant()
        rollout = Rollout(served)
        async with rollout.worker(OLD, "old", taking=False, lanes=lanes.lanes()) as old:
            early = await rollout.asked(old)
        queue = rollout.jobs[0].queue
        async with rollout.worker(NEW, "new", taking=False, lanes=lanes.lanes()) as new:
            late = rollout.ask(BATCH)
            await until(lambda: len({job.queue for job in rollout.jobs if job.message is not None}) == 2)
            asked = f"{prefix(queue)}asked:throughput"  # times of what was put, the newest last
            first_put = max(await served.store.hkeys(asked))
            async with asyncio.timeout(WAIT_S):
                # It is put back.
                while max(await served.store.hkeys(asked)) == first_put:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            new.taking = True
            answers = await asyncio.gather(early, late)

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(new.seen) == 2
    assert new.seen[0].arrived_ms_ago < new.seen[1].arrived_ms_ago


async def test_a_client_that_leaves_after_the_move_leaves_nothing_behind(rollout: Rollout) -> None:
    async with rollout.worker(OLD, "old", taking=False) as old:
        running = await rollout.asked(old)
    async with rollout.worker(NEW, "new", limit=2) as new:
        await until(lambda: rollout.jobs[0].choices[0].published == 2)
        running.cancel()
        await until(lambda: len(new.cancelled) == 1)
        await rollout.served.landed()

    assert [(outcome, output) for outcome, _, output in await rollout.served.ledger()] == [("cancelled", 2)]


async def test_one_name_is_listed_once_and_new_requests_go_where_workers_are(rollout: Rollout) -> None:
    async with rollout.worker(OLD, "old") as old:
        async with rollout.worker(NEW, "new") as new:
            models = rollout.served.resources.fleet.cache
            await until(lambda: models.models["tiny"].queue == queue_name("tiny", card_sha256(NEW)))
            listed = (await rollout.served.get("/v1/models")).json()["data"]
            assert (await rollout.ask()).status_code == 200
        await until(lambda: models.models["tiny"].queue == queue_name("tiny", card_sha256(OLD)))
        assert (await rollout.ask()).status_code == 200

    assert [model["id"] for model in listed] == ["tiny"]
    assert (len(old.seen), len(new.seen)) == (1, 1)


async def test_a_queue_that_the_store_forgot_is_noted_while_workers_serve_it(rollout: Rollout) -> None:
    name = queue_name("tiny", card_sha256(OLD))
    async with rollout.worker(OLD, "old"):
        await rollout.served.resources.fleet.registry.drop_queue(name)
        await rollout.served.resources.fleet.cache.refresh()
        await rollout.served.resources.requests.orphans.tend()

    assert name in await rollout.served.resources.fleet.registry.queues()


async def left_behind(served: Served, ago_ms: int, *, ends: bool) -> str:
    """Two tokens of a request whose gateway and worker, of a card that is gone, died so long ago; its record's key."""
    job_id = secrets.token_hex(12)
    await served.resources.accounts.quotas.reserve(ask(job_id, model="tiny", prompts=(3,), max_output_tokens=50))
    sha256 = await RedisRegistry(served.store).announce(OLD)
    then_ms = round(time.time() * 1e3) - ago_ms
    name, lanes = queue_name("tiny", sha256), dict(DEFAULT_LANES)
    queue = TakingQueue(served.store, name, lanes, lease_ms=round(LEASE_S * 1e3), clock=lambda: then_ms)
    await queue.gateway_alive("dead")
    await queue.renew("w")
    job = Job(
        job_id=job_id,
        gateway_id="dead",
        tenant="acme",
        lane=LaneName.LATENCY,
        prompt=(5, 6, 7),
        max_tokens=50,
        granted_until=50,
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )
    await queue.put(job)
    [lease] = await queue.take("w", PLENTY)
    said = Progress(lease.job.job_id, lease.epoch, 2, ends=Outcome.FINISHED if ends else None)
    assert await queue.report("w", [said]) == set()
    return f"{prefix(name)}job:{job_id}"


@pytest.mark.parametrize(("ends", "outcome"), [(True, "finished"), (False, "cancelled")])
async def test_what_was_published_is_charged_when_all_gateways_were_away_for_hours(
    valkey_url: str, ends: bool, outcome: str
) -> None:
    """The gateway that finds it has never heard of that card: the store has."""
    chosen = settings(valkey_url, section={"reservation_lease_s": 1.0}, lease_s=LEASE_S, orphan_grace_s=GRACE_S)
    async with gateway(chosen) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        record = await left_behind(served, 5 * HOUR_MS, ends=ends)
        assert await served.store.pttl(record) == -1 or await served.store.pttl(record) > 24 * HOUR_MS
        await RedisRegistry(served.store).announce(NEW)
    async with gateway(chosen) as served:
        await until(lambda: served.resources.requests.reaper.reaped == 1)

        assert await served.ledger() == [(outcome, 3, 2)]
        assert (await served.limits())["tokens_per_day"].used == 5


async def test_what_other_weights_published_is_not_gone_on_from_and_is_credited(rollout: Rollout) -> None:
    keyed = {**CHATS, "idempotency_key": "again"}
    async with rollout.worker(OLD, "old", limit=2) as old:
        running = await rollout.asked(old, keyed, tokens=2)
    async with rollout.worker(NEW, "new") as new:
        ended = await running
        await rollout.served.landed()
        again = await rollout.ask(keyed)
    await rollout.served.landed()

    assert error_of(ended) == (503, "unavailable")
    assert again.status_code == 200
    assert [lease.generated for lease in new.seen] == [()]
    limit = (await rollout.served.limits())["tokens_per_day"]
    assert (limit.used, limit.reserved) == (again.json()["usage"]["total_tokens"], 0)
