"""One authorised call of an operator, and the objects that its handler uses.

Entity tags prevent lost updates: a change applies only to the version that its author saw (RFC 9110, 13.1.1)."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.control.admin.history import History
from fairlane.gateway.control.admin.live import LiveHub
from fairlane.gateway.control.admin.overview import Overview
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.operators.operator import Operator
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.single_sign_on import SingleSignOn
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.fleet import StoredFleet
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_traces.files import TraceFolder, TraceReads
from fairlane.gateway.insight.request_traces.simulator import Simulator
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.prices import PriceStore
from fairlane.quotas.store import QuotaStore
from fairlane.quotas.tenants import TenantStore, VersionConflict
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

IF_MATCH = "if-match"
_TAG = r'(?:W/)?"[!#-~]*"'
TAGS = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
LONGEST_TAGS = 1_000
TRIES = 10
NOT_CACHED = {"cache-control": "no-store"}

Document = Mapping[str, Any]
Done = TypeVar("Done")


def if_match(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str] | None:
    """Return the tags of `If-Match`; None: any. A weak tag matches nothing. Raise ApiError for a malformed header."""
    given = [value.decode("latin-1").strip() for name, value in headers if name == IF_MATCH.encode()]
    if not given or given == ["*"]:
        return None
    text = ", ".join(given)
    if len(text) > LONGEST_TAGS or not TAGS.fullmatch(text):
        raise invalid(IF_MATCH, '`If-Match` must be `*` or a list of entity tags as `ETag` returned them, such as "7".')
    return frozenset(re.findall(_TAG, text))


def of_version(version: int) -> str:
    """Return the entity tag of a version number."""
    return f'"{version}"'


async def _reported(_: str) -> None:
    """Nothing waits to be reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """The dependencies of the admin API."""

    operators: Operators
    # None: operators sign in with a key or token only.
    single_sign_on: SingleSignOn | None
    tenants: TenantStore
    keys: KeyStore
    budgets: QuotaStore
    ledger: Ledger
    # Writes what this gateway has not reported yet of a root organisation; call it before reading the ledger.
    report: Callable[[str], Awaitable[None]] = _reported
    audit: Audit
    fleet: StoredFleet
    lanes: Mapping[LaneName, Lane]
    # An output limit beyond the context is cut.
    cuts_output: bool
    batches: BatchRecords
    records: Records
    # Requests that this gateway has admitted.
    open_requests: AllOpenRequests
    overview: Overview
    traces: TraceFolder
    trace_reads: TraceReads = field(default_factory=TraceReads)
    simulator: Simulator = field(default_factory=Simulator)
    live: LiveHub
    history: History
    prices: PriceStore
    known_prices: KnownPrices
    currency: str
    # Other tools that the console links to: `grafana`, and `trace` with the place of a trace's id as `{trace_id}`.
    links: Mapping[str, str] = field(default_factory=dict)
    erasure: Erasure
    # Call it before answering a call that may have changed a tenant or key.
    changed: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Call:
    """One authorised call of an operator."""

    parts: AdminParts
    request: Request
    operator: Operator
    # The tags that the caller accepts of the object to be changed; None: any.
    expected: frozenset[str] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Mapping[str, str]:
        return self.request.path_params

    @property
    def address(self) -> str:
        return address_of(self.request)

    async def check(self) -> None:
        """Raise ApiError once the operator's rights have ended. Long responses call it repeatedly."""
        await self.parts.operators.still(self.request.scope)

    def tag(self, version: int) -> None:
        self.headers["etag"] = of_version(version)

    def expect(self, version: int) -> None:
        """Raise ApiError if the caller has not seen this version of the object."""
        if self.expected is not None and of_version(version) not in self.expected:
            message = (
                "The object has changed since you read it: read it again, and send `If-Match` with its new `ETag`."
            )
            raise ApiError(message, "precondition_failed", IF_MATCH)

    async def record(self, note: Note) -> None:
        """Append an action that has already happened to the audit log. Raise StoreUnavailable."""
        try:
            await self.parts.audit.append(note)
        except STORE_ERRORS:
            log.error("audit entry not written: action=%s target=%s address=%s", note.action, note.target, self.address)
            raise

    def note(self, action: str, target: str, before: Document | None, after: Document | None) -> Note:
        """Return an audit note of the fields that changed, without the version. Never pass a view that contains
        a key's secret."""
        actor, address, changes = self.operator.actor, self.address, changes_of(before, after)
        return Note(actor=actor, address=address, action=action, target=target, changes=changes)


def address_of(request: Request) -> str:
    """Return the caller's address, or an empty string if it is not known."""
    return request.client.host if request.client is not None else ""


def changes_of(before: Document | None, after: Document | None) -> Mapping[str, object]:
    """Return the changes of an audit note, without versions."""
    return {"before": _unversioned(before), "after": _unversioned(after)}


def _unversioned(document: Document | None) -> Document | None:
    return document and {name: value for name, value in document.items() if name != "version"}


def difference(before: Document, after: Document) -> tuple[Document, Document]:
    """Return the fields in which two views differ, before and after."""
    names = [name for name in after if after[name] != before[name]]
    return {name: before[name] for name in names}, {name: after[name] for name in names}


async def retried(attempt: Callable[[], Awaitable[Done]]) -> Done:
    """Read and change an object, and retry if others changed it in between. Raise VersionConflict."""
    for _ in range(TRIES - 1):
        with suppress(VersionConflict):
            return await attempt()
    return await attempt()
