"""The gateway's settings: the shared ones and its own section, read once and checked before anything listens."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from fairlane.gateway.batches.storage import storage
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.ports import PortName
from fairlane.gateway.identity.settings import IssuerSection, check_header, check_issuers
from fairlane.gateway.operators.settings import SignInSection, check_sign_in
from fairlane.gateway.requests.guarded_quotas import Mode
from fairlane.quotas.limits import LIMIT_NAMES
from fairlane.quotas.redis_store import LEDGER_BYTES
from fairlane.scheduler.protocol.settings import (
    ByteSize,
    Count,
    Networks,
    Origins,
    Seconds,
    SettingsError,
    Share,
    SharedSettings,
    load,
    read_document,
)
from fairlane.scheduler.protocol.settings_help import described, process_parser
from fairlane.store import urls

FLAGS = ("host", "port", "redis_url", "data_dir", "log_level")
"""Shared settings that have a flag of their own."""
LEAST_RECORDED_BYTES = 64 * 2**10
MEMBER_FLAG = "--member"
"""Not for operators: what one of several processes is, as JSON."""


class FilesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tenants' files and batches: `FAIRLANE_GATEWAY__FILES__…`."""

    url: str = ""
    """Where files stand: `file:///<folder>`, or a bucket (`s3://…`); empty: `files` in the data directory."""
    max_bytes: ByteSize = ByteSize(200 * 2**20)
    """Of one file: 413 above it."""
    tenant_files: Count = 1_000
    """That one tenant may have, outputs among them."""
    tenant_bytes: ByteSize = ByteSize(10 * 2**30)
    """Of all files of one tenant."""
    upload_timeout_s: Seconds = 900.0
    """From the headers to the end of a file: 408 after it."""
    uploads_at_once: Count = 4
    """Of one tenant, on this process: 429 `concurrency_limit_exceeded` above it."""
    batches: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 16
    """That this process runs at a time; 0: it leaves them to others."""
    tenant_batches: Count = 100
    """Of one tenant that have not ended: 429 `rate_limit_exceeded` above it."""
    lines: Count = 256
    """Of all batches on this process that are under way."""
    batch_lines: Count = 128
    """The same of one batch."""
    batch_lease_s: Annotated[float, msgspec.Meta(ge=1, le=600)] = 15.0
    """A gateway that was silent for so long has lost its batches to another."""


class LedgerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries of the ledger, one for each settled request: `FAIRLANE_GATEWAY__LEDGER__…`."""

    days: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 400
    """How long the store keeps entries. Where they are exported, it keeps those that are not."""
    tenant_bytes: ByteSize = ByteSize(LEDGER_BYTES)
    """Of one tenant's entries in the store, about; beyond it the oldest go, exported or not."""
    export_url: str = ""
    """Where entries are exported: `file:///<folder>` that all gateways share, or a bucket; empty: nowhere."""
    export_every_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    """Seconds between two rounds of the export."""


class RecordSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request traces, without content: `FAIRLANE_GATEWAY__RECORD__…`."""

    enabled: bool = False
    """Record each request that generates: when it came, how large it was, whose it was by a pseudonym."""
    folder: str = ""
    """Where traces stand; empty: `traces` in the data directory."""
    max_bytes: ByteSize = ByteSize(64 * 2**20)
    """Of one file; the next one is begun then."""
    max_files: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 16
    """Recorded files that each process may have; the oldest go first."""


class GatewaySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only a gateway is told: `FAIRLANE_GATEWAY__…`, or `gateway:` in the file."""

    max_body_bytes: ByteSize = ByteSize(8 * 2**20)
    """Body of one request, where its route has no use for a smaller one already: 413 above it."""
    body_bytes: ByteSize = ByteSize(128 * 2**20)
    """Bodies on their way or looked at, of this process: 503 `overloaded_memory` above it."""
    tenant_body_bytes: ByteSize = ByteSize(32 * 2**20)
    """The same of one tenant: 429 `concurrency_limit_exceeded` above it."""
    refused_per_minute: Count = 3_000
    """Requests of one API key that may be wrong, on this process: 429 `rate_limit_exceeded` above it."""
    body_timeout_s: Seconds = 30.0
    """From the headers to the end of the body: 408 after it."""
    max_header_bytes: ByteSize = ByteSize(32 * 2**10)
    max_headers: Count = 128
    header_timeout_s: Seconds = 10.0
    keep_alive_s: Seconds = 75.0
    """How long an idle connection is kept."""
    write_timeout_s: Seconds = 60.0
    """A client that takes nothing for so long is treated as gone."""
    max_connections: Count = 10_000
    max_connections_of_an_address: Count = 1_024
    """On which no key was recognised yet."""
    first_byte_timeout_s: Seconds = 5.0
    """From connecting to the first byte: silence is cut after it."""
    store_timeout_s: Seconds = 0.25
    """One question of a request to the store, from its write; what no request waits for gets four times as long."""
    quota_fallback: Mode = "fail_closed"
    """What becomes of requests while the budgets' store does not answer."""
    quota_fallbacks: dict[str, Mode] = msgspec.field(default_factory=dict)
    """The same for single limits, by name."""
    store_connections: Count = 64
    """Connections to the store that requests share."""
    quantum_tokens: Count = 64
    """Output tokens per choice that a request of a progressive tenant holds at a time."""
    reservation_lease_s: Annotated[float, msgspec.Meta(ge=1, le=600)] = 30.0
    """What a gateway reserved and neither settles nor renews for so long is settled by any gateway's reaper."""
    header_hold_s: Seconds = 2.0
    """A stream's headers wait so long for its first token, so that an early refusal keeps its status."""
    comment_every_s: Seconds = 5.0
    """How often a waiting stream tells its place in the queue, where it was asked to."""
    pulse_every_s: Seconds = 10.0
    """A stream that is silent for so long sends a bare newline, which keeps its connection alive."""
    completions_special_tokens: bool = True
    """A text prompt of `/v1/completions` is raw: a control token's name in it is that token, for callers that write the
    model's own format. False: it is text, as in a chat's contents it always is."""
    idempotency_grace_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 60.0
    """A request with an `Idempotency-Key` goes on for so long after its client left: a retry joins it."""
    idempotency_answer_bytes: ByteSize = ByteSize(4 * 2**20)
    """Of an answer that can be replayed; of a longer one only that it ended is kept."""
    idempotency_kept_bytes: ByteSize = ByteSize(64 * 2**20)
    """Of all answers of one API key that the store keeps, compressed; beyond it the oldest are no longer replayed."""
    cors_origins: Origins = Origins()
    """Web pages of these origins may call the tenants' port from a browser; none: no page may."""
    responses_kept_s: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 3_600.0
    """How long a response of `/v1/responses` is kept, unless it asked for `store: false`; 0: none is."""
    response_bytes: ByteSize = ByteSize(4 * 2**20)
    """Of a response that is kept, with the conversation that it answers; a longer one is not."""
    responses_kept_bytes: ByteSize = ByteSize(64 * 2**20)
    """Of all responses of one tenant that the store keeps, compressed; beyond it the oldest go."""
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """After SIGTERM, streams may finish for so long; then they end with an error that says so."""
    usage_days: Annotated[int, msgspec.Meta(ge=31, le=10_000)] = 400
    """How long the ledger's sums are kept by day; older days are added up into months."""
    usage_months: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 60
    """How long months are kept after that."""
    trace_sample: Share = 1.0
    """Share of requests without a caller's trace that are traced, where traces go anywhere."""
    request_records: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10_000
    """Requests that have ended and can still be looked up, of all gateways together; 0: none, and none that runs."""
    max_tenant_labels: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    """Tenants that metrics name, the others together as `other`; 0: metrics tell no tenant from another."""
    issuers: tuple[IssuerSection, ...] = ()
    """Identity providers whose tokens are taken beside our keys."""
    sign_in: SignInSection = SignInSection()
    """The identity provider by which operators sign in to the console."""
    tenant_header: str = "x-fairlane-tenant"
    """In which a gateway in front names the tenant…"""
    tenant_header_peers: Networks = Networks()
    """…where it connects from one of these networks, with a key that may act as that tenant."""
    files: FilesSection = FilesSection()
    ledger: LedgerSection = LedgerSection()
    record: RecordSection = RecordSection()
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Gateways behind the one port, each with all of the limits above."""


class GatewaySettings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a gateway process is told."""

    gateway: GatewaySection = GatewaySection()

    @property
    def store_url(self) -> str:
        """Where the store is. Raises SettingsError where none was named."""
        if self.redis_url is None:
            raise SettingsError("setting redis_url: a gateway needs a store; set FAIRLANE_REDIS_URL")
        return self.redis_url

    @property
    def stores(self) -> dict[str, str]:
        """The URL of each store by its name in logs. Raises SettingsError as `store_url`."""
        if self.quota_store_url == self.store_url:
            return {"store": self.store_url}
        return {"store": self.store_url, "quota store": self.quota_store_url}

    @property
    def quota_store_url(self) -> str:
        """Where the budgets are. Raises SettingsError as `store_url`."""
        return self.quota_redis_url or self.store_url

    @property
    def is_store_embedded(self) -> bool:
        """The budgets are in the store that `fairlane serve` runs for this data directory alone."""
        return self.quota_store_url == urls.embedded_url(self.data_dir)

    @property
    def files_folder(self) -> Path:
        """Of this machine's own: files that are not finished yet, and all of them unless a URL says where."""
        return Path(self.data_dir).absolute() / "files"

    @property
    def traces_folder(self) -> Path:
        """Of recorded and uploaded request traces."""
        return Path(self.gateway.record.folder or Path(self.data_dir) / "traces").absolute()

    @property
    def files_url(self) -> str:
        """Where tenants' files stand."""
        return self.gateway.files.url or self.files_folder.as_uri()

    @property
    def http_limits(self) -> HttpLimits:
        """What one connection may do before its request is whole."""
        return HttpLimits(
            max_header_bytes=self.gateway.max_header_bytes,
            max_headers=self.gateway.max_headers,
            first_byte_timeout_s=self.gateway.first_byte_timeout_s,
            header_timeout_s=self.gateway.header_timeout_s,
            write_timeout_s=self.gateway.write_timeout_s,
        )


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the processes behind a port, as `gateway.processes` tells it what it is."""

    index: int
    count: int
    """How many there are, from index 0 on."""
    sockets: dict[PortName, tuple[int, ...]]
    """File descriptors that listen on each port, the same for all processes."""
    fleet_cache: str
    """Where they reach each other."""

    @property
    def name(self) -> str:
        """In logs."""
        return f"gateway-{self.index}"

    def path(self, index: int) -> Path:
        """Where one of them is asked for its metrics."""
        return Path(self.fleet_cache) / f"{index}.sock"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the gateway process was called with."""

    config: str | None
    check_only: bool
    member: Member | None
    flags: Mapping[str, object]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Read the arguments. Ends the process with status 2 where they are wrong, as argparse does."""
    parser = process_parser("fairlane gateway", "Run one Fairlane gateway.", described(GatewaySettings, FLAGS))
    parser.add_argument(MEMBER_FLAG, type=partial(msgspec.json.decode, type=Member), help=argparse.SUPPRESS)
    found = vars(parser.parse_args(arguments))
    flags = {name: found[name] for name in FLAGS}
    return CommandLine(found["config"], found["check_config"], found["member"], flags)


def read(line: CommandLine, environ: Mapping[str, str]) -> GatewaySettings:
    """Merge file, environment and flags. Raises SettingsError naming the first bad setting."""
    document = read_document(line.config, environ)
    settings = load(GatewaySettings, document=document, environ=environ, flags=line.flags)
    for name, url in (("redis_url", settings.store_url), ("quota_redis_url", settings.quota_store_url)):
        try:
            urls.check(url)
        except ValueError as error:
            raise SettingsError(f"setting {name}: {error}") from None
    try:
        storage(settings.files_url)
    except ValueError as error:
        raise SettingsError(f"setting gateway.files.url: {error}") from None
    if settings.gateway.ledger.export_url:
        try:
            storage(settings.gateway.ledger.export_url)
        except ValueError as error:
            raise SettingsError(f"setting gateway.ledger.export_url: {error}") from None
    for limit in settings.gateway.quota_fallbacks.keys() - set(LIMIT_NAMES):
        raise SettingsError(f"setting gateway.quota_fallbacks.{limit}: no such limit")
    if settings.gateway.record.max_bytes < LEAST_RECORDED_BYTES:
        raise SettingsError(f"setting gateway.record.max_bytes: must be at least {LEAST_RECORDED_BYTES} bytes")
    check_issuers(settings.gateway.issuers)
    check_sign_in(settings.gateway.sign_in)
    check_header(settings.gateway.tenant_header)
    return settings
