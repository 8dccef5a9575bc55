"""Request records, fleet metrics and request traces of this gateway."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.fleet_metrics.reporter import MetricsReporter
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.insight.request_traces.recorder import TraceRecorder
from fairlane.gateway.runtime.fleet import Fleet
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas.upkeep import pseudonym_key
from fairlane.store.errors import STORE_ERRORS


class Insight:
    """The records, fleet metrics and traces of this gateway's requests."""

    def __init__(self, setup: Setup, stores: Stores, fleet: Fleet) -> None:
        settings, gateway_id, telemetry = setup.settings, setup.gateway_id, setup.telemetry
        section = settings.gateway
        self._fleet = fleet
        self.record_store = RecordStore(stores.main.patient, gateway_id, most=section.request_records)
        enabled = section.request_records > 0
        self.recorder = RequestRecorder(self.record_store, fleet.dispatcher.position, gateway_id, enabled=enabled)
        self.records = Records(self.record_store, self.recorder)
        self.traces = TraceFolder(settings.traces_folder, most_recorded=section.record.max_files * section.processes)
        self.trace = TraceRecorder(
            self.traces if section.record.enabled else None,
            partial(pseudonym_key, stores.budgets.patient),
            most_bytes=int(section.record.max_bytes),
        )
        self.fleet_metrics = FleetMetricsStore(stores.main.patient)
        self.reporter = MetricsReporter(
            self.fleet_metrics, telemetry.fleet_metrics, fleet.cache, setup.lanes, gateway_id, self._jobs_in_hand
        )
        telemetry.records_dropped.read = lambda: self.recorder.dropped

    def _jobs_in_hand(self) -> Iterator[tuple[str, bool, int]]:
        for job in self._fleet.dispatcher.jobs.values():
            yield job.request.ask.tenant, job.begun, sum([choice.published for choice in job.choices])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        trace = self.trace.run() if self.trace.is_on else None
        try:
            async with background(recorder=self.recorder.run(), fleet_metrics=self.reporter.run(), trace=trace):
                yield
        finally:
            with suppress(*STORE_ERRORS):
                await self.reporter.report()  # the counts since the last report
            await self.recorder.aclose()
