"""All parts of one gateway process, built from its settings, and opened and closed in one place."""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import redis.asyncio
from opentelemetry.sdk.trace import SpanProcessor

from fairlane.gateway.api.store_checks import StoreChecks
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileLimits, FileRecords
from fairlane.gateway.batches.runner import BatchRunner, BatchSettings
from fairlane.gateway.batches.storage import PARTIAL, Drafts, storage
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.admin.blocks import Blocks
from fairlane.gateway.control.admin.history import History
from fairlane.gateway.control.admin.live import LiveHub
from fairlane.gateway.control.admin.overview import Overview
from fairlane.gateway.control.elections import Elections
from fairlane.gateway.control.erasure.build import build_erasure
from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.sessions import Sessions
from fairlane.gateway.control.operators.single_sign_on import SingleSignOn, print_of
from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.errors import ApiError
from fairlane.gateway.fleet import FleetCache, StoredFleet
from fairlane.gateway.http.body_budget import BodyBudget, BodyRoom, Trimmer
from fairlane.gateway.http.connections import Crowd
from fairlane.gateway.http.ports import Member
from fairlane.gateway.http.refusals import Malformed
from fairlane.gateway.identity.auth import Authenticator
from fairlane.gateway.identity.credentials import CredentialReader
from fairlane.gateway.identity.tokens import Tokens
from fairlane.gateway.insight.fleet_metrics.figure_store import FigureStore
from fairlane.gateway.insight.fleet_metrics.teller import Teller
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.insight.request_traces.recorder import TraceRecorder
from fairlane.gateway.insight.request_traces.simulator import Simulator
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.process_metrics import ProcessMetrics
from fairlane.gateway.middleware.idempotent_run import Runs
from fairlane.gateway.middleware.tenant import RefusedRequests
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, Link
from fairlane.gateway.pipeline.guarded_quotas import GuardedQuotas, Modes, RememberedKeys
from fairlane.gateway.pipeline.orphans import Orphans
from fairlane.gateway.pipeline.prepare import Preparer
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.gateway.pipeline.queue_watch import QueueWatch
from fairlane.gateway.pipeline.recovery import LostJobs, Reaper
from fairlane.gateway.pipeline.resume import Earlier
from fairlane.gateway.pipeline.settlement import Settlements
from fairlane.gateway.pipeline.submit import Submitter
from fairlane.gateway.runtime.ledger import exporter_of, roll_up_of
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit
from fairlane.quotas.delegated_keys import DelegatedKeys
from fairlane.quotas.idempotency import IdempotencyRecords
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.prices import PriceStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.responses import KeptResponses
from fairlane.quotas.seals import TenantSeals, pseudonym_key
from fairlane.quotas.store import QuotaStore
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.checks import FaultKind
from fairlane.store.circuit_breaker import RequiredStores
from fairlane.store.connections import Connections, connections
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

log = logging.getLogger(__name__)

# Longest wait at start for the first read of the fleet: a tokenizer takes a good part of a second to load.
FIRST_LOOK_S = 2.0
# Time for settlements after everything else has ended.
SETTLE_GRACE_S = 5.0
# Interval between checks for ledgers to roll up.
ROLL_UP_EVERY_S = 3_600.0
# A job's record outlives the job until a lapsed reservation is certain to be found: one lease for an outage of the
# store, one for the reservation's own lease, and some time for the reaper to run.
KEPT_LEASES, KEPT_MORE_S = 2.0, 5.0
# Worker leases after which no worker will confirm a cancellation any more: the job's worker is dead.
CONFIRM_LEASES = 3.0


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
        self.settings = settings
        self.lanes = settings.lanes.lanes()
        # New with each start: leftovers of an earlier process are the reaper's.
        self.gateway_id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.bodies = BodyBudget(
            most_bytes=section.body_bytes, most_tenant_bytes=section.tenant_body_bytes, freed=Trimmer().freed
        )
        self.refused = RefusedRequests(section.refused_per_minute)
        self.telemetry = Telemetry(processor, sample=section.trace_sample, max_tenants=section.max_tenant_labels)
        self.processes = ProcessMetrics(member, self.telemetry.exposition)
        self._span_processor = processor
        self._draining = False
        # Set after the first read of the fleet, successful or not.
        self._looked = asyncio.Event()
        modes = Modes(section.quota_fallback, section.quota_fallbacks)
        self._connect(modes)
        self._build_accounts()
        admin_tokens = self._build_operators()
        self._build_budgets(modes, slicing)
        self._build_fleet()
        self._build_requests()
        self._build_upkeep()
        self._build_kept()
        self._build_batches()
        self._build_views(admin_tokens)
        # Counts malformed requests on all ports.
        self.malformed = Malformed()
        # Connections of the tenants' port.
        self.crowd = self.new_crowd()
        self._tell_when_asked()

    def _connect(self, modes: Modes) -> None:
        section = self.settings.gateway
        self.store: Connections = connections(
            self.settings.store_url, timeout_s=section.store_timeout_s, limit=section.store_connections
        )
        # The store of tenants, keys and budgets: the same store unless the settings name another.
        self.budgets: Connections = self.store
        if self.settings.quota_store_url != self.settings.store_url:
            self.budgets = connections(
                self.settings.quota_store_url,
                timeout_s=section.store_timeout_s,
                limit=section.store_connections,
                name="quota store",
            )
        needed = {self.store.breaker, self.budgets.breaker} if modes.are_closed else {self.store.breaker}
        self.availability = RequiredStores(tuple(needed))
        self.store_checks = StoreChecks(self.settings.stores, timeout_s=section.store_timeout_s)

    def _build_accounts(self) -> None:
        patient = self.budgets.patient
        self.tenants, self.keys = TenantStore(patient), KeyStore(patient)
        self.ledger, self.audit = Ledger(patient), Audit(patient)
        self.rollup = roll_up_of(self.settings, patient)
        self.prices = PriceStore(patient)
        self.known_prices = KnownPrices(self.prices)

    def _build_operators(self) -> AdminTokens:
        section = self.settings.gateway
        admin_keys, admin_tokens = (
            AdminKeys(self.store.patient, self.settings.admin_key),
            AdminTokens(self.store.patient),
        )
        sessions = Sessions(self.store.patient, admin_keys, admin_tokens, users=print_of(section.sign_in))
        self.single_sign_on: SingleSignOn | None = None
        if section.sign_in.issuer:
            self.single_sign_on = SingleSignOn(self.store.patient, admin_keys, section.sign_in)
        self.operators = Operators(admin_keys, admin_tokens, sessions)
        return admin_tokens

    def _build_budgets(self, modes: Modes, slicing: Slicing) -> None:
        section = self.settings.gateway
        short, patient = self.budgets.short, self.budgets.patient
        lease_ms, ledger_bytes = round(section.reservation_lease_s * 1e3), int(section.ledger.tenant_bytes)
        quotas = RedisQuotaStore(short, lease_ms=lease_ms, ledger_bytes=ledger_bytes, slicing=slicing)
        keys, delegations = KeyStore(short), DelegatedKeys(short)
        # Admits requests during an outage of the budgets' store, if the settings allow it.
        self.guard: GuardedQuotas | None = None
        if not modes.are_closed:
            presence = GatewayPresence(patient, self.gateway_id)
            self.guard = GuardedQuotas(quotas, presence, self.tenants.get, self.keys.get, modes)
        self.quotas: QuotaStore = self.guard or quotas
        self.tokens = Tokens(section.issuers) if section.issuers else None
        remembered = RememberedKeys(keys, delegations)
        self.authenticator = Authenticator(
            remembered if self.guard else keys,
            remembered if self.guard else delegations,
            reader=CredentialReader(
                header=section.tenant_header,
                peers=section.tenant_header_peers,
                takes_tokens=self.tokens is not None,
            ),
            tokens=self.tokens,
        )

    def _build_fleet(self) -> None:
        section = self.settings.gateway
        self.registry = RedisRegistry(self.store.patient)
        self._queues: dict[str, RedisQueue] = {}
        self.open_requests = AllOpenRequests(self.lanes)
        leases_s, stores = (self.settings.lease_s, section.reservation_lease_s), (self.store, self.budgets)
        self.elections = Elections(*stores, self.gateway_id, min(leases_s), lambda: self.fleet_cache.is_fresh)
        is_elected = self.elections.for_queues
        self._watch = QueueWatch(self.gateway_id, self._calls, self.registry, self.open_requests, is_elected=is_elected)
        kept_s = KEPT_LEASES * section.reservation_lease_s + KEPT_MORE_S
        self.dispatcher = Dispatcher(
            self.gateway_id, self._open_link, self.open_requests, kept_s=kept_s, is_elected=is_elected
        )
        self.fleet_cache = FleetCache(
            self.registry, self._watch.look, read=partial(TextModel, raw_prompts=section.completions_special_tokens)
        )
        self.fleet = StoredFleet(self.registry, self.fleet_cache, self._calls)

    def _build_requests(self) -> None:
        section = self.settings.gateway
        self._record_store = record_store = RecordStore(
            self.store.patient, self.gateway_id, most=section.request_records
        )
        self.recorder = RequestRecorder(
            record_store, self.dispatcher, self.gateway_id, enabled=section.request_records > 0
        )
        self.records = Records(record_store, self.recorder)
        self.settlements = Settlements(
            self.quotas,
            self.dispatcher,
            self.telemetry,
            confirm_s=CONFIRM_LEASES * self.settings.lease_s,
        )
        earlier = Earlier(self.quotas, self.dispatcher, patience_s=CONFIRM_LEASES * self.settings.lease_s)
        self.submitter = Submitter(
            self.quotas,
            self.dispatcher,
            self.settlements,
            self.telemetry,
            self.known_prices,
            quantum=section.quantum_tokens,
            earlier=earlier,
        )
        self.body_room = BodyRoom(
            min(section.max_body_bytes, section.tenant_body_bytes, self.bodies.most_large_bytes),
            self.fleet_cache.longest_context,
        )
        self.grammars = GrammarChecker()
        self.traces = TraceFolder(
            self.settings.traces_folder, most_recorded=section.record.max_files * section.processes
        )
        self.trace = TraceRecorder(
            self.traces if section.record.enabled else None,
            partial(pseudonym_key, self.budgets.patient),
            most_bytes=int(section.record.max_bytes),
        )
        self.preparer = Preparer(
            self.lanes,
            self.fleet_cache,
            self.open_requests,
            self.telemetry,
            self.refusal,
            self.body_room,
            self.grammars,
            self.trace,
        )

    def _build_upkeep(self) -> None:
        section = self.settings.gateway
        self.reaper = Reaper(
            self.quotas,
            self.tenants,
            self.dispatcher,
            self.fleet_cache,
            lease_s=section.reservation_lease_s,
            on_reaped=self.recorder.reaped,
            is_elected=self.elections.for_budgets,
        )
        self.lost_jobs = LostJobs(self.dispatcher)
        self.orphans = Orphans(
            self.registry,
            self.fleet_cache,
            self.dispatcher,
            self.open_requests,
            self._calls,
            lease_s=self.settings.lease_s,
            grace_s=self.settings.orphan_grace_s,
            is_elected=self.elections.for_queues,
        )

    def _build_kept(self) -> None:
        section = self.settings.gateway
        patient = self.budgets.patient
        self.runs = Runs(
            IdempotencyRecords(
                patient,
                lease_ms=round(section.reservation_lease_s * 1e3),
                most_bytes=int(section.idempotency_kept_bytes),  # a plain int, which the store's client requires
            ),
            self.refusal,
            grace_s=section.idempotency_grace_s,
            lease_s=section.reservation_lease_s,
            max_answer_bytes=section.idempotency_answer_bytes,
        )
        self.responses = KeptResponses(
            patient,
            ttl_ms=round(section.responses_kept_s * 1e3),
            most_bytes=int(section.responses_kept_bytes),
            most_response_bytes=int(section.response_bytes),
        )
        self.seals = TenantSeals(patient)

    def _build_batches(self) -> None:
        section = self.settings.gateway
        patient = self.budgets.patient
        kept = section.files
        self.storage, self.drafts = storage(self.settings.files_url), Drafts(self.settings.files_folder / PARTIAL)
        self.files = FileRecords(patient, FileLimits(most_files=kept.tenant_files, most_bytes=int(kept.tenant_bytes)))
        self.batches = BatchRecords(patient, most_open=kept.tenant_batches)
        self.batch_runner = BatchRunner(
            self.gateway_id,
            BatchSettings(
                lease_s=kept.batch_lease_s,
                most_batches=kept.batches,
                most_lines=kept.lines,
                most_batch_lines=kept.batch_lines,
                max_answer_bytes=int(section.idempotency_answer_bytes),
            ),
            records=self.batches,
            files=self.files,
            storage=self.storage,
            drafts=self.drafts,
            tenants=self.tenants,
            keys=self.keys,
            earlier=self.runs.records,
            fleet_cache=self.fleet_cache,
            telemetry=self.telemetry,
            room=self.body_room,
            is_stopping=lambda: self._draining,
        )
        self.ledger_exporter = exporter_of(self.settings, patient, self.drafts, self.gateway_id, self.telemetry)

    def _build_views(self, admin_tokens: AdminTokens) -> None:
        self.simulator = Simulator()
        self.figures = FigureStore(self.store.patient)
        self.erasure = build_erasure(
            self.budgets.patient,
            self.gateway_id,
            batches=self.batches,
            files=self.files,
            storage=self.storage,
            records=self._record_store,
            figures=self.figures,
            cached_prompts=self.registry,
            queues=lambda: map(self._calls, sorted(self.fleet_cache.queues)),
            is_store_embedded=self.settings.is_store_embedded,
        )
        self.teller = Teller(
            self.figures, self.telemetry.figures, self.fleet_cache, self.lanes, self.gateway_id, self._jobs_in_hand
        )
        self.overview = Overview(self.fleet_cache, self.figures, self.lanes, clock=lambda: self.teller.now_s)
        self.history = History(self.figures, clock=lambda: self.teller.now_s)
        self.live = LiveHub(self.overview.view, Blocks(self.registry, self.fleet_cache).view, admin_tokens.revision)

    def new_crowd(self) -> Crowd:
        section = self.settings.gateway
        return Crowd(most=section.max_connections, most_of_an_address=section.max_connections_of_an_address)

    def missing(self) -> str:
        """Return the names of the unavailable stores, as a response header lists them."""
        missing = ["quota-store"] if not self.budgets.breaker.is_whole or (self.guard and self.guard.unreported) else []
        if not self.store.breaker.is_whole and self.budgets is not self.store:
            missing.append("queue-store")
        return ", ".join(missing)

    def refusal(self) -> ApiError | None:
        """Return the error for new requests while the gateway shuts down, else None."""
        return _shutting_down() if self._draining else None

    async def drain(self, grace_s: float) -> None:
        """Reject new requests, let running ones finish for `grace_s`, then end the rest with an error."""
        self._draining = True
        await self.live.aclose()
        await self._landed(grace_s)
        left = [job for job in self.dispatcher.jobs.values() if not job.settled]
        if left:
            log.warning("the shutdown ends %d jobs early", len(left))
        for job in left:
            job.fail(_shutting_down())
        await self._landed(SETTLE_GRACE_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all background tasks until the block ends. Waits briefly for the first read of the fleet."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.aclose)
            if self.budgets is not self.store:
                stack.push_async_callback(self.budgets.aclose)
            if self.guard is not None:
                stack.push_async_callback(self.guard.aclose, SETTLE_GRACE_S)
            stack.push_async_callback(self.recorder.aclose)
            stack.push_async_callback(self.dispatcher.aclose)
            stack.push_async_callback(self.settlements.aclose, SETTLE_GRACE_S)
            stack.push_async_callback(self.runs.aclose, SETTLE_GRACE_S)
            stack.push_async_callback(self.grammars.aclose)
            stack.push_async_callback(self._tell_last)
            stack.push_async_callback(self.elections.leave)
            tasks = [
                asyncio.create_task(self.fleet_cache.run(self._fleet_changed), name="directory"),
                asyncio.create_task(self.elections.run(), name="elections"),
                asyncio.create_task(self.store_checks.run(), name="store checks"),
                asyncio.create_task(self.reaper.run(), name="reaper"),
                asyncio.create_task(self.lost_jobs.run(), name="lookout"),
                asyncio.create_task(self.orphans.run(), name="orphans"),
                asyncio.create_task(every(ROLL_UP_EVERY_S, "rolling up ledgers", self.rollup.daily), name="roll-up"),
                asyncio.create_task(self.known_prices.run(), name="prices"),
                asyncio.create_task(self.recorder.run(), name="recorder"),
                asyncio.create_task(self.teller.run(), name="figures"),
                asyncio.create_task(self.erasure.run(), name="erasure"),
            ]
            if self.ledger_exporter is not None:
                tasks.append(asyncio.create_task(self.ledger_exporter.run(), name="ledger export"))
            if self.trace.is_on:
                tasks.append(asyncio.create_task(self.trace.run(), name="trace"))
            if self.guard is not None:
                tasks.append(asyncio.create_task(self.guard.run(), name="guard"))
            if self.single_sign_on is not None:
                tasks.append(asyncio.create_task(self.single_sign_on.keys.run(), name="sign-in keys"))
            if self.tokens is not None:
                tasks += [asyncio.create_task(run, name="issuer keys") for run in self.tokens.upkeep()]
            stack.push_async_callback(_end, tasks)
            await stack.enter_async_context(self.processes.answering())
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_S):
                    await self._looked.wait()
            yield
        if self._span_processor is not None:
            await asyncio.to_thread(self._span_processor.shutdown)

    async def _tell_last(self) -> None:
        with suppress(*STORE_ERRORS):
            await self.teller.tell()

    def _jobs_in_hand(self) -> Iterator[tuple[str, bool, int]]:
        for job in self.dispatcher.jobs.values():
            yield job.request.ask.tenant, job.begun, sum([choice.published for choice in job.choices])

    async def _landed(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.open_requests.idle.wait()

    def _open_link(self, name: str) -> Link:
        reader = self.store.reader()
        return Link(calls=self._calls(name), reader=self._queue(reader, name), close=reader.aclose)

    def _calls(self, name: str) -> RedisQueue:
        if name not in self._queues:
            self._queues[name] = self._queue(self.store.short, name)
        return self._queues[name]

    def _queue(self, client: redis.asyncio.Redis, name: str) -> RedisQueue:
        return RedisQueue(client, name, self.lanes, lease_ms=round(self.settings.lease_s * 1e3))

    def _fleet_changed(self) -> None:
        self._looked.set()
        self.dispatcher.keep_lines(self.fleet_cache.queues)

    def _tell_when_asked(self) -> None:
        """Connect the metrics that are computed when they are read."""
        main, budgets, guard = self.store.breaker, self.budgets.breaker, self.guard
        self.telemetry.fleet.lanes = self.lanes
        self.telemetry.fleet.models = lambda: self.fleet_cache.models.values()
        self.telemetry.store_up.set_function(lambda: main.is_whole)
        self.telemetry.quota_store_up.set_function(lambda: budgets.is_whole)
        self.telemetry.store_openings.read = lambda: sum(each.openings for each in {main, budgets})
        for kind in FaultKind:
            has_fault = partial(self.store_checks.has, kind)
            self.telemetry.store_fault.labels(kind.value).set_function(has_fault)
        self.telemetry.unreported.set_function(lambda: guard.unreported if guard else 0)
        self.telemetry.settlements_in_hand.set_function(lambda: self.settlements.in_hand)
        self.telemetry.connections.set_function(lambda: self.crowd.count)
        self.telemetry.most_connections.set(self.settings.gateway.max_connections)
        self.telemetry.connections_cut.read = lambda: self.crowd.gave_way + self.crowd.turned_away
        self.telemetry.malformed.read = lambda: self.malformed.count
        self.telemetry.batches_open.set_function(lambda: self.batch_runner.open_count)
        self.telemetry.records_dropped.read = lambda: self.recorder.dropped
        self.telemetry.reaped.read = lambda: self.reaper.reaped
        self.telemetry.wasted_tokens.read = lambda: self.dispatcher.wasted_tokens


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            log.error("a background task failed", exc_info=ended)


def _shutting_down() -> ApiError:
    return ApiError("This gateway is shutting down.", "shutting_down", retry_after_s=1.0)
