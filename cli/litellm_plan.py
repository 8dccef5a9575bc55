"""Plans what to create from LiteLLM's organisations, teams and keys, with a reason for all that cannot be imported.
An import never grants more than before: a key or team with a limit, scope or expiry that cannot be represented is
refused, unless the operator chooses to drop that limit."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from fairlane.cli.client import given
from fairlane.cli.litellm_tables import ALIASES, BUDGETS, KEYS, MODELS, ORGANISATIONS, TEAMS, Row, Tables
from fairlane.cli.printer import Document
from fairlane.quotas.api_keys import ENDPOINT, SHA256
from fairlane.quotas.field_checks import LONGEST_TEXT
from fairlane.quotas.limits import LARGEST
from fairlane.quotas.tenants import TENANT_ID

# LiteLLM's name → ours.
LIMITS = {
    "rpm_limit": "requests_per_minute",
    "tpm_limit": "tokens_per_minute",
    "tpd_limit": "tokens_per_day",
    "max_parallel_requests": "concurrent_requests",
}
BUDGET_COLUMNS = (*LIMITS, "max_budget", "budget_duration", "model_max_budget")
# Duration of a money budget → the calendar window that is closest.
PERIODS = {"1d": "day", "24h": "day"} | dict.fromkeys(("28d", "30d", "31d", "1mo"), "month")
NANO = 10**9
ALL_MODELS, TEAM_MODELS, NO_MODELS = ("all-proxy-models", "*"), "all-team-models", "no-default-models"
ALL_ROUTES = frozenset({"llm_api_routes", "openai_routes", "/*"})
# Its keys are sessions of LiteLLM's console.
CONSOLE_TEAM = "litellm-dashboard"
_ROUTE = re.compile(r"/[a-z0-9_/-]+")


@dataclass(frozen=True, slots=True)
class Money:
    """How to import money budgets: as limits of money by our price list, unless the operator chooses otherwise."""

    # Convert them to this many tokens per unit of currency.
    tokens_per_unit: float | None = None
    ignored: bool = False


class Refused(Exception):
    """Why something cannot be imported."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What to create, parents before their children, and what cannot be imported."""

    tenants: list[Document] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    # Tenant and body of each; the bodies hold hashes of keys.
    keys: list[tuple[str, Document]] = field(default_factory=list, repr=False)
    # Name and reason.
    refused: list[tuple[str, str]] = field(default_factory=list)
    # Name, and what of it is dropped.
    left: list[tuple[str, str]] = field(default_factory=list)


def plan(tables: Tables, *, money: Money, now: datetime, tenant: str | None = None) -> ImportPlan:
    """Plan an import. `tenant`: for keys without a team; None refuses them."""
    found = ImportPlan()
    maker = _Maker(tables, money, now, found)
    parents = {str(row["organization_id"]) for row in tables[TEAMS] if row.get("organization_id")}
    for row in tables[ORGANISATIONS]:
        if row.get("organization_id") in parents:
            maker.tenant(row, str(row["organization_id"]), row.get("organization_alias"))
    made = {each["id"] for each in found.tenants}
    for row in tables[TEAMS]:
        if row.get("team_id") != CONSOLE_TEAM:
            maker.tenant(row, str(row.get("team_id") or ""), row.get("team_alias"), made)
    for row in tables[KEYS]:
        maker.key(row, tenant)
    return found


class _Maker:
    def __init__(self, tables: Tables, money: Money, now: datetime, found: ImportPlan) -> None:
        self._money = money
        self._now = now
        self._found = found
        self._budgets = {row.get("budget_id"): row for row in tables[BUDGETS]}
        self._aliases = {row.get("id"): row.get("aliases") for row in tables[ALIASES]}
        groups = (_object(row.get("model_info")).get("access_groups") for row in tables[MODELS])
        self._groups = {str(name) for listed in groups if isinstance(listed, list) for name in listed}
        self._of_tenants: dict[str, Mapping[str, str]] = {}

    def tenant(self, row: Row, tenant_id: str, alias: object, parents: Iterable[str] | None = None) -> None:
        name = f"{'organisation' if parents is None else 'team'} {alias or tenant_id}"
        with self._refusing(name):
            if not TENANT_ID.fullmatch(tenant_id):
                raise Refused("its id is not a valid tenant id")
            parent = row.get("organization_id") if parents is not None else None
            if parent and parent not in (parents or ()):
                raise Refused("its organisation is not imported")
            aliases = _texts(self._aliases.get(row.get("model_id"))) if row.get("model_id") else {}
            limits, by = self._limits(name, row)
            document = given(
                id=tenant_id,
                name=_name(alias, tenant_id),
                parent=parent or None,
                models=self._models(row, aliases),
                model_aliases=aliases or None,
                limits=limits or None,
                limits_by=by or None,
            )
            self._of_tenants[tenant_id] = aliases
            self._found.tenants.append(document)
            if row.get("blocked"):
                self._found.suspended.append(tenant_id)

    def key(self, row: Row, without_team: str | None) -> None:
        name = f"key {row.get('key_alias') or row.get('key_name') or 'without a name'}"
        with self._refusing(name):
            tenant = self._tenant_of(row, without_team)
            self._check(row)
            limits, by = self._limits(name, row)
            if by:
                raise Refused("it has limits for single models")
            scopes = given(models=self._models(row, self._of_tenants.get(tenant, {})), endpoints=_endpoints(row))
            expires = row.get("expires")
            document = given(
                name=_name(row.get("key_alias"), row.get("key_name") or "litellm"),
                sha256=row["token"],
                expires_at=expires.timestamp() if isinstance(expires, datetime) else None,
                limits=limits or None,
                scopes=scopes or None,
            )
            self._found.keys.append((tenant, document))

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Refused as reason:
            self._found.refused.append((name, str(reason)))

    def _tenant_of(self, row: Row, without_team: str | None) -> str:
        team = row.get("team_id")
        if team == CONSOLE_TEAM:
            raise Refused("it is a session of LiteLLM's console")
        if not team:
            if without_team is None:
                raise Refused("it has no team: name a tenant for such keys with --tenant")
            return without_team
        if team not in self._of_tenants:
            raise Refused("its team is not imported")
        return str(team)

    def _check(self, row: Row) -> None:
        expires = row.get("expires")
        if not isinstance(row.get("token"), str) or not SHA256.fullmatch(row["token"]):
            raise Refused("its stored hash is not a SHA-256")
        if row.get("blocked"):
            raise Refused("it is blocked")
        if expires is not None and not isinstance(expires, datetime):
            raise Refused("its expiry cannot be read")
        if isinstance(expires, datetime) and expires.astimezone(UTC) <= self._now:
            raise Refused("it has expired")
        if _object(row.get("aliases")):
            raise Refused("it has model aliases: move them to its team")
        if row.get("key_type") not in (None, "", "default", "llm_api"):
            raise Refused("it is not a key for models")

    def _models(self, row: Row, aliases: Mapping[str, str]) -> list[str] | None:
        listed = row.get("models") or []
        if row.get("access_group_ids"):
            raise Refused("its models come from access groups")
        if not listed or TEAM_MODELS in listed or any(name in listed for name in ALL_MODELS):
            return None
        named = [str(name) for name in listed if name != NO_MODELS]
        if any("*" in name for name in named):
            raise Refused("its models are a pattern")
        if not self._groups.isdisjoint(named):
            raise Refused("its models come from access groups")
        if any(len(name) > LONGEST_TEXT or not name.isprintable() for name in named):
            raise Refused("the name of a model is invalid here")
        return list(dict.fromkeys(aliases.get(name, name) for name in named))

    def _limits(self, name: str, row: Row) -> tuple[dict[str, int], list[Document]]:
        """Return a row's limits, from its budget where it has none, and those of single models. Raises Refused."""
        budget = self._budgets.get(row.get("budget_id")) or {}
        stated = {
            column: row.get(column) if row.get(column) is not None else budget.get(column) for column in BUDGET_COLUMNS
        }
        limits = {ours: _figure(stated[theirs]) for theirs, ours in LIMITS.items() if stated[theirs] is not None}
        worth = stated["max_budget"]
        is_by_model = bool(_object(stated["model_max_budget"]) or row.get("budget_limits"))
        if (worth is not None or is_by_model) and self._money.ignored:
            self._found.left.append((name, "its money budget"))
        elif is_by_model:
            raise Refused("it has money budgets for single models (--without-money drops them)")
        elif worth is not None:
            period = PERIODS.get(str(stated["budget_duration"]))
            if period is None:
                raise Refused("its money budget is neither daily nor monthly (--without-money drops it)")
            rate = self._money.tokens_per_unit
            limit = f"spend_per_{period}" if rate is None else f"tokens_per_{period}"
            exchanged = _figure(_exchanged(worth, NANO if rate is None else rate))
            limits[limit] = min(exchanged, limits.get(limit, exchanged))
        return limits, _by_model(_object(row.get("metadata")))


def _by_model(metadata: Mapping[str, Any]) -> list[Document]:
    found: dict[str, dict[str, int]] = {}
    for theirs, ours in (("model_rpm_limit", "requests_per_minute"), ("model_tpm_limit", "tokens_per_minute")):
        for model, figure in _object(metadata.get(theirs)).items():
            found.setdefault(str(model), {})[ours] = _figure(figure)
    return [{"model": model, "limits": limits} for model, limits in found.items()]


def _exchanged(worth: object, rate: float) -> float:
    try:
        exact = Decimal(str(worth)) * Decimal(str(rate))
    except InvalidOperation:
        raise Refused("its money budget is not a number") from None
    if not exact.is_finite() or exact != exact.to_integral_value():
        return float(exact)
    return int(exact)


def _figure(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise Refused("one of its limits is out of range")
    return int(value)


def _endpoints(row: Row) -> list[str] | None:
    routes = [str(route) for route in row.get("allowed_routes") or []]
    if not routes or not ALL_ROUTES.isdisjoint(routes):
        return None
    paths = [route if route.startswith("/v1") else f"/v1{route}" for route in routes if _ROUTE.fullmatch(route)]
    if len(paths) < len(routes) or not all(map(ENDPOINT.fullmatch, paths)):
        raise Refused("it allows routes that do not exist here")
    return list(dict.fromkeys(paths))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> dict[str, str]:
    found = _object(value)
    if not all(isinstance(name, str) and name and isinstance(to, str) and to for name, to in found.items()):
        raise Refused("its model aliases are invalid")
    return dict(found)


def _name(alias: object, otherwise: object) -> str:
    return "".join(each for each in str(alias or otherwise) if each.isprintable())[:LONGEST_TEXT]
