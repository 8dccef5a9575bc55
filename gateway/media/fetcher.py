"""Fetches media by URL, from hosts that the settings allow.

A host's name is resolved once for each request to it. All of its addresses must be allowed, and the connection goes to
one of them, so a second answer of the name server changes nothing. Redirects are requests like the first one."""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import httpx

from fairlane.gateway.errors import ApiError
from fairlane.gateway.media.addresses import AllowedHosts, is_public, resolve
from fairlane.gateway.media.refusal import MediaRefused, too_large
from fairlane.gateway.media.response import Response
from fairlane.scheduler.protocol.settings import Networks

MAX_REDIRECTS = 3
_MAX_URL = 8 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOST = re.compile(r"[a-z0-9_-]+([.][a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*")
_READ_BYTES = 16 * 1024
# Addresses of a host that are tried. Each may take a share of the time.
_MAX_ADDRESSES = 3
_CONNECT_SHARE = 0.25
# Fetches, and lookups of names, in progress: of all tenants, of each one. A lookup may outlast its fetch.
_FETCHES = 64, 8
_LOOKUPS = 16, 4
# The same for private addresses and unknown names, so that nobody can learn names of the internal network.
_NO_ADDRESS = "cannot be fetched: its host has no public address."
_HEADERS = "user-agent: fairlane\r\naccept: image/*, audio/*\r\naccept-encoding: identity\r\nconnection: close\r\n"

Resolve = Callable[[str, int], Sequence[str]]


class Slots:
    """Work in progress, bounded in total and per tenant. For one event loop."""

    def __init__(self, total: int, per_tenant: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_tenant = per_tenant
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def acquire(self, tenant: str) -> Callable[[], None]:
        """Wait for a slot. Return the function that releases it."""
        own = self._tenants.setdefault(tenant, asyncio.Semaphore(self._per_tenant))
        await own.acquire()
        try:
            await self._total.acquire()
        except BaseException:
            own.release()
            raise

        def release() -> None:
            self._total.release()
            own.release()

        return release


@dataclass(frozen=True, slots=True)
class _Target:
    """A request of a fetch: a checked URL. It stays out of logs."""

    url: httpx.URL
    host: str
    port: int
    # The settings name the host, so it may be in the operator's networks.
    is_named: bool

    @property
    def head(self) -> bytes:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.url.port is None else f":{self.port}"
        line = f"GET {self.url.raw_path.decode('ascii')} HTTP/1.1\r\n"
        return f"{line}host: {shown}{port}\r\n{_HEADERS}\r\n".encode("ascii")


@dataclass(slots=True)
class Fetcher:
    """Fetches media, within bounds. For one event loop."""

    hosts: AllowedHosts
    networks: Networks
    max_bytes: int
    timeout_s: float
    resolve: Resolve = resolve
    # Read at the first fetch, unless it is given.
    tls: ssl.SSLContext | None = None
    _fetches: Slots = field(default_factory=lambda: Slots(*_FETCHES))
    _lookups: Slots = field(default_factory=lambda: Slots(*_LOOKUPS))
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_LOOKUPS[0], "media-lookup"))

    async def fetch(self, url: str, tenant: str, hold: Callable[[int], None]) -> bytes:
        """Return what a URL leads to. `hold` counts the bytes as they arrive, and may raise ApiError.

        Raises MediaRefused, and ApiError `concurrency_limit_exceeded` if no slot becomes free."""
        target = self._target(url)
        try:
            async with asyncio.timeout(self.timeout_s):
                release = await self._fetches.acquire(tenant)
        except TimeoutError:
            message = "Too many media are being fetched for this tenant."
            raise ApiError(message, "concurrency_limit_exceeded", retry_after_s=1.0) from None
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._follow(target, tenant, hold)
        except TimeoutError:
            raise MediaRefused(f"was not fetched within {self.timeout_s:g} s.") from None
        except OSError:  # its message has the address
            raise MediaRefused("cannot be fetched: the connection failed.") from None
        finally:
            release()

    async def _follow(self, target: _Target, tenant: str, hold: Callable[[int], None]) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._get(target, tenant, hold)
            if response.status == httpx.codes.OK:
                return bytes(response.body)
            if response.status not in _REDIRECTS:
                raise MediaRefused(f"cannot be fetched: the host answers with status {response.status}.")
            location = response.headers.get(b"location", b"").decode("utf-8", "replace")
            target = self._target(location, target.url)
        raise MediaRefused(f"cannot be fetched: it is redirected more than {MAX_REDIRECTS} times.")

    def _target(self, text: str, base: httpx.URL | None = None) -> _Target:
        """Check a URL, relative to `base` if given. Raises MediaRefused."""
        if not self.hosts:
            raise MediaRefused("must be a `data:` URL: the setting `gateway.media_hosts` allows no host.")
        try:
            url = httpx.URL(text[: _MAX_URL + 1]) if base is None else base.join(text[: _MAX_URL + 1])
        except (httpx.InvalidURL, ValueError):
            raise MediaRefused("is not a valid URL.") from None
        host = url.raw_host.decode("ascii").removesuffix(".")
        if len(text) > _MAX_URL or url.scheme not in ("http", "https") or url.userinfo or not _HOST.fullmatch(host):
            raise MediaRefused("must be a `data:` URL, or an https URL without a user, of at most 8192 characters.")
        port = url.port or (443 if url.scheme == "https" else 80)
        if not self.hosts.allow(url.scheme, host, port):
            raise MediaRefused("cannot be fetched: the setting `gateway.media_hosts` does not allow its host.")
        return _Target(url, host, port, self.hosts.name(url.scheme, host, port))

    async def _get(self, target: _Target, tenant: str, hold: Callable[[int], None]) -> Response:
        reader, writer = await self._connect(target, await self._addresses(target, tenant))
        response, held_bytes = Response(), 0
        try:
            if not writer.is_closing():  # uvloop would raise RuntimeError; the read ends instead
                writer.write(target.head)
            while not response.is_complete:
                response.feed(await reader.read(_READ_BYTES))
                if response.has_head and response.status != httpx.codes.OK:
                    break
                self._check(response)
                hold(len(response.body) - held_bytes)
                held_bytes = len(response.body)
        finally:
            response.close()
            writer.transport.abort()  # closing TLS properly would wait for the host
        return response

    def _check(self, response: Response) -> None:
        if response.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise MediaRefused("cannot be fetched: the host compresses it.")
        declared = response.headers.get(b"content-length", b"")
        if max(len(response.body), int(declared) if declared.isdigit() else 0) > self.max_bytes:
            raise too_large(self.max_bytes)

    async def _addresses(self, target: _Target, tenant: str) -> Sequence[str]:
        """Resolve and check a host. Raises MediaRefused if any of its addresses is not allowed."""
        release = await self._lookups.acquire(tenant)
        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(self._threads, self.resolve, target.host, target.port)
        lookup.add_done_callback(lambda _: release())
        try:
            found = await asyncio.shield(lookup)  # the thread cannot be stopped
        except (OSError, UnicodeError):
            found = ()
        if not found or not all(self._may_connect(each, target) for each in found):
            raise MediaRefused(_NO_ADDRESS)
        return found

    def _may_connect(self, address: str, target: _Target) -> bool:
        return is_public(address) or (target.is_named and address in self.networks)

    async def _connect(
        self, target: _Target, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls: ssl.SSLContext | None = None
        if target.url.scheme == "https":
            tls = self.tls = self.tls or await asyncio.to_thread(httpx.create_ssl_context)
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(self.timeout_s * _CONNECT_SHARE):
                    return await asyncio.open_connection(
                        address, target.port, ssl=tls, server_hostname=target.host if tls else None
                    )
            except OSError:  # of TLS and time too
                continue
        raise MediaRefused("cannot be fetched: its host cannot be connected to.")
