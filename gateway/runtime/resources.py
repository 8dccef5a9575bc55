"""All parts of one gateway process, built from its settings."""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from opentelemetry.sdk.trace import SpanProcessor

from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.ports import Member
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.process_metrics import ProcessMetrics
from fairlane.gateway.pipeline.guarded_quotas import Modes
from fairlane.gateway.runtime.accounts import SETTLE_GRACE_S, Accounts
from fairlane.gateway.runtime.batches import Batches
from fairlane.gateway.runtime.control import Control
from fairlane.gateway.runtime.fleet import Fleet
from fairlane.gateway.runtime.insight import Insight
from fairlane.gateway.runtime.ports import Ports
from fairlane.gateway.runtime.requests import Requests
from fairlane.gateway.runtime.setup import Setup
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas.windows import MINUTE, Slicing

log = logging.getLogger(__name__)

# Maximum wait at start for the first read of the fleet: a tokenizer can take most of a second to load.
FIRST_LOOK_S = 2.0


class Resources:
    """The parts of one gateway. Building them does no I/O; `running` opens, runs and closes them."""

    def __init__(
        self,
        settings: GatewaySettings,
        processor: SpanProcessor | None = None,
        member: Member | None = None,
        *,
        slicing: Slicing = MINUTE,
    ) -> None:
        """`member`: this process's place among those behind one port. `slicing`: for benchmarks, see Database."""
        section = settings.gateway
        self.settings, self.lanes = settings, settings.lanes.lanes()
        self.gateway_id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.telemetry = Telemetry(processor, sample=section.trace_sample, max_tenants=section.max_tenant_labels)
        self.processes = ProcessMetrics(member, self.telemetry.exposition)
        self._span_processor = processor
        self._draining = False
        modes = Modes(section.quota_fallback, section.quota_fallbacks)
        process = 0 if member is None else member.index
        setup = Setup(settings, self.gateway_id, self.lanes, self.telemetry, process)
        self.ports = Ports(settings, self.telemetry)
        self.stores = stores = Stores(settings, modes, self.telemetry)
        self.accounts = accounts = Accounts(setup, stores, modes, slicing)
        self.fleet = fleet = Fleet(setup, stores, self.ports.bodies)
        self.insight = insight = Insight(setup, stores, fleet)
        self.requests = Requests(setup, stores, accounts, fleet, insight, self.ports, self.refusal)
        self.batches = Batches(setup, stores, accounts, fleet, self.requests, lambda: self._draining)
        self.control = Control(setup, stores, fleet, insight, self.batches)

    def missing(self) -> str:
        main, budgets = self.stores.main, self.stores.budgets
        missing = ["quota-store"] if not budgets.breaker.is_whole or self.accounts.unreported else []
        if budgets is not main and not main.breaker.is_whole:
            missing.append("queue-store")
        return ", ".join(missing)

    def refusal(self) -> ApiError | None:
        return _shutting_down() if self._draining else None

    async def drain(self, grace_s: float) -> None:
        """Reject new requests, let running ones finish for `grace_s`, then end the rest with an error."""
        self._draining = True
        await self.control.live.aclose()
        await self._landed(grace_s)
        left = [job for job in self.fleet.dispatcher.jobs.values() if not job.settled]
        if left:
            log.warning("the shutdown ends %d jobs early", len(left))
        for job in left:
            job.fail(_shutting_down())
        await self._landed(SETTLE_GRACE_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all parts until the block ends. Waits briefly for the first read of the fleet."""
        # Closed in reverse order: records are written after the last settlement, and before the stores close.
        parts = (self.stores, self.accounts, self.insight, self.fleet, self.requests, self.batches, self.control)
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part.running())
            await stack.enter_async_context(self.processes.answering())
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_S):
                    await self.fleet.looked.wait()
            yield
        if self._span_processor is not None:
            await asyncio.to_thread(self._span_processor.shutdown)

    async def _landed(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.fleet.open_requests.wait_until_idle()


_shutting_down = partial(ApiError, "This gateway is shutting down.", "shutting_down", retry_after_s=1.0)
