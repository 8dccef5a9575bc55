"""Erases a deleted tenant's ledger, its limit figures, and its values in the audit log."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from fairlane.quotas import keyspace
from fairlane.quotas.audit import AuditRedaction
from fairlane.quotas.erasure.listed import AT_ONCE, DeletedTenant
from fairlane.quotas.ledger import FIRST_LOOK_DAYS
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.tenants import TenantIds

# How far back monthly sums may exist.
_MONTHS = 60


class LedgerErasure:
    """Erases a deleted tenant's ledger, limit figures and audit values. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._audit = AuditRedaction(self._database)
        self._ids = TenantIds(self._database)

    async def erase_entries(self, gone: DeletedTenant) -> int:
        prefix, account = keyspace.of_root(gone.root), gone.account
        stream = f"{prefix}ledger:{account}"
        count = int(await self._database.call("XLEN", stream))
        await self._remove([stream, *(f"{prefix}{kind}:{account}" for kind in ("exported", "rolled", "rolling"))])
        await self._remove([f"{prefix}usage:{account}:{span}" for span in await self._spans(gone)])
        return count

    async def erase_figures(self, gone: DeletedTenant) -> int:
        prefix = keyspace.of_root(gone.root)
        levels = [keyspace.tenant_level(gone.account)]
        levels += [keyspace.model_lane_level(gone.account, model, lane) for model, lane in gone.by]
        months = [span for span in await self._spans(gone) if len(span) == len("2026-11")]
        for level in levels:
            named = [f"{prefix}{kind}:{level}" for kind in ("card", "figures", "minute", "paused")]
            await self._remove([*named, *(f"{prefix}spent:{level}:{month}" for month in months)])
        return len(levels)

    async def redact_audit(self, gone: DeletedTenant) -> int:
        return await self._audit.redact(gone.id, gone.deleted_ms)

    async def forget(self, gone: DeletedTenant) -> bool:
        """Forget the account, and its id unless another tenant has it; return whether the id was forgotten."""
        root, tenant_id = gone.root, gone.id
        claim = await self._ids.claim_of(tenant_id)
        if not await self._database.run("tenant_forget", keyspace.of_root(root), gone.account, claim):
            return False
        await self._database.run("tenant_unclaim", keyspace.TENANTS, tenant_id, root, claim)
        return True

    async def _spans(self, gone: DeletedTenant) -> list[str]:
        today = datetime.fromtimestamp(await self._database.now_ms() / 1e3, UTC).date() + timedelta(days=1)
        first = today - timedelta(days=31 * _MONTHS)
        if gone.created_s:
            first = max(first, datetime.fromtimestamp(gone.created_s, UTC).date() - timedelta(days=1))
        days = min((today - first).days, 2 * FIRST_LOOK_DAYS)
        found = [(today - timedelta(days=number)).isoformat() for number in range(days + 1)]
        return found + _months(first, today)

    async def _remove(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), AT_ONCE):
            await self._database.call("UNLINK", *names[start : start + AT_ONCE])


def _months(first: date, last: date) -> list[str]:
    month, found = first.replace(day=1), list[str]()
    while month <= last:
        found.append(month.isoformat()[:7])
        month = (month + timedelta(days=31)).replace(day=1)
    return found
