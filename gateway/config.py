"""The gateway's settings: the shared ones and its own section, read once and checked before it listens."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.batches.storage import storage
from fairlane.gateway.control.operators.settings import SignInSection, check_sign_in
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.ports import Member
from fairlane.gateway.identity.settings import IssuerSection, check_header, check_issuers
from fairlane.gateway.media.reader import MediaLimits
from fairlane.gateway.model_text.variable_names import RESERVED_VARIABLES, USUAL_VARIABLES
from fairlane.gateway.pipeline.guarded_quotas import Mode
from fairlane.quotas.limits import LIMIT_NAMES
from fairlane.quotas.redis_store import LEDGER_BYTES
from fairlane.scheduler.protocol.settings import (
    ByteSize,
    Count,
    Hosts,
    Names,
    Networks,
    Origins,
    Port,
    RootPath,
    Seconds,
    Share,
    SharedSettings,
    load,
    read_document,
)
from fairlane.scheduler.protocol.settings_help import described, process_parser
from fairlane.store import urls

# Shared settings that have a command-line flag.
FLAGS = ("host", "port", "redis_url", "data_dir", "log_level")
# A page that browsers open; https or http.
LinkUrl = Annotated[str, msgspec.Meta(max_length=1_000, pattern=r"^(https?://\S+)?$")]
LEAST_RECORDED_BYTES = 64 * 2**10
# Internal: identifies one of several processes, as JSON.
MEMBER_FLAG = "--member"


class FilesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tenants' files and batches: `FAIRLANE_GATEWAY__FILES__…`."""

    # Where files are stored: `file:///<folder>`, or a bucket (`s3://…`). Empty: `files` in the data directory.
    url: str = ""
    # Size of one file; larger ones get 413.
    max_bytes: ByteSize = ByteSize(200 * 2**20)
    # Files of one tenant, outputs included.
    tenant_files: Count = 1_000
    # All files of one tenant.
    tenant_bytes: ByteSize = ByteSize(10 * 2**30)
    # Time from the headers to the end of a file; then 408.
    upload_timeout_s: Seconds = 900.0
    # Concurrent uploads of one tenant, per process; more get 429 `concurrency_limit_exceeded`.
    uploads_at_once: Count = 4
    # Batches that this process runs at a time; 0 leaves them to other processes.
    batches: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 16
    # Unfinished batches of one tenant; more get 429 `rate_limit_exceeded`.
    tenant_batches: Count = 100
    # Lines in progress, of all batches on this process.
    lines: Count = 256
    # Lines in progress, of one batch.
    batch_lines: Count = 128
    # A gateway that does not renew its lease for this long loses its batches to another one.
    batch_lease_s: Annotated[float, msgspec.Meta(ge=1, le=600)] = 15.0


class LedgerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger, with one entry for each settled request: `FAIRLANE_GATEWAY__LEDGER__…`."""

    # How long the store keeps entries. With an export, it also keeps entries until they are exported.
    days: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 400
    # Approximate size of one tenant's entries in the store. Above it the oldest are dropped, exported or not.
    tenant_bytes: ByteSize = ByteSize(LEDGER_BYTES)
    # Where entries are exported: `file:///<folder>` shared by all gateways, or a bucket. Empty: no export.
    export_url: str = ""
    export_every_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0


class RecordSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request traces, without content: `FAIRLANE_GATEWAY__RECORD__…`."""

    # Record the arrival time, size and pseudonymous tenant of each generation request.
    enabled: bool = False
    # Where traces are stored. Empty: `traces` in the data directory.
    folder: str = ""
    # One file; the next record starts a new one.
    max_bytes: ByteSize = ByteSize(64 * 2**20)
    # Recorded files of each process; the oldest are deleted first.
    max_files: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 16


class GatewaySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gateway's own settings: `FAIRLANE_GATEWAY__…`, or `gateway:` in the file."""

    # Body of one request, where its route has no lower limit; larger ones get 413.
    max_body_bytes: ByteSize = ByteSize(8 * 2**20)
    # Bodies received or parsed by this process at a time; more get 503 `overloaded_memory`.
    body_bytes: ByteSize = ByteSize(128 * 2**20)
    # Bodies of one tenant at a time; more get 429 `concurrency_limit_exceeded`.
    tenant_body_bytes: ByteSize = ByteSize(32 * 2**20)
    # Invalid requests of one API key, per process; more get 429 `rate_limit_exceeded`.
    refused_per_minute: Count = 3_000
    # Time from the headers to the end of the body; then 408.
    body_timeout_s: Seconds = 30.0
    max_header_bytes: ByteSize = ByteSize(32 * 2**10)
    max_headers: Count = 128
    header_timeout_s: Seconds = 10.0
    # Time until an idle connection is closed.
    keep_alive_s: Seconds = 75.0
    # A client that reads nothing for this long is disconnected.
    write_timeout_s: Seconds = 60.0
    max_connections: Count = 10_000
    # Connections of one address that have not sent a valid key yet.
    max_connections_of_an_address: Count = 1_024
    # Time from connect to the first byte; then the connection is closed.
    first_byte_timeout_s: Seconds = 5.0
    # Timeout of one store command of a request. Background work gets four times as long.
    store_timeout_s: Seconds = 0.25
    # How requests are admitted while the budgets' store does not answer.
    quota_fallback: Mode = "fail_closed"
    # Overrides of `quota_fallback` by limit name.
    quota_fallbacks: dict[str, Mode] = msgspec.field(default_factory=dict)
    # Store connections shared by all requests.
    store_connections: Count = 64
    # Output tokens per choice that are reserved at a time, for tenants with progressive reservations.
    quantum_tokens: Count = 128
    # A reservation that is neither settled nor renewed for this long is settled by any gateway's reaper.
    reservation_lease_s: Annotated[float, msgspec.Meta(ge=1, le=600)] = 30.0
    # A stream's headers wait this long for its first token, so that an early error keeps its status.
    header_hold_s: Seconds = 2.0
    # How often a waiting stream reports its place in the queue, if the request asks for it.
    comment_every_s: Seconds = 5.0
    # A stream that is silent for this long sends a bare newline to keep its connection alive.
    pulse_every_s: Seconds = 10.0
    # True: the name of a control token in a text prompt of `/v1/completions` is that token, for callers that write the
    # model's own format. False: it is plain text, as it always is in the contents of a chat.
    completions_special_tokens: bool = True
    # Fields of a request that Fairlane does not know: ignored and named in `x-fairlane-ignored`, or refused with 400.
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    # Images, files and other media in the results of tools: replaced by a text that says so, or refused with 400.
    images_in_tool_results: Literal["replace", "refuse"] = "replace"
    # Hosts from which images and sounds of requests may be fetched. Empty: requests must contain them.
    media_hosts: Hosts = Hosts()
    # Private networks in which these hosts may be; `*` alone does not allow them.
    media_networks: Networks = Networks()
    # One image or sound, decoded from base64.
    max_media_bytes: ByteSize = ByteSize(20 * 2**20)
    # Images and sounds of one request.
    max_media: Count = 20
    # Width times height of one image.
    max_media_pixels: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 50_000_000
    # Fetching of one image or sound, redirects included.
    media_timeout_s: Seconds = 10.0
    # A `max_tokens` beyond the context, with a prompt that fits: cut to what is left, or refused with 400.
    max_tokens_beyond_context: Literal["cut", "refuse"] = "cut"
    # Variables of chat templates that a request may set with `chat_template_kwargs`.
    chat_template_kwargs: Names = USUAL_VARIABLES
    # The field of a chat's answers and stream chunks that carries the model's reasoning.
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    # A request with an `Idempotency-Key` continues for this long after its client disconnected, so that a retry can
    # join it.
    idempotency_grace_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 60.0
    # Largest response that can be replayed. For a larger one only its completion is recorded.
    idempotency_answer_bytes: ByteSize = ByteSize(4 * 2**20)
    # Responses of one API key that the store keeps, compressed. Above it the oldest can no longer be replayed.
    idempotency_kept_bytes: ByteSize = ByteSize(64 * 2**20)
    # Prefix of all paths, such as `/llm`.
    root_path: RootPath | None = None
    # Origins whose web pages may call the tenants' port from a browser.
    cors_origins: Origins = Origins()
    # How long responses are kept, unless the request has `store: false`, and conversations after their last change; 0
    # keeps none.
    responses_kept_s: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 3_600.0
    # Largest response that is kept, with the conversation before it, and largest conversation.
    response_bytes: ByteSize = ByteSize(4 * 2**20)
    # Kept responses and conversations of one tenant, compressed. Above it the oldest are deleted.
    responses_kept_bytes: ByteSize = ByteSize(64 * 2**20)
    # After SIGTERM, streams may continue for this long; then they end with an error.
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    # Where entries of the audit log are exported, as those of the ledger. Empty: no export.
    audit_export_url: str = ""
    # How long the ledger's sums are kept by day. Older days are summed into months.
    usage_days: Annotated[int, msgspec.Meta(ge=31, le=10_000)] = 400
    # How long the sums by month are kept after that.
    usage_months: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 60
    # Share of requests without a caller's trace that are traced, if traces are exported.
    trace_sample: Share = 1.0
    # A trace in a tracing tool, for links of the console; `{trace_id}` stands for its id. Empty: no links.
    trace_url: LinkUrl = ""
    # A Grafana dashboard, for links of the console. Empty: no links.
    grafana_url: LinkUrl = ""
    # Finished requests that can be looked up, of all gateways together; 0 disables records of running requests too.
    request_records: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10_000
    # Tenants with a metric label of their own; all others share `other`. 0: metrics have no tenant label.
    max_tenant_labels: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    # Identity providers whose tokens are accepted in addition to API keys.
    issuers: tuple[IssuerSection, ...] = ()
    # The identity provider for operators who sign in to the console.
    sign_in: SignInSection = SignInSection()
    # The header in which a gateway in front names the tenant.
    tenant_header: str = "x-fairlane-tenant"
    # Networks from which `tenant_header` is accepted, with a key that may act for that tenant.
    tenant_header_peers: Networks = Networks()
    files: FilesSection = FilesSection()
    ledger: LedgerSection = LedgerSection()
    record: RecordSection = RecordSection()
    # Gateway processes behind one port, each with all of the limits above.
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    # Address at which workers reach this gateway with their tokens: of this host or pod, or the folder of a Unix socket
    # if all workers are on this machine.
    link_host: str = "127.0.0.1"
    # Port for that; further processes use the ports after it. 0: any free one.
    link_port: Port = 0

    @property
    def links(self) -> dict[str, str]:
        """The console's links to other tools, by name."""
        known = {"trace": self.trace_url, "grafana": self.grafana_url}
        return {name: url for name, url in known.items() if url}


class GatewaySettings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a gateway process."""

    gateway: GatewaySection = GatewaySection()

    @property
    def store_url(self) -> str:
        """The URL of the store. Raises SettingsError if none is set."""
        if self.redis_url is None:
            raise SettingsError("setting redis_url: a gateway needs a store; set FAIRLANE_REDIS_URL")
        return self.redis_url

    @property
    def stores(self) -> dict[str, str]:
        """The URL of each store, by its name in logs. Raises SettingsError as `store_url` does."""
        if self.quota_store_url == self.store_url:
            return {"store": self.store_url}
        return {"store": self.store_url, "quota store": self.quota_store_url}

    @property
    def quota_store_url(self) -> str:
        return self.quota_redis_url or self.store_url

    @property
    def is_store_embedded(self) -> bool:
        """True if the budgets are in the store that `fairlane serve` runs for this data directory."""
        return self.quota_store_url == urls.embedded_url(self.data_dir)

    @property
    def files_folder(self) -> Path:
        """The local folder of unfinished files, and of all files unless `files.url` is set."""
        return Path(self.data_dir).absolute() / "files"

    @property
    def traces_folder(self) -> Path:
        return Path(self.gateway.record.folder or Path(self.data_dir) / "traces").absolute()

    @property
    def files_url(self) -> str:
        return self.gateway.files.url or self.files_folder.as_uri()

    @property
    def http_limits(self) -> HttpLimits:
        return HttpLimits(
            max_header_bytes=self.gateway.max_header_bytes,
            max_headers=self.gateway.max_headers,
            first_byte_timeout_s=self.gateway.first_byte_timeout_s,
            header_timeout_s=self.gateway.header_timeout_s,
            write_timeout_s=self.gateway.write_timeout_s,
        )

    @property
    def media_limits(self) -> MediaLimits:
        return MediaLimits(
            hosts=self.gateway.media_hosts,
            networks=self.gateway.media_networks,
            max_bytes=self.gateway.max_media_bytes,
            max_media=self.gateway.max_media,
            max_pixels=self.gateway.max_media_pixels,
            timeout_s=self.gateway.media_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The parsed command line of the gateway process."""

    config: str | None
    check_only: bool
    member: Member | None
    flags: Mapping[str, object]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Parse the arguments. Exits with status 2 if they are invalid, as argparse does."""
    parser = process_parser("fairlane gateway", "Run one Fairlane gateway.", described(GatewaySettings, FLAGS))
    parser.add_argument(MEMBER_FLAG, type=partial(msgspec.json.decode, type=Member), help=argparse.SUPPRESS)
    found = vars(parser.parse_args(arguments))
    flags = {name: found[name] for name in FLAGS}
    return CommandLine(found["config"], found["check_config"], found["member"], flags)


def read(line: CommandLine, environ: Mapping[str, str]) -> GatewaySettings:
    """Merge file, environment and flags. Raises SettingsError naming the first invalid setting."""
    document = read_document(line.config, environ)
    settings = load(GatewaySettings, document=document, environ=environ, flags=line.flags)
    for name, url, check in (
        ("redis_url", settings.store_url, urls.check),
        ("quota_redis_url", settings.quota_store_url, urls.check),
        ("gateway.files.url", settings.files_url, storage),
        ("gateway.ledger.export_url", settings.gateway.ledger.export_url or settings.files_url, storage),
        ("gateway.audit_export_url", settings.gateway.audit_export_url or settings.files_url, storage),
    ):
        try:
            check(url)
        except ValueError as error:
            raise SettingsError(f"setting {name}: {error}") from None
    for limit in settings.gateway.quota_fallbacks.keys() - set(LIMIT_NAMES):
        raise SettingsError(f"setting gateway.quota_fallbacks.{limit}: no such limit")
    if settings.gateway.record.max_bytes < LEAST_RECORDED_BYTES:
        raise SettingsError(f"setting gateway.record.max_bytes: must be at least {LEAST_RECORDED_BYTES} bytes")
    for name in RESERVED_VARIABLES.intersection(settings.gateway.chat_template_kwargs):
        raise SettingsError(f"setting gateway.chat_template_kwargs: `{name}` is set by the gateway itself")
    _check_links(settings.gateway)
    check_issuers(settings.gateway.issuers)
    check_sign_in(settings.gateway.sign_in, settings.root_path)
    check_header(settings.gateway.tenant_header)
    return settings


def _check_links(section: GatewaySection) -> None:
    """Raise SettingsError for an address at which no worker could reach this gateway."""
    if section.link_host in ("", "0.0.0.0", "::"):  # noqa: S104 - refused
        raise SettingsError("setting gateway.link_host: workers connect to this address, so name one of this host's")
    if section.link_port and section.link_port + section.processes > 65_536:
        raise SettingsError(f"setting gateway.link_port: no {section.processes} ports from {section.link_port} on")
