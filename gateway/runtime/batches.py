"""Files, batches, and the exports of the ledger and the audit log, which share the storage."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.runner import BatchRunner
from fairlane.gateway.batches.storage import PARTIAL, Drafts, storage
from fairlane.gateway.control.admin.usage import audit_lines, ledger_lines
from fairlane.gateway.control.ledger.exporter import Exporter
from fairlane.gateway.runtime.accounts import Accounts
from fairlane.gateway.runtime.fleet import Fleet
from fairlane.gateway.runtime.requests import Requests
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas import keyspace
from fairlane.quotas.ledger import Ledger
from fairlane.store.election import Election

# Missed rounds after which another gateway takes over.
EXPORT_LEASES = 2.5


class Batches:
    """The tenants' files and batches, and the runner of those that this gateway has taken."""

    def __init__(
        self,
        setup: Setup,
        stores: Stores,
        accounts: Accounts,
        fleet: Fleet,
        requests: Requests,
        is_stopping: Callable[[], bool],
    ) -> None:
        settings, gateway_id, telemetry = setup.settings, setup.gateway_id, setup.telemetry
        patient, section = stores.budgets.patient, settings.gateway
        kept = section.files
        self.storage, self.drafts = storage(settings.files_url), Drafts(settings.files_folder / PARTIAL)
        self.files = FileRecords(patient, most_files=kept.tenant_files, most_bytes=int(kept.tenant_bytes))
        self.records = BatchRecords(patient, most_open=kept.tenant_batches)
        host = BatchHost(
            owner=gateway_id,
            lease_s=kept.batch_lease_s,
            most_batches=kept.batches,
            most_lines=kept.lines,
            most_batch_lines=kept.batch_lines,
            max_answer_bytes=int(section.idempotency_answer_bytes),
            records=self.records,
            files=self.files,
            storage=self.storage,
            drafts=self.drafts,
            tenants=accounts.tenants,
            keys=accounts.keys,
            earlier=requests.runs.records,
            fleet_cache=fleet.cache,
            telemetry=telemetry,
            room=requests.body_room,
            is_stopping=is_stopping,
        )
        self.runner = BatchRunner(host)
        telemetry.batches_open.set_function(lambda: self.runner.open_count)
        self._exports: dict[str, Exporter[Any]] = {}
        every_s = section.ledger.export_every_s

        def election(key: str) -> Election:
            return Election(patient, key, gateway_id, lease_s=EXPORT_LEASES * every_s)

        if section.ledger.export_url:
            self._exports["ledger_export"] = exporter = Exporter(
                Ledger(patient),
                election(keyspace.EXPORTER),
                storage(section.ledger.export_url),
                self.drafts,
                every_s=every_s,
                lines=lambda account, entries: ledger_lines(account, settings.currency, entries),
            )
            telemetry.ledger_exported.read = lambda: exporter.exported
            telemetry.ledger_lost.read = lambda: exporter.lost
        if section.audit_export_url:
            self._exports["audit_export"] = Exporter(
                accounts.audit,
                election(keyspace.AUDIT_EXPORTER),
                storage(section.audit_export_url),
                self.drafts,
                every_s=every_s,
                lines=audit_lines,
                name="audit log",
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with background(**{name: each.run() for name, each in self._exports.items()}):
            yield
