"""What a gateway leaves behind when it is killed: anyone's reaper settles it, once, with what was published."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from unittest.mock import AsyncMock

import pytest

from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.gateway.pipeline.recovery import Reaper
from fairlane.gateway.request.live_request import job_ids
from fairlane.quotas import keyspace
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Charge
from fairlane.quotas.tenants import TenantStore
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import JobState
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, error_of, serving, settings, until
from tests.support.quotas.house import ask

pytestmark = pytest.mark.anyio
PROMPT = (5, 6, 7)


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"reservation_lease_s": 1.0}, lease_s=2.0)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000, "requests_per_minute": 100, "concurrent_requests": 5})
        yield opened


async def orphan(served: Served, *, max_tokens: tuple[int, ...] = (50,), unput: int = 0, name: str = "") -> str:
    """Reserve a dead gateway's request and put a job for each of `max_tokens`; return the reservation's id.

    `unput`: further prompts without a job."""
    prompts = len(max_tokens) + unput
    ids = job_ids(name or secrets.token_hex(12), prompts)
    asked = ask(ids[0], model="tiny", prompts=(len(PROMPT),) * prompts, max_output_tokens=50)
    await served.resources.accounts.quotas.reserve(asked)
    for job_id, most in zip(ids, max_tokens, strict=False):
        job = Job(
            job_id=job_id,
            gateway_id="dead",
            tenant="acme",
            lane=LaneName.LATENCY,
            prompt=PROMPT,
            max_tokens=most,
            granted_until=most,
            ttft_ms=1_000.0,
            tpot_ms=100.0,
        )
        await RedisQueue(served.store, served.worker.queue.name, served.worker.lanes).put(job)
    return ids[0]


async def reaped(served: Served, orphaned: str) -> None:
    """Let the orphan's lease lapse, again after each search of the reaper, until the reaper has settled it."""
    leases = f"{keyspace.of_root('acme')}leases"
    async with asyncio.timeout(WAIT_S):
        while not served.resources.requests.reaper.reaped:
            await served.store.zadd(leases, {orphaned: 0}, xx=True)
            await asyncio.sleep(0.02)


async def nothing_held(served: Served) -> None:
    limits = await served.limits()
    assert limits["tokens_per_day"].reserved == 0
    assert limits["concurrent_requests"].used == limits["concurrent_requests"].reserved == 0


async def test_a_running_orphan_is_cancelled_and_charged_what_was_published(served: Served) -> None:
    served.worker.limit = 3
    await reaped(served, await orphan(served))
    await nothing_held(served)

    assert await served.ledger() == [("cancelled", len(PROMPT), 3)]
    assert len(served.worker.cancelled) == 1


async def test_an_orphan_that_nobody_received_is_charged_what_was_generated(served: Served) -> None:
    orphaned = await orphan(served)
    async with asyncio.timeout(WAIT_S):
        while (found := await served.worker.queue.record(orphaned)) is None or found.state is not JobState.ENDED:
            pass
    await reaped(served, orphaned)
    await nothing_held(served)

    assert await served.ledger() == [("cancelled", len(PROMPT), 50)]


async def test_an_orphan_of_several_prompts_is_settled_once_for_all_that_were_put(served: Served) -> None:
    served.worker.limit = 3
    await reaped(served, await orphan(served, max_tokens=(2, 50), unput=1))
    await nothing_held(served)

    assert await served.ledger() == [("cancelled", 2 * len(PROMPT), 2 + 3)]
    assert len(served.worker.cancelled) == 1
    assert (await served.limits())["requests_per_minute"].used == 1


async def test_a_queued_orphan_costs_nothing(served: Served) -> None:
    served.worker.taking = False
    await reaped(served, await orphan(served))
    await nothing_held(served)

    assert await served.ledger() == [("cancelled", 0, 0)]


async def test_an_orphan_that_was_never_put_was_never_there(served: Served) -> None:
    await reaped(served, await orphan(served, max_tokens=(), unput=1))
    await nothing_held(served)

    assert await served.ledger() == []
    assert (await served.limits())["requests_per_minute"].used == 0


async def test_a_job_that_outlives_many_leases_is_renewed_and_left_alone(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))

    await reaped(served, await orphan(served))
    await asyncio.sleep(1.5)  # a lease and a half of the job's own
    served.worker.limit = None

    assert (await running).status_code == 200
    assert b"fairlane_gateway_reaped_total 1.0" in served.resources.telemetry.exposition()


async def test_a_job_that_the_store_has_forgotten_is_noted_anew_and_charged(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.resources.fleet.dispatcher.jobs

    await lose_budgets(served, job_id)
    await served.resources.requests.reaper.renew()
    held = (await served.limits())["concurrent_requests"].used
    served.worker.limit = None
    answer = await running
    await served.landed()

    assert (answer.status_code, held) == (200, 1)
    ((outcome, prompt, output),) = await served.ledger()
    assert (outcome, prompt + output) == ("finished", answer.json()["usage"]["total_tokens"])
    limits = await served.limits()
    assert limits["tokens_per_day"].used == prompt + output
    assert limits["concurrent_requests"].used == limits["tokens_per_day"].reserved == 0


async def test_a_job_that_ends_while_its_lease_is_renewed_is_not_noted_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.resources.fleet.dispatcher.jobs

    async def renew(_: str, job_ids: Iterable[str]) -> set[str]:
        served.worker.limit = None
        await running
        await served.landed()
        await lose_budgets(served, job_id)
        return set(job_ids)

    monkeypatch.setattr(served.resources.accounts.quotas, "renew", renew)
    await served.resources.requests.reaper.renew()

    assert (await served.limits())["concurrent_requests"].used == 0


async def test_a_job_that_others_settled_ends(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.resources.fleet.dispatcher.jobs

    charge = Charge(prompt_tokens=5, output_tokens=2, outcome="cancelled")
    assert (await RedisQuotaStore(served.store).settle("acme", job_id, charge)).first
    await served.resources.requests.reaper.renew()

    assert error_of(await running) == (503, "quota_store_unavailable")
    await served.landed()
    assert await served.ledger() == [("cancelled", 5, 2)]


async def lose_budgets(served: Served, job_id: str) -> None:
    """As a failover does with what was written last: the reservation, and what it holds."""
    root = keyspace.of_root("acme")
    await served.store.zrem(f"{root}leases", job_id)
    await served.store.delete(f"{root}reservation:{job_id}", *await served.store.keys(f"{root}figures:*"))


async def replace(tenants: TenantStore, tenant_id: str) -> None:
    """Delete the tenant, and make another of its name."""
    await tenants.delete(tenant_id)
    await tenants.create({"id": tenant_id})


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (TenantStore.suspend, (403, "tenant_suspended")),
        (TenantStore.delete, (401, "tenant_deleted")),
        (replace, (401, "tenant_deleted")),
    ],
)
async def test_the_running_requests_of_a_tenant_that_may_not_go_on_end_with_the_reason(
    served: Served, end: Callable[[TenantStore, str], Awaitable[object]], error: tuple[int, str]
) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

    await end(served.resources.accounts.tenants, "acme")
    answer = await running
    await served.landed()

    assert error_of(answer) == error
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 2)]


@pytest.mark.parametrize(
    ("end", "code", "word"),
    [(TenantStore.suspend, "tenant_suspended", "suspended"), (TenantStore.delete, "tenant_deleted", "deleted")],
)
async def test_a_stream_ends_with_what_happened_to_its_tenant(
    served: Served, end: Callable[[TenantStore, str], Awaitable[object]], code: str, word: str
) -> None:
    served.worker.limit = 2
    headers = {"authorization": f"Bearer {served.keys['acme']}"}
    async with (
        served.http as client,
        client.stream("POST", CHAT, json={**ASKED, "stream": True}, headers=headers) as answer,
    ):
        frames = answer.aiter_lines()
        first = await anext(frames)
        await end(served.resources.accounts.tenants, "acme")
        rest = [line async for line in frames if line]

    assert first.startswith("data: {")
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert (error["code"], word in error["message"]) == (code, True)


async def test_the_running_requests_below_a_tenant_that_is_suspended_end_too(served: Served) -> None:
    await served.tenant("web", parent="acme")
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, tenant="web"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

    await served.resources.accounts.tenants.suspend("acme")
    answer = await running
    refused = await served.post(CHAT, ASKED, tenant="web")
    await served.landed()

    assert error_of(answer) == (403, "tenant_suspended")
    assert error_of(refused) == (403, "tenant_suspended")


class PartlyAway:
    """Budgets of `acme` that do not answer, beside others that do; and looks at tenants likewise."""

    def __init__(self) -> None:
        self.renewed: list[str] = []

    async def renew(self, root: str, job_ids: Iterable[str]) -> set[str]:
        if root == "acme":
            raise StoreUnavailable(root)
        self.renewed += [root, *job_ids]
        return set()

    async def get(self, tenant_id: str) -> None:
        if tenant_id == "acme":
            raise StoreUnavailable(tenant_id)


async def test_an_organisation_whose_budgets_are_away_keeps_no_other_from_its_upkeep(served: Served) -> None:
    served.worker.limit = 1
    await served.tenant("other")
    asking = [asyncio.create_task(served.post(CHAT, ASKED, tenant=tenant)) for tenant in ("acme", "other")]
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [1, 1])
    parts, budgets = served.resources, PartlyAway()
    reaper = Reaper(budgets, budgets, parts.fleet.dispatcher, parts.fleet.cache, lease_s=1.0, on_reaped=AsyncMock())  # type: ignore[arg-type]

    with pytest.raises(StoreUnavailable):
        await reaper.renew()
    with pytest.raises(StoreUnavailable):
        await reaper.watch()
    gone = await asking[1]
    served.worker.limit = None

    assert budgets.renewed[0] == "other"
    assert error_of(gone) == (401, "tenant_deleted")
    assert (await asking[0]).status_code == 200


async def test_the_record_of_a_killed_gateways_request_ends_with_what_it_came_to(served: Served) -> None:
    """Whether or not that gateway had told of it."""
    told, untold = "a" * 24, "b" * 24
    record = RequestRecord(
        id=told, request_id="mine", tenant="acme", key="k", arrived_s=time.time() - 1.0, gateway="dead", state="running"
    )
    await RecordStore(served.store, "dead", most=100).write((), [record])
    assert (await served.get("/v1/requests/mine")).json()["state"] == "running"
    for name in (told, untold):
        await reaped(served, await orphan(served, name=name))
        served.resources.requests.reaper.reaped = 0

    async with asyncio.timeout(WAIT_S):
        while (found := (await served.get("/v1/requests/mine")).json())["state"] != "ended":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while (await served.get(f"/v1/requests/{untold}")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    assert found["charges"] is not None
    assert "was lost" in found["why"]
    assert (await served.get(f"/v1/requests/{untold}")).json()["state"] == "ended"
    assert not await served.store.exists("fl:records:{requests}:live:dead")
