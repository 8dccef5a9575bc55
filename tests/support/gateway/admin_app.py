"""The admin API over a real store, with a fleet that tests write by hand."""

import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import httpx
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlane.gateway import errors
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import FolderStorage
from fairlane.gateway.control.admin import routes as admin
from fairlane.gateway.control.admin.blocks import Blocks
from fairlane.gateway.control.admin.call import AdminParts
from fairlane.gateway.control.admin.history import History
from fairlane.gateway.control.admin.live import LiveHub
from fairlane.gateway.control.admin.overview import Overview
from fairlane.gateway.control.admin.router import mount
from fairlane.gateway.control.console import routes as console_routes
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.erasure.steps import ErasureSteps
from fairlane.gateway.control.openapi import document as openapi
from fairlane.gateway.control.operators.admin_key import AdminKeys, Guesses
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.sessions import Sessions
from fairlane.gateway.fleet import FleetCache, ModelQueueView, StoredFleet
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.gateway.request.live_request import LiveJob
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import FREE, Prices
from fairlane.quotas.prices import PriceStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge
from fairlane.quotas.tenants import TenantStore
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.types import LaneDepth
from tests.support.quotas import house
from tests.support.store import topology

ADMIN_KEY = "the-admin-key-of-these-tests-0123456789"
QUEUE = "tiny@0123456789ab"
CONTEXT = 3000
"""Tokens of the only model, more than its only worker holds."""
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


def worker(worker_id: str = "w1", **fields: Any) -> WorkerStatus:
    """A worker that is half full."""
    known: dict[str, Any] = {
        "worker_id": worker_id,
        "model": "tiny",
        "queue": QUEUE,
        "card_sha256": "0" * 64,
        "started_at_ms": 1_700_000_000_000.0,
        "blocks_total": 100,
        "blocks_free": 50,
        "host_slots_total": 20,
        "host_slots_free": 20,
        "max_sequences": 8,
        "running": {"latency": 1, "throughput": 2},
        "preempted": {"throughput": 1},
        "tokens_per_s": {"latency": 10.0, "throughput": 30.5},
        "step_ms": 20.0,
        "prefill_tokens_per_s": 1000.0,
        "step_weights": (20.0, 0.0, 1.0, 0.0, 0.0),
    }
    return WorkerStatus(**{**known, **fields})


@dataclass
class HandFleet:
    """What serves, as a test says."""

    statuses: list[WorkerStatus] = field(default_factory=lambda: [worker()])
    depth: dict[LaneName, LaneDepth] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)
    """Waiting jobs by tenant."""
    drained: list[str] = field(default_factory=list)
    undrained: list[str] = field(default_factory=list)

    async def workers(self) -> list[WorkerStatus]:
        return self.statuses

    async def drain(self, worker_id: str) -> bool:
        self.drained.append(worker_id)
        return any(status.worker_id == worker_id for status in self.statuses)

    async def undrain(self, worker_id: str) -> bool:
        self.undrained.append(worker_id)
        return any(status.worker_id == worker_id for status in self.statuses)

    async def depths(self, model: str | None = None) -> Mapping[LaneName, LaneDepth]:
        if model not in (None, "tiny"):
            raise errors.not_found("model")
        return self.depth

    async def open_requests(self, tenant: str, allowed: Collection[str] | None) -> list[ModelQueueView]:
        if allowed is not None and "tiny" not in allowed:
            return []
        door = ModelQueueView(
            model="tiny",
            queue=QUEUE,
            context_length=CONTEXT,
            workers=self.statuses,
            depths=self.depth,
            waiting=await self.waiting(tenant),
        )
        return [door]

    async def waiting(self, tenant: str) -> int:
        return self.queued.get(tenant, 0)


class HandPicture(FleetCache):
    """The same fleet as a cache has read it."""

    def __init__(self, fleet: HandFleet) -> None:
        self.fleet, self.models = fleet, {}

    @property
    def is_fresh(self) -> bool:
        return True

    @property
    def workers(self) -> list[WorkerStatus]:  # type: ignore[override]  # statuses change during a test
        return self.fleet.statuses


@dataclass
class AdminBench:
    """A gateway's admin side, open for one test."""

    http: httpx.AsyncClient
    redis: Redis
    fleet: HandFleet
    budgets: RedisQuotaStore
    keys: KeyStore
    open_requests: AllOpenRequests
    traces: TraceFolder

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One call as the operator."""
        return await self.http.request(method, f"/admin/v1{path}", headers=HEADERS, **options)

    async def done(self, method: str, path: str, **options: Any) -> Any:
        """A call that must succeed; its JSON."""
        answer = await self.call(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    async def refused(self, method: str, path: str, **options: Any) -> tuple[int, str, str | None]:
        """A call that must fail; its status, code and param."""
        answer = await self.call(method, path, **options)
        assert answer.is_error, answer.text
        error = answer.json()["error"]
        assert error.keys() >= {"message", "type", "param", "code"}
        return answer.status_code, error["code"], error["param"]

    async def audit(self) -> list[dict[str, Any]]:
        """The audit log, oldest first."""
        entries: list[dict[str, Any]] = (await self.done("GET", "/audit"))["data"]
        return entries[::-1]

    async def spend(
        self,
        tenant: str,
        *,
        root: str = "",
        lane: str = "latency",
        prompt: int = 10,
        output: int = 5,
        prices: Prices = FREE,
        **measured: int,
    ) -> None:
        """Settle one request of a tenant. `measured`: what else it came to, as a Charge names it."""
        root = root or tenant
        job = f"job-{await self.redis.incr('test:jobs')}"
        asked = ask(tenant, job, root=root, lane=lane, prompts=(prompt,), max_output_tokens=output, prices=prices)
        await self.budgets.reserve(asked)
        charge = Charge(prompt_tokens=prompt, output_tokens=output, outcome="finished", **measured)
        await self.budgets.settle(root, job, charge)


def ask(tenant: str, job: str, **fields: Any) -> Ask:
    """A request's reservation."""
    return house.ask(job, **{"root": tenant, "tenant": tenant, "model": "tiny", "max_output_tokens": 5, **fields})


async def _no_position(job: LiveJob) -> int | None:
    return None


def parts(redis: Redis, fleet: HandFleet, open_requests: AllOpenRequests, traces: TraceFolder) -> AdminParts:
    """What the admin API works on, over one store."""
    overview = Overview(HandPicture(fleet), FleetMetricsStore(redis), DEFAULT_LANES)
    admin_keys, tokens = AdminKeys(redis, ADMIN_KEY), AdminTokens(redis)
    prices, records = PriceStore(redis), RecordStore(redis, "test", most=1_000)
    batches = BatchRecords(redis, most_open=100)
    return AdminParts(
        operators=Operators(admin_keys, tokens, Sessions(redis, admin_keys, tokens), Guesses(free=1000)),
        single_sign_on=None,
        tenants=TenantStore(redis),
        keys=KeyStore(redis),
        budgets=RedisQuotaStore(redis),
        ledger=Ledger(redis),
        audit=Audit(redis),
        fleet=cast(StoredFleet, fleet),
        lanes=DEFAULT_LANES,
        cuts_output=True,
        batches=batches,
        records=Records(records, RequestRecorder(records, _no_position, "test", enabled=True)),
        open_requests=open_requests,
        traces=traces,
        overview=overview,
        live=LiveHub(overview.view, Blocks(RedisRegistry(redis), HandPicture(fleet)).view, tokens.revision),
        history=History(FleetMetricsStore(redis), clock=time.time),
        prices=prices,
        known_prices=KnownPrices(prices),
        currency="EUR",
        erasure=Erasure(
            redis,
            "test",
            ErasureSteps(
                redis,
                batches=batches,
                files=FileRecords(redis, most_files=100, most_bytes=10**6),
                storage=FolderStorage(Path("nowhere")),
                records=records,
                fleet_metrics=FleetMetricsStore(redis),
                workers=RedisRegistry(redis),
                queues=tuple,
            ),
            is_store_embedded=False,
        ),
        changed=lambda: None,
    )


def application(
    redis: Redis, fleet: HandFleet, open_requests: AllOpenRequests | None = None, traces: TraceFolder | None = None
) -> Starlette:
    """The admin API, its document and its console."""
    traces = traces or TraceFolder(Path("nowhere"), most_recorded=2)
    made = parts(redis, fleet, open_requests or AllOpenRequests(DEFAULT_LANES), traces)
    routes = [
        mount(admin.OPERATIONS, made),
        openapi.route(),
        *console_routes.routes(),
        console_routes.session_route(made),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})


async def _unrouted(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return errors.response(errors.of_http_exception(error))


@asynccontextmanager
async def admin_bench(url: str) -> AsyncIterator[AdminBench]:
    """The admin API over the store at `url`, spoken to in this process."""
    fleet, open_requests = HandFleet(), AllOpenRequests(DEFAULT_LANES)
    with TemporaryDirectory() as folder:
        traces = TraceFolder(Path(folder), most_recorded=2)
        async with topology.client(url) as redis:
            transport = httpx.ASGITransport(application(redis, fleet, open_requests, traces))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
                yield AdminBench(http, redis, fleet, RedisQuotaStore(redis), KeyStore(redis), open_requests, traces)
