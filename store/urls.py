"""Connection pools for a store URL: one server, or the master that its Sentinels name.

    redis://host:6379/0, rediss://…, unix:///path                   one server
    redis+sentinel://[user:password@]host:26379,host2/service[/db]  the service's current master (rediss+…: over TLS)
    redis+cluster://[user:password@]host:6379,host2                 a Cluster, by some of its nodes (rediss+…: over TLS)

User and password are the servers'; the Sentinels' own are given as `?sentinel_username=…&sentinel_password=…`."""

import asyncio
import hashlib
import os
import tempfile
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

SERVER_SCHEMES = ("redis://", "rediss://", "unix://")
SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
SCHEMES = (*SERVER_SCHEMES, *SENTINEL_SCHEMES, *CLUSTER_SCHEMES)
SENTINEL_PORT = 26379
NODE_PORT = 6379
_OPTIONS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelUrl:
    """The parts of a URL that names Sentinels."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    is_tls: bool
    # TLS options, for servers and Sentinels alike.
    tls: dict[str, Any]
    login: dict[str, Any]
    sentinel_login: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUrl:
    """The parts of a URL that names a Cluster."""

    # Some of the Cluster's nodes; they name the others.
    nodes: tuple[tuple[str, int], ...]
    scheme: str
    login: str
    query: str

    def url(self, host: str, port: int) -> str:
        named = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{self.login}{named}:{port}{self.query}"


def check(url: str) -> None:
    """Validate a store URL. Raises ValueError, with one line that does not repeat the URL."""
    if url.startswith(SENTINEL_SCHEMES):
        _parse_sentinel_url(url)
    elif url.startswith(CLUSTER_SCHEMES):
        parse_cluster_url(url)
    elif not url.startswith(SERVER_SCHEMES):
        raise ValueError(f"must start with one of {', '.join(SCHEMES)}")


def client(url: str, *, limit: int, timeout_s: float) -> redis.asyncio.Redis:
    """Return a client without retries, on a `pool`."""
    return redis.asyncio.Redis.from_pool(pool(url, limit=limit, timeout_s=timeout_s))


def pool(url: str, *, limit: int, timeout_s: float, retries: int = 0) -> BlockingConnectionPool:
    """Return a pool of at most `limit` connections to one server or to the Sentinels' master.

    Opening a connection, and waiting for a free one, takes at most about `timeout_s`. Callers bound their calls
    themselves: with `socket_timeout`, redis-py sends under `asyncio.wait_for`, which on Python 3.11 can lose the
    cancellation of the calling task. Raises ValueError as `check` does."""
    check(url)
    if url.startswith(CLUSTER_SCHEMES):
        raise ValueError("must name one server, or the Sentinels of one")
    options: dict[str, Any] = {
        "max_connections": limit,
        "timeout": timeout_s,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), retries, (redis.ConnectionError,)),
    }
    return (
        _MasterPool(_parse_sentinel_url(url), options)
        if url.startswith(SENTINEL_SCHEMES)
        else BlockingConnectionPool.from_url(url, **options)
    )


def parse_cluster_url(url: str) -> ClusterUrl:
    """Parse a URL with one of CLUSTER_SCHEMES. Raises ValueError as `check` does."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    options = parse_qs(parts.query, keep_blank_values=True)
    is_tls = parts.scheme == "rediss+cluster"
    if parts.path not in ("", "/", "/0") or not _are_known(options.keys(), is_tls):
        raise ValueError("must be redis+cluster://host:port,host2:port2, with no database but 0, and ssl_… for TLS")
    _tls(options)
    return ClusterUrl(
        nodes=tuple(_address(host, "nodes", NODE_PORT) for host in hosts.split(",")),
        scheme="rediss" if is_tls else "redis",
        login=login + at,
        query=f"?{parts.query}" if parts.query else "",
    )


class _MasterPool(BlockingConnectionPool):
    is_master = True
    check_connection = False

    def __init__(self, named: SentinelUrl, options: dict[str, Any]) -> None:
        kind = SentinelManagedSSLConnection if named.is_tls else SentinelManagedConnection
        super().__init__(connection_class=kind, db=named.database, **named.login, **named.tls, **options)
        self.connection_kwargs["connection_pool"] = weakref.proxy(self)
        self._service = named.service
        self._address: tuple[str, int] | None = None
        self._sentinel = Sentinel([])  # type: ignore[no-untyped-call]
        self._sentinel.sentinels = [
            _SentinelClient(host, port, options["socket_connect_timeout"], named) for host, port in named.sentinels
        ]

    async def get_master_address(self) -> tuple[str, int]:
        address: tuple[str, int] = await self._sentinel.discover_master(self._service)
        if address != self._address:
            self._address = address
            await super().disconnect(inuse_connections=False)
        return address

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self._sentinel.aclose()


class _SentinelClient(redis.asyncio.Redis):
    """One Sentinel, with half a connection's time limit, so that the next can be asked if it does not answer."""

    def __init__(self, host: str, port: int, timeout_s: float, named: SentinelUrl) -> None:
        super().__init__(
            host=host,
            port=port,
            ssl=named.is_tls,
            socket_timeout=None,
            socket_connect_timeout=timeout_s / 2,
            retry=Retry(NoBackoff(), 0),
            **named.sentinel_login,
            **named.tls,
        )
        self._limit_s = timeout_s / 2

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        try:
            async with asyncio.timeout(self._limit_s):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise redis.TimeoutError("a Sentinel does not answer in time") from error


def _parse_sentinel_url(url: str) -> SentinelUrl:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, database = parts.path.lstrip("/").partition("/")
    options = parse_qs(parts.query, keep_blank_values=True)
    is_tls = parts.scheme == "rediss+sentinel"
    if not service or not (database or "0").isdecimal() or not _are_known(options.keys() - set(_OPTIONS), is_tls):
        raise ValueError("must be redis+sentinel://host:port,host2:port2/service[/db]")
    given = {"username": unquote(user), "password": unquote(password)}
    return SentinelUrl(
        sentinels=tuple(_address(host, "Sentinels", SENTINEL_PORT) for host in hosts.split(",")),
        service=unquote(service),
        database=int(database or 0),
        is_tls=is_tls,
        tls=_tls(options),
        login={name: value for name, value in given.items() if value},
        sentinel_login={name.removeprefix("sentinel_"): options[name][0] for name in _OPTIONS if name in options},
    )


def _are_known(options: Collection[str], is_tls: bool) -> bool:
    return all(is_tls and name.startswith("ssl_") for name in options)


def _tls(options: Mapping[str, list[str]]) -> dict[str, Any]:
    query = urlencode({name: values[0] for name, values in options.items() if name.startswith("ssl_")})
    return {name: value for name, value in parse_url(f"rediss://host?{query}").items() if name.startswith("ssl_")}


def _address(named: str, what: str, port: int) -> tuple[str, int]:
    """Parse `host`, `host:port` or `[v6]:port`. `what` names the kind in errors; `port` is the default."""
    try:
        parts = urlsplit(f"//{named}")
        host, stated = parts.hostname, parts.port
    except ValueError:
        host, stated = None, None
    if not host:
        raise ValueError(f"must name {what} as host:port, with commas between")
    return host, stated or port


_SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes


def embedded_socket(directory: Path) -> Path:
    """Return the socket path of a directory's embedded store."""
    path = directory.resolve() / "store.sock"
    if len(str(path)) < _SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fairlane-{os.getuid()}-{digest}.sock"


def embedded_url(data_dir: str) -> str:
    """Return the URL of the embedded store of a data directory."""
    return f"unix://{embedded_socket(Path(data_dir) / 'store')}"
