"""Store commands of each operation that requests and upkeep run, those inside scripts included."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec

import redis
import redis.asyncio

from benchmarks.common.store import own_store
from benchmarks.costs.counting import CommandCounter
from benchmarks.gateway.instant import WORKER_ID, room
from benchmarks.gateway.stand import LIMITS
from fairlane.common.seal import Seal
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.batch_records import BatchRecords, TakenBatch
from fairlane.gateway.batches.files import FileRecords, StoredFile
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore, packed_names
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.idempotency import EndedRun, IdempotencyRecords, Name
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge, Need
from fairlane.quotas.tenants import TenantStore
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome, Sampling
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import Progress

GATEWAY = "gateway"
TENANT = "acme"
P = ParamSpec("P")


def _job(job_id: str) -> Job:
    return Job(
        job_id=job_id,
        gateway_id=GATEWAY,
        tenant=TENANT,
        lane=LaneName.LATENCY,
        prompt=(1,) * 64,
        max_tokens=128,
        granted_until=64,
        sampling=Sampling(),
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )


class Operations:
    """Runs each operation in the order in which a request would, and notes what the store executed for it."""

    def __init__(self, client: redis.asyncio.Redis, counter: CommandCounter) -> None:
        self.costs: dict[str, float] = {}
        self._client, self._counter = client, counter

    async def all(self) -> None:
        """Every operation. The first of each kind loads its scripts, and is not counted."""
        await self._budgets()
        await self._idempotency()
        await self._queue()
        await self._administration()
        await self._files_and_batches()
        await self._records()

    async def _count(
        self, name: str, operation: Callable[P, Awaitable[object]], *args: P.args, **options: P.kwargs
    ) -> None:
        self._counter.reset()
        await operation(*args, **options)
        self.costs[f"{name}, store commands"] = float(self._counter.total())

    async def _budgets(self) -> None:
        tenants, keys = TenantStore(self._client), KeyStore(self._client)
        quotas, ledger = RedisQuotaStore(self._client), Ledger(self._client)
        tenant = await tenants.create({"id": TENANT, "limits": LIMITS})
        self.key = await keys.create(tenant, {"name": "costs"})
        for name in ("loading", "costs"):
            ask = Ask(
                reservation_id=name,
                root=TENANT,
                tenant=TENANT,
                key_id=self.key.key.id,
                model="model",
                lane="latency",
                prompts=(100,),
                max_output_tokens=256,
                quantum=64,
            )
            need = Need(published=32, prompt_tokens=100, known=32, most=256, quantum=64)
            charge = Charge(prompt_tokens=100, output_tokens=90, outcome="finished")
            await self._count("reserve", quotas.reserve, ask)
            await self._count("extend", quotas.extend, TENANT, name, need)
            await self._count("renew a reservation", quotas.renew, TENANT, [name])
            await self._count("settle", quotas.settle, TENANT, name, charge)
            await self._count("statuses", quotas.statuses, TENANT, TENANT, self.key.key.id)
            await self._count("find lapsed reservations", quotas.expired, 64)
            await self._count("look a key up", keys.lookup, self.key.secret)
            await self._count("read the ledger's newest page", ledger.entries, TENANT, TENANT)

    async def _idempotency(self) -> None:
        records = IdempotencyRecords(self._client, lease_ms=30_000, most_bytes=10**9)
        seal = Seal(self.key.secret)
        for digest in ("loading", "costs"):
            name = Name(root=TENANT, key_id=self.key.key.id, digest=digest)
            ended = EndedRun(status=200, headers=(), body=b"{}")
            await self._count("begin under an idempotency key", records.begin, name, "owner", "print", seal)
            await self._count("renew an idempotent run", records.renew, name, "owner")
            await self._count("end an idempotent run", records.finish, name, "owner", ended, seal)

    async def _queue(self) -> None:
        queue = RedisQueue(self._client, "model", dict(DEFAULT_LANES), lease_ms=600_000)
        await queue.gateway_alive(GATEWAY)
        leases: list[Lease] = []

        async def turn(*items: Progress, free: int = 0) -> None:
            leases[:] = (await queue.turn(WORKER_ID, room(free), items)).leases

        for job_id in ("loading", "costs"):
            job = _job(job_id)
            await self._count("put", queue.put, job, tenant_limit=100)
            await self._count("position", queue.position, job_id)
            await self._count("depths", queue.depths)
            await self._count("turn that takes one job", partial(turn, free=1))
            [lease] = leases
            progress = Progress(job_id, lease.epoch, 1, 1.0)
            end = Progress(job_id, lease.epoch, 2, 1.0, Outcome.FINISHED)
            await self._count("report progress", queue.report, WORKER_ID, [progress])
            await self._count("renew a worker's lease", queue.renew, WORKER_ID, [job_id])
            await self._count("record of a job", queue.record, job_id)
            await self._count("turn that ends one job", turn, end)
            await self._count("forget a job", queue.forget, [job_id])
            await self._count("turn without jobs", turn)
            await turn(free=1)
            given = f"given-{job_id}"
            await self._count("put that leases at once", queue.put, _job(given), tenant_limit=100)
            await queue.report(WORKER_ID, [Progress(given, 1, 2, 1.0, Outcome.FINISHED)])
            await queue.retire(WORKER_ID)
            await self._count("reclaim of nothing", queue.reclaim)
            await self._count("renew a gateway's lease", queue.gateway_alive, GATEWAY)
        cancelled = _job("cancelled")
        for _ in range(2):
            await queue.put(cancelled)
            await self._count("cancel a waiting job", queue.cancel, cancelled.job_id)
            await queue.forget([cancelled.job_id])

    async def _administration(self) -> None:
        tenants, keys = TenantStore(self._client), KeyStore(self._client)
        for tenant_id in ("loading", "costs"):
            await self._count("create a tenant", tenants.create, {"id": tenant_id})
            tenant = await tenants.get(tenant_id)
            assert tenant is not None  # noqa: S101 - it has just been created
            await self._count("change a tenant", tenants.update, tenant_id, {"name": "Costs"})
            await self._count("create a key", keys.create, tenant, {"name": "costs"})
            [key] = await keys.list(tenant)
            await self._count("revoke a key", keys.revoke, tenant, key.id)
            await self._count("delete a tenant", tenants.delete, tenant_id)

    async def _files_and_batches(self) -> None:
        files = FileRecords(self._client, most_files=100, most_bytes=10**9)
        batches = BatchRecords(self._client, most_open=10)
        for number in range(2):
            stored, batch = _file(f"file-{number:032x}"), _batch(f"batch_{number:032x}", f"file-{number:032x}")
            await self._count("open a file", files.open, TENANT, TENANT, stored.id)
            await self._count("keep a file", files.keep, TENANT, TENANT, stored)
            await self._count("create a batch", batches.create, TENANT, batch, 100, tenant_limit=None, key_limit=None)
            await self._count("take a batch", batches.take, TENANT, GATEWAY, 60_000)
            taken = TakenBatch(root=TENANT, owner=GATEWAY, epoch=1, batch=batch, progress=None, is_cancelling=False)
            await self._count("renew a batch", batches.renew, taken, 60_000)
            await self._count("end a batch", batches.finish, taken, batch, [])

    async def _records(self) -> None:
        records = RecordStore(self._client, GATEWAY, most=1_000)
        for record_id in ("loading", "costs"):
            running = RequestRecord(id=record_id, request_id=record_id, tenant=TENANT, key="key", arrived_s=1.0)
            ended = EndedRecord(running, is_special=False)
            await self._count("record a running request", records.write, [], [running])
            await self._count(
                "record an ended request", records.write, [ended], [], [(record_id, packed_names(running))]
            )
            await self._count("find a request's record", records.find, record_id)


def _file(file_id: str) -> StoredFile:
    return StoredFile(
        id=file_id, bytes=1_000, created_at=1, expires_at=4_000_000_000, filename="in.jsonl", purpose="batch"
    )


def _batch(batch_id: str, file_id: str) -> Batch:
    return Batch(
        id=batch_id,
        tenant=TENANT,
        key_id="key",
        endpoint="/v1/chat/completions",
        input_file_id=file_id,
        completion_window="24h",
        created_at=1,
        expires_at=4_000_000_000,
        output_expires_s=3_600,
    )


async def _measured(url: str) -> dict[str, float]:
    with redis.Redis.from_url(url) as counted:
        async with redis.asyncio.Redis.from_url(url) as client:
            operations = Operations(client, CommandCounter(counted))
            await operations.all()
            return operations.costs


def measure() -> dict[str, float]:
    """Store commands by entry of the book."""
    with own_store() as url:
        return asyncio.run(_measured(url))
