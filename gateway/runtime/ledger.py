"""Builds the ledger's retention and export from the settings."""

from redis.asyncio import Redis

from fairlane.gateway.batches.storage import Drafts, storage
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.ledger.exporter import LedgerExporter
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.quotas import keyspace
from fairlane.quotas.ledger import LedgerExports, RollUp
from fairlane.store.election import Election

# Rounds without a sign of life after which another gateway takes over.
EXPORT_LEASES = 2.5


def roll_up_of(settings: GatewaySettings, client: Redis) -> RollUp:
    """Return the task that drops and sums up old entries. `client`: of the store of the budgets."""
    section = settings.gateway
    return RollUp(
        client,
        days=section.usage_days,
        months=section.usage_months,
        entry_days=section.ledger.days,
        exports=bool(section.ledger.export_url),
    )


def exporter_of(
    settings: GatewaySettings, client: Redis, drafts: Drafts, gateway_id: str, telemetry: Telemetry
) -> LedgerExporter | None:
    """Return the configured exporter, or None. `client`: of the store of the budgets."""
    section = settings.gateway.ledger
    if not section.export_url:
        return None
    exporter = LedgerExporter(
        LedgerExports(client),
        Election(client, keyspace.EXPORTER, gateway_id, lease_s=EXPORT_LEASES * section.export_every_s),
        storage(section.export_url),
        drafts,
        every_s=section.export_every_s,
        currency=settings.currency,
    )
    telemetry.ledger_exported.read = lambda: exporter.exported
    telemetry.ledger_lost.read = lambda: exporter.lost
    return exporter
