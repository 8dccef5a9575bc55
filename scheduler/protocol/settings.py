"""Settings shared by gateway and worker, and how all settings are merged and checked.

Later sources override earlier ones: `fairlane.yaml`, `FAIRLANE_*` variables (`__` between levels), flags. Each process
checks the shared settings and its own section, and ignores the other's."""

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from fairlane.common.log_lines import LogFormat
from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT, Lane, LaneName

PREFIX = "FAIRLANE_"
CONFIG_VARIABLE = "FAIRLANE_CONFIG"
DEFAULT_CONFIG = "fairlane.yaml"
NOT_SETTINGS = frozenset({CONFIG_VARIABLE, "FAIRLANE_URL"})
# Variables of the test suite, which the processes that it starts inherit.
TEST_PREFIX = "FAIRLANE_TEST_"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=10_000_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
RootPath = Annotated[str, msgspec.Meta(pattern="^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$", max_length=128)]


# Shorter keys can be guessed; longer bearer tokens are never checked.
ADMIN_KEY_CHARACTERS = (32, 500)
_ADMIN_KEY = re.compile(rf"[!-~]{{{ADMIN_KEY_CHARACTERS[0]},{ADMIN_KEY_CHARACTERS[1]}}}")
_ADMIN_KEY_RULE = (
    f"setting admin_key: must be {ADMIN_KEY_CHARACTERS[0]} to {ADMIN_KEY_CHARACTERS[1]} printable ASCII characters "
    "without spaces; `openssl rand -hex 32` makes one"
)


_ORIGIN = re.compile(r"[*]|https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
# The host itself: `*`, a name, or an address.
_HOST = re.compile(r"(https?://)?([*]|([*][.])?[a-z0-9_-]+([.][a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?")


class ByteSize(int):
    """A number of bytes, written as `512MiB`, `4GiB`, `1000000`."""


class Networks:
    """IP address ranges, written as a list or separated by commas: `10.0.0.0/8, 192.0.2.7`."""

    def __init__(self, ranges: Iterable[str] = ()) -> None:
        self.ranges = tuple(ipaddress.ip_network(each.strip()) for each in ranges)

    def __contains__(self, address: str) -> bool:
        if not self.ranges:
            return False
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in each for each in self.ranges)


class Origins(tuple[str, ...]):
    """Web page origins, written as a list or separated by commas: `https://a.example, http://localhost:3000`; `*` is
    any."""

    __slots__ = ()

    @classmethod
    def of(cls, listed: Iterable[str]) -> "Origins":
        origins = cls(each.strip() for each in listed)
        if not all(_ORIGIN.fullmatch(each) for each in origins):
            raise ValueError("expected origins such as https://chat.example.com, without a path, or *")
        return origins


class Hosts(tuple[str, ...]):
    """Hosts that may be connected to, written as a list or separated by commas: a name, `*.` and a name, or `*`, with
    a scheme before it and a port after it if they are not those of https."""

    __slots__ = ()

    @classmethod
    def of(cls, listed: Iterable[str]) -> "Hosts":
        hosts = cls(each.strip().lower() for each in listed)
        found = [_HOST.fullmatch(each) for each in hosts]
        if not all(each and 0 < int(each["port"] or 443) < 65_536 for each in found):
            raise ValueError("expected hosts such as images.example.com, *.example.com, http://10.0.0.7:9000 or *")
        return hosts


class Names(tuple[str, ...]):
    """Names of variables, written as a list or separated by commas."""

    __slots__ = ()


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's changes to one lane; None keeps the built-in value."""

    ttft_s: Seconds | None = None
    tpot_ms: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | Literal["auto"] | None = None
    """`auto` derives it from the machine's speed, at most the built-in value."""
    max_wait_s: Seconds | None = None
    share_floor: Share | None = None
    max_queued: Count | None = None

    def apply(self, lane: Lane) -> Lane:
        changes: dict[str, Any] = {
            "ttft_ms": None if self.ttft_s is None else self.ttft_s * 1e3,
            "tpot_ms": None if self.tpot_ms == "auto" else self.tpot_ms,
            "auto_tpot": None if self.tpot_ms is None else self.tpot_ms == "auto",
            "max_wait_ms": None if self.max_wait_s is None else self.max_wait_s * 1e3,
            "share_floor": self.share_floor,
            "max_queued": self.max_queued,
        }
        return dataclasses.replace(lane, **{name: value for name, value in changes.items() if value is not None})


class LanesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of both lanes."""

    latency: LaneSettings = LaneSettings()
    throughput: LaneSettings = LaneSettings()

    def lanes(self) -> dict[LaneName, Lane]:
        return {LaneName.LATENCY: self.latency.apply(LATENCY), LaneName.THROUGHPUT: self.throughput.apply(THROUGHPUT)}


class LinkTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mutual TLS on the links between workers and gateways: files in PEM, all three or none."""

    cert: str = ""
    """Certificate of this process, with its chain."""
    key: str = ""
    """Its private key."""
    ca: str = ""
    """Certificates that sign those of all peers."""


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every process. `gateway` and `worker` replace the type of their own section."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on."""
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 0
    """Port where the gateway serves metrics and health without a key; 0: none, and metrics only to operators."""
    admin_host: str = "127.0.0.1"
    admin_port: Port = 0
    """Port that alone serves the admin API and the console; 0: the tenants' port."""
    data_dir: str = ".fairlane"
    """Directory of the embedded store, tenants' files, traces and converted models."""
    redis_url: str | None = None
    """URL of the store: `redis://`, `rediss://`, `unix://`, or one of Sentinel or Cluster; only `serve` starts its
    own."""
    quota_redis_url: str | None = None
    """URL of a separate store for tenants, keys and budgets; None: the same store."""
    admin_key: str | None = None
    """Key of operators; None: `serve` generates one."""
    model: str = DEFAULT_MODEL
    """Model to serve: a directory, hub id or GGUF file."""
    currency: Annotated[str, msgspec.Meta(pattern="^[A-Za-z]{1,8}$")] = "USD"
    """Currency of all prices and charges, for display only."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity to log."""
    log_format: LogFormat = "text"
    """`json` writes one object per line, with trace and request ids."""
    trusted_proxies: Networks = Networks()
    """Proxies whose `x-forwarded-for` and `x-forwarded-proto` headers gateways trust."""
    link_tls: LinkTlsSettings = LinkTlsSettings()
    lanes: LanesSettings = LanesSettings()
    lease_s: Seconds = 6.0
    """A worker that has not renewed its lease for this long loses its jobs."""
    orphan_grace_s: Seconds = 120.0
    """Time without any worker of a card after which its waiting jobs move, end or keep waiting."""
    gateway: Any = None
    worker: Any = None

    @property
    def root_path(self) -> str:
        """The prefix of all of the gateway's paths, without a slash at its end."""
        section = self.gateway
        given = section.get("root_path") if isinstance(section, dict) else getattr(section, "root_path", None)
        return str(given or "").rstrip("/")

    @property
    def url(self) -> str:
        return _url(self.host, self.port) + self.root_path

    @property
    def admin_url(self) -> str:
        return _url(self.admin_host, self.admin_port) + self.root_path if self.admin_port else self.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.host}:{self.port})"  # never the admin key


def _url(host: str, port: int) -> str:
    called = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - listened on, not called
    return f"http://[{called}]:{port}" if ":" in called else f"http://{called}:{port}"


S = TypeVar("S", bound=SharedSettings)

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b)?\s*$", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_PATH = re.compile(r"^(?P<rule>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`$")


def load(
    kind: type[S], *, document: object, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> S:
    """Merge the parsed `fairlane.yaml`, the environment and dotted `flags`, and check the result. Raises SettingsError
    naming the first setting that is unknown or out of range."""
    if document is not None and not isinstance(document, dict):
        raise SettingsError("fairlane.yaml: must be a mapping of settings")
    merged: dict[str, object] = _copy(document or {})
    for name, value in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS and not name.startswith(TEST_PREFIX):
            _put(merged, name[len(PREFIX) :].lower().split("__"), value, name)
    for flag, chosen in (flags or {}).items():
        if chosen is not None:
            _put(merged, flag.split("."), chosen, f"--{flag}")
    try:
        settings = msgspec.convert(merged, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(_explain(str(error))) from None
    if settings.admin_key is not None and not _ADMIN_KEY.fullmatch(settings.admin_key):
        raise SettingsError(_ADMIN_KEY_RULE)
    return settings


def read_document(named: str | None, environ: Mapping[str, str]) -> object:
    """Parse the given settings file, or `fairlane.yaml` if there is one. Raises SettingsError."""
    named = named or environ.get(CONFIG_VARIABLE)
    path = Path(named or DEFAULT_CONFIG)
    if named is None and not path.exists():
        return None
    import yaml  # not in the environment of `fairlane-vllm`, which reads no file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: cannot be read as YAML ({type(error).__name__})") from None


def _copy(document: Mapping[str, object]) -> dict[str, object]:
    return {str(name): _copy(value) if isinstance(value, dict) else value for name, value in document.items()}


def _put(target: dict[str, object], path: list[str], value: object, source: str) -> None:
    for name in path[:-1]:
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"setting {source}: `{name}` is not a section")
        target = inner
    target[path[-1]] = None if value == "" else value


def _decode(kind: type, value: object) -> object:
    if kind is Networks:
        return Networks(_listed(value, "ranges of addresses such as 10.0.0.0/8"))
    if kind is Origins:
        return Origins.of(_listed(value, "origins such as https://chat.example.com"))
    if kind is Hosts:
        return Hosts.of(_listed(value, "hosts such as images.example.com"))
    if kind is Names:
        names = Names(each.strip() for each in _listed(value, "names of variables"))
        wrong = next((name for name in names if not name.isidentifier()), None)
        if wrong is not None:
            raise ValueError(f"expected names of variables, not {wrong[:40]!r}")
        return names
    if kind is not ByteSize:
        raise NotImplementedError(kind)
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f"expected a size such as 512MiB or 4GiB, not {str(value)[:40]!r}")
    unit = (match[2] or "").lower().removesuffix("b")
    return ByteSize(float(match[1]) * _UNITS[unit])


def _listed(value: object, what: str) -> list[str]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ValueError(f"expected {what}, as a list or separated by commas")
    return [each for each in listed if each.strip()]


def _explain(message: str) -> str:
    found = _PATH.match(message)
    rule, path = (found["rule"], found["path"] or "") if found else (message, "")
    unknown = _UNKNOWN.match(rule)
    if unknown:
        return f"setting {'.'.join(filter(None, [path, unknown['field']]))}: no such setting"
    return f"setting {path or '(all)'}: {rule[0].lower()}{rule[1:]}"
