"""The ledger's retention and export, built from the settings."""

from redis.asyncio import Redis

from fairlane.gateway.batches.storage import Drafts, storage
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.ledger.exporter import LedgerExporter
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.quotas import keyspace
from fairlane.quotas.ledger import LedgerExports, RollUp
from fairlane.store.election import Election

# Export rounds after which another gateway takes over from a silent one.
EXPORT_LEASES = 2.5


def roll_up_of(settings: GatewaySettings, client: Redis) -> RollUp:
    """Return the roll-up of old entries. `client` is that of the budgets' store."""
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
    """Return the configured exporter, if any. `client` is that of the budgets' store."""
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
