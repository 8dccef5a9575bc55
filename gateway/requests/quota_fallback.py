"""What may be admitted while budgets cannot be asked: this gateway's share of the limits and figures last known.

    fail_closed   a request that such a limit counts is refused
    fail_open     it is admitted, and counted
    local_share   it is admitted as far as `what was left of the limit / gateways alive` goes, here

The limit in the strictest mode decides; who has no limit goes by the default. Limits of a single request (its prompt,
its output) need no store, and hold as ever. All is charged to the store when it is back: see gateway.guarded_quotas.

How far a limit in local_share may be exceeded: by what all gateways charged between a gateway's last look at the
figures (LOOK_EVERY_S) and the loss of the store, and never by more than the limit itself in the window in which the
store went; not at all in later windows. For that, gateways that join meanwhile admit nothing: they know no figures.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairlane.quotas.api_keys import ApiKey
from fairlane.quotas.limits import RULES, Limits, LimitsBy, LimitStatus, Scope
from fairlane.quotas.memory_levels import MemoryKey, MemoryTenant
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.store import Ask
from fairlane.quotas.tenants import Tenant
from fairlane.store.trouble import StoreUnavailable

Mode = Literal["fail_closed", "fail_open", "local_share"]
ModelLane = tuple[str, str]
"""As `limits_by` names them; empty: any."""
LOOK_EVERY_S = 30.0
_WINDOWS = {rule.name: rule.window for rule in RULES}
_LONG = ("day", "month")


@dataclass(frozen=True, slots=True)
class Modes:
    """What the settings say."""

    default: Mode = "fail_closed"
    by_limit: Mapping[str, Mode] = field(default_factory=dict)

    @property
    def are_closed(self) -> bool:
        """Nothing is ever admitted unasked."""
        return {self.default, *self.by_limit.values()} == {"fail_closed"}

    def of(self, name: str) -> Mode:
        """Of one limit."""
        return self.by_limit.get(name, self.default)

    def share(self, limits: Limits, left: Mapping[str, int], used: Mapping[str, int], gateways: int) -> Limits:
        """The limits that hold here meanwhile. `left`: of a day's or month's limit, as the store last said, where it
        did; `used`: of that, what this gateway has admitted unasked before."""
        here: dict[str, int] = {}
        for name, figure in limits.as_dict().items():
            if _WINDOWS[name] == "request":
                here[name] = figure
            elif self.of(name) == "local_share":
                here[name] = left.get(name, figure) // gateways + used.get(name, 0)
        return Limits(**here)


@dataclass(frozen=True, slots=True)
class Known:
    """A tenant or a key as the store last had it, and what was left of its days and months."""

    of: Tenant | ApiKey
    left: Mapping[str, int]
    seen_s: float
    left_by: Mapping[ModelLane, Mapping[str, int]] = field(default_factory=dict)
    """Of what a tenant's models and lanes have of their own."""

    @classmethod
    def now(
        cls,
        of: Tenant | ApiKey,
        statuses: list[LimitStatus],
        seen_s: float,
        by: Mapping[ModelLane, list[LimitStatus]] | None = None,
    ) -> "Known":
        """`statuses`: of itself or beside others'. `by`: what a request of each of `long_by` meets."""
        scope: Scope = "tenant" if isinstance(of, Tenant) else "key"
        left_by = {name: _least(found, "model_lane", _remaining) for name, found in (by or {}).items()}
        return cls(of, _least(statuses, scope, _remaining), seen_s, left_by)


def long_by(tenant: Tenant) -> list[ModelLane]:
    """Models and lanes of a tenant that have a day's or month's limit of their own."""
    return [
        (by.model, by.lane) for by in tenant.limits_by if any(_WINDOWS[name] in _LONG for name in by.limits.as_dict())
    ]


class LocalShare:
    """What this gateway admits alone: the twin of the store over its share, and what it knows of tenants and keys."""

    def __init__(self, modes: Modes, twin: MemoryQuotaStore) -> None:
        self.modes = modes
        self.twin = twin
        self.gateways = 1
        """How many share the limits."""
        self.known: dict[tuple[str, str], Known] = {}
        """By what it is, `tenant` or `key`, and its id."""
        self._stored: dict[tuple[str, str], Known] = {}
        """What the twin has of them."""

    async def prepare(self, ask: Ask) -> None:
        """Let the twin know all that counts a request. Raises StoreUnavailable where it may not be admitted unasked."""
        own = self._tenant(ask.tenant)
        chain = [own, *(self._tenant(parent) for parent in own.parents)]
        key = self.known.get(("key", ask.key_id)) if ask.key_id else None
        if ask.key_id and key is None:
            raise StoreUnavailable("nothing is known of the key")
        names = {name for tenant in chain for name in _refusing(tenant)} | set(key.of.limits.as_dict() if key else ())
        windowed = {name for name in names if _WINDOWS[name] != "request"}
        if "fail_closed" in ({self.modes.of(name) for name in windowed} or {self.modes.default}):
            raise StoreUnavailable("a limit that counts the request fails closed")
        for tenant in chain:
            await self._put(ask.root, "tenant", tenant.id)
        if key is not None:
            await self._put(ask.root, "key", ask.key_id)

    def _tenant(self, tenant_id: str) -> Tenant:
        known = self.known.get(("tenant", tenant_id))
        if known is None or not isinstance(known.of, Tenant):
            raise StoreUnavailable("nothing is known of the tenant")
        return known.of

    async def _put(self, root: str, kind: str, name: str) -> None:
        """Once for each look at the store: what was used of a share stays used."""
        known = self.known[kind, name]
        if self._stored.get((kind, name)) is known:
            return
        self._stored[kind, name] = known
        found = known.of
        owner, key_id = (found.id, "") if isinstance(found, Tenant) else (found.tenant, found.id)
        used = _least(await self.twin.statuses(root, owner, key_id), "key" if key_id else "tenant", _used)
        share = self.modes.share(found.limits, known.left, used, self.gateways)
        if isinstance(found, Tenant):
            by = {(each.model, each.lane): await self._share_by(root, known, each) for each in found.limits_by}
            self.twin.put_tenant(root, found.id, share, _memory_tenant(found), by)
        else:
            expires_ms = None if found.expires_at is None else round(found.expires_at * 1e3)
            key = MemoryKey(tenant=found.tenant, expires_ms=expires_ms, revoked=found.state != "active")
            self.twin.put_key(root, found.id, share, key)

    async def _share_by(self, root: str, known: Known, by: LimitsBy) -> Limits:
        """Of what one model, lane or both have of their own."""
        met = await self.twin.statuses(root, known.of.id, model=by.model, lane=by.lane)
        left = known.left_by.get((by.model, by.lane), {})
        return self.modes.share(by.limits, left, _least(met, "model_lane", _used), self.gateways)


def _least(statuses: Iterable[LimitStatus], scope: Scope, figure: Callable[[LimitStatus], int]) -> dict[str, int]:
    """A figure of each day's and month's limit of a scope. Where a model in a lane meets several of one name, the
    least: no more than that is left to it, and what it used itself is within what the wider ones did."""
    found: dict[str, int] = {}
    for status in statuses:
        if status.scope == scope and _WINDOWS[status.name] in _LONG:
            found[status.name] = min(figure(status), found.get(status.name, figure(status)))
    return found


def _remaining(status: LimitStatus) -> int:
    return status.remaining


def _used(status: LimitStatus) -> int:
    return status.used


def _refusing(tenant: Tenant) -> set[str]:
    """Its limits on any level that are not in shadow."""
    levels = [tenant.limits, *(by.limits for by in tenant.limits_by)]
    return {name for limits in levels for name in limits.as_dict()} - set(tenant.shadow)


def _memory_tenant(tenant: Tenant) -> MemoryTenant:
    return MemoryTenant(
        timezone=tenant.timezone,
        shadow=frozenset(tenant.shadow),
        barred="suspended" if tenant.state == "suspended" else None,
        parents=tenant.parents,
    )
