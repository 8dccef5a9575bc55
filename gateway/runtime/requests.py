"""A request from its preparation to its settlement, and the recovery of what other processes lost."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.api.generate import Parts
from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.middleware.idempotent_run import Runs
from fairlane.gateway.pipeline.context import Bounds
from fairlane.gateway.pipeline.orphans import Orphans
from fairlane.gateway.pipeline.prepare import Preparer
from fairlane.gateway.pipeline.recovery import LostJobs, Reaper
from fairlane.gateway.pipeline.resume import Earlier
from fairlane.gateway.pipeline.settlement import Settlements
from fairlane.gateway.pipeline.submit import Submitter
from fairlane.gateway.runtime.accounts import SETTLE_GRACE_S, Accounts
from fairlane.gateway.runtime.fleet import Fleet
from fairlane.gateway.runtime.insight import Insight
from fairlane.gateway.runtime.ports import Ports
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas.idempotency import IdempotencyRecords
from fairlane.quotas.responses import KeptResponses

# Worker leases after which no worker will confirm a cancellation any more: the job's worker is dead.
CONFIRM_LEASES = 3.0


class Requests:
    """The stages of a request, and their upkeep."""

    def __init__(
        self,
        setup: Setup,
        stores: Stores,
        accounts: Accounts,
        fleet: Fleet,
        insight: Insight,
        ports: Ports,
        refusal: Callable[[], ApiError | None],
    ) -> None:
        """`refusal` returns the error for new requests, if the gateway shuts down."""
        settings, lanes, telemetry = setup.settings, setup.lanes, setup.telemetry
        section, confirm_s = settings.gateway, CONFIRM_LEASES * settings.lease_s
        quotas, dispatcher = accounts.quotas, fleet.dispatcher
        self.body_room = BodyRoom(
            min(section.max_body_bytes, section.tenant_body_bytes, ports.bodies.most_large_bytes),
            lambda: fleet.cache.longest_context,
            lambda: fleet.cache.takes_media,
        )
        self._grammars = GrammarChecker()
        preparer = Preparer(
            lanes,
            fleet.cache,
            fleet.open_requests,
            refusal,
            self.body_room,
            self._grammars,
            insight.trace,
            fleet.media,
            unknown_fields=section.unknown_fields,
            refuses_images=section.images_in_tool_results == "refuse",
            cuts_output=section.max_tokens_beyond_context == "cut",
            next_name=accounts.pools.next_name,
        )
        self.settlements = Settlements(quotas, dispatcher, telemetry, confirm_s=confirm_s)
        self.submitter = Submitter(
            quotas,
            dispatcher,
            self.settlements,
            telemetry,
            accounts.known_prices,
            quantum=section.quantum_tokens,
            earlier=Earlier(quotas, dispatcher, patience_s=confirm_s),
        )
        self.reaper = Reaper(
            quotas,
            accounts.tenants,
            dispatcher,
            fleet.cache,
            lease_s=section.reservation_lease_s,
            on_reaped=insight.recorder.reaped,
            is_elected=fleet.elections.for_budgets,
        )
        self.lost_jobs = LostJobs(dispatcher)
        self.orphans = Orphans(
            fleet.registry,
            fleet.cache,
            dispatcher,
            fleet.queue,
            lease_s=settings.lease_s,
            grace_ms=round(settings.orphan_grace_s * 1e3),
            is_elected=fleet.elections.for_queues,
        )
        self.generation = Parts(
            bounds=Bounds(
                room=self.body_room,
                body_timeout_s=section.body_timeout_s,
                write_timeout_s=section.write_timeout_s,
                stream_schedule=KeepAliveSchedule(
                    first_s=section.header_hold_s, every_s=section.comment_every_s, keep_alive_s=section.pulse_every_s
                ),
            ),
            preparer=preparer,
            submitter=self.submitter,
            telemetry=telemetry,
            recorder=insight.recorder,
        )
        self.runs = Runs(
            IdempotencyRecords(
                stores.budgets.patient,
                lease_ms=round(section.reservation_lease_s * 1e3),
                most_bytes=int(section.idempotency_kept_bytes),  # a plain int, which the store's client requires
            ),
            refusal,
            grace_s=section.idempotency_grace_s,
            lease_s=section.reservation_lease_s,
            max_answer_bytes=section.idempotency_answer_bytes,
        )
        self.responses = KeptResponses(
            stores.budgets.patient,
            ttl_ms=round(section.responses_kept_s * 1e3),
            most_bytes=int(section.responses_kept_bytes),
            most_response_bytes=int(section.response_bytes),
        )
        telemetry.settlements_in_hand.set_function(lambda: self.settlements.in_hand)
        telemetry.reaped.read = lambda: self.reaper.reaped

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with background(reaper=self.reaper.run(), lost_jobs=self.lost_jobs.run(), orphans=self.orphans.run()):
                yield
        finally:
            await self._grammars.aclose()
            await self.runs.aclose(SETTLE_GRACE_S)
            await self.settlements.aclose(SETTLE_GRACE_S)
