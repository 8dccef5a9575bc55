"""A whole gateway for one test: real uvicorn on loopback, a real store, and a worker that speaks from a script."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import redis.asyncio
from opentelemetry.sdk.trace import SpanProcessor

from fairlane.gateway.config import GatewaySection, GatewaySettings
from fairlane.gateway.runtime.resources import Resources
from fairlane.gateway.server import Server, configure
from fairlane.quotas import keyspace
from fairlane.quotas.ledger import Ledger, LedgerEntry
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.store.connections import connections
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import SAID as SAID
from tests.support.gateway.hand_worker import HandWorker
from tests.support.quick_stop import QuickStop
from tests.support.store import topology
from tests.support.tasks import end

ADMIN_KEY = "the-admin-key-of-these-tests-0123456789"
OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
WAIT_S = 20.0


def settings(url: str, *, section: dict[str, Any] | None = None, **shared: Any) -> GatewaySettings:
    """Settings that suit a slow machine: the store may take its time."""
    known = {"store_timeout_s": 8.0, "reservation_lease_s": 30.0, "grace_s": 2.0, "max_tenant_labels": 100}
    return GatewaySettings(
        redis_url=url, port=0, admin_key=ADMIN_KEY, gateway=GatewaySection(**{**known, **(section or {})}), **shared
    )


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code; every error has the same form."""
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    return answer.status_code, error["code"]


class QuickServer(QuickStop, Server):
    """The gateway's server."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so; the loop goes on meanwhile."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - polled: what is waited for has no event of its own
            await asyncio.sleep(0.005)


@dataclass
class Served:
    """One gateway that answers on a port of its own."""

    resources: Resources
    server: Server
    serving: "asyncio.Task[None]"
    worker: HandWorker
    store: redis.asyncio.Redis
    keys: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    # Tenants by the names that the test gives them.
    _renewals: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def metrics(self) -> str:
        """What Prometheus reads."""
        async with self.http as client:
            answer = await client.get("/metrics", headers=OPERATOR)
        assert answer.status_code == 200, answer.text
        return answer.text

    @property
    def http(self) -> httpx.AsyncClient:
        """A client for one use."""
        return httpx.AsyncClient(base_url=self.url, timeout=WAIT_S)

    async def tenant(self, name: str = "acme", *, scopes: dict[str, Any] | None = None, **document: Any) -> str:
        """Make a tenant with one key, and return the key. `id_of(name)` is its id."""
        self.ids[name] = f"{name}-{self._renewals}" if self._renewals else name
        tenant = await self.resources.accounts.tenants.create({"id": self.ids[name], **document})
        made = await self.resources.accounts.keys.create(tenant, {"name": "test", "scopes": scopes})
        self.keys[name] = made.secret
        return made.secret

    def id_of(self, name: str = "acme") -> str:
        """Return the id of a tenant that the test named."""
        return self.ids.get(name, name)

    async def renew(self) -> None:
        """Forget the last test of a gateway that several share: its tenants, and what its worker was told."""
        self.worker.renew()
        await self.landed()
        self.keys.clear()
        self.ids.clear()
        self._renewals += 1

    async def post(self, path: str, body: Any, *, tenant: str = "acme", **headers: str) -> httpx.Response:
        """One request of a tenant. Headers by their names with `_` for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        async with self.http as client:
            return await client.post(path, headers={"authorization": f"Bearer {self.keys[tenant]}", **given}, **content)

    async def get(self, path: str, *, tenant: str = "acme") -> httpx.Response:
        """One GET of a tenant."""
        async with self.http as client:
            return await client.get(path, headers={"authorization": f"Bearer {self.keys[tenant]}"})

    def sdk(self, tenant: str = "acme", **options: Any) -> openai.AsyncOpenAI:
        """The official SDK."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.keys[tenant], max_retries=0, **options)

    async def limits(self, tenant: str = "acme") -> dict[str, LimitStatus]:
        """The tenant's limits as they stand."""
        tenant_id = self.id_of(tenant)
        statuses = await RedisQuotaStore(self.store).statuses(tenant_id, tenant_id)
        return {status.name: status for status in statuses}

    async def ledger(self, tenant: str = "acme") -> list[tuple[str, int, int]]:
        """What was settled: outcome, prompt and output tokens, sorted."""
        entries = await self.entries(tenant)
        return sorted((entry.outcome, entry.prompt_tokens, entry.output_tokens) for entry in entries)

    async def entries(self, tenant: str = "acme") -> list[LedgerEntry]:
        """The same, whole and in order."""
        return await Ledger(self.store).entries(self.id_of(tenant), self.id_of(tenant))

    async def landed(self) -> None:
        """All jobs are settled and in the ledger, and nothing of them is in hand."""
        parts = self.resources
        await until(
            lambda: (
                not (
                    parts.fleet.dispatcher.jobs or parts.requests.settlements.in_hand or parts.accounts.pools.unreported
                )
            )
        )

    async def paused(self, tenant: str = "acme") -> None:
        """Wait until somebody waits for a full minute and has used all that it gave: for more is asked earlier."""
        tenant_id = self.id_of(tenant)
        waiting = f"{keyspace.of_root(tenant_id)}paused:tenant:{tenant_id}"
        async with asyncio.timeout(WAIT_S):
            while True:
                held = (await self.limits(tenant))["tokens_per_minute"].reserved
                if not held and await self.store.zcard(waiting):
                    return
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.server.should_exit = True
        await self.serving


@asynccontextmanager
async def gateway(
    chosen: GatewaySettings,
    processor: SpanProcessor | None = None,
    direct: str | None = None,
    *,
    slicing: Slicing = MINUTE,
) -> AsyncIterator[Served]:
    """A gateway and its store, without a worker; `served.worker` is not running. `direct`: see `serving`."""
    resources = Resources(chosen, processor, slicing=slicing)
    server = QuickServer(configure(chosen, resources), resources)
    serving = asyncio.create_task(server.serve())
    store = topology.client(direct or chosen.store_url)
    await until(lambda: server.started or serving.done())
    served = Served(resources, server, serving, HandWorker(store, lease_ms=round(chosen.lease_s * 1e3)), store)
    try:
        yield served
    finally:
        if not serving.done():
            await served.stop()
        await store.aclose()


@asynccontextmanager
async def serving(
    chosen: GatewaySettings,
    processor: SpanProcessor | None = None,
    direct: str | None = None,
    *,
    slicing: Slicing = MINUTE,
    card: ModelCard | None = None,
    make: Callable[..., HandWorker] = HandWorker,
) -> AsyncIterator[Served]:
    """A gateway with a worker that is known to it. `direct`: where worker and test find the store, if elsewhere.
    `card`: of the worker's model, if it is not the usual one; `make`: the worker's class."""
    async with aclosing(connections(direct or chosen.store_url, timeout_s=WAIT_S, limit=16)) as connected:
        lanes = chosen.lanes.lanes()
        lease_ms = round(chosen.lease_s * 1e3)
        worker = make(connected.short, card or byte_level_card(), lease_ms=lease_ms, lanes=lanes)
        working = asyncio.create_task(worker.run())
        await until(lambda: worker.known.is_set() or working.done())
        if working.done():
            await working  # raises what ended it
        try:
            async with gateway(chosen, processor, direct, slicing=slicing) as served:
                served.worker = worker
                await until(lambda: any(model.is_served for model in served.resources.fleet.cache.models.values()))
                yield served
        finally:
            await end(working)


async def settled(served: Served) -> None:
    """The other gateway's reaper has settled all."""
    async with asyncio.timeout(WAIT_S):
        while (await served.limits())["tokens_per_day"].reserved:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.05)
