"""The hosts and addresses that media may be fetched from."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import NamedTuple

_ANY = "*"
_PORTS = {"https": 443, "http": 80}
_ENTRY = re.compile(r"(?:(https?)://)?(\[[^\]]+\]|[^:]+)(?::(\d+))?")
# All IPv6 unicast that IANA assigns. Outside are local networks, and other notations of IPv4 addresses.
_IPV6_GLOBAL = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# What `is_global` allows, or allowed in older releases of Python: IETF protocols (Oracle's metadata), relays and
# tunnels to IPv4 addresses, Azure's host services, documentation.
_REFUSED = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "2002::/16", "3fff::/20"),
    )
)


def is_public(address: str) -> bool:
    """Return whether an address is a host's on the internet: in no private, local, shared or reserved network, and no
    other notation of such an address."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found not in _IPV6_GLOBAL:
            return False
    special = found.is_multicast or found.is_reserved or found.is_unspecified
    return found.is_global and not special and not any(found in each for each in _REFUSED)


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. It blocks. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class _Host(NamedTuple):
    scheme: str
    port: int
    pattern: str

    def matches(self, scheme: str, host: str, port: int) -> bool:
        if (scheme, port) != self[:2]:
            return False
        if self.pattern.startswith("*."):
            return host.endswith(self.pattern[1:]) and host != self.pattern[1:]
        return self.pattern in (_ANY, host)


class AllowedHosts:
    """The hosts of the setting `media_hosts`: `name`, `*.name` or `*`, of https on port 443 unless they state
    others."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._hosts = tuple(map(_host, entries))

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def allow(self, scheme: str, host: str, port: int) -> bool:
        return any(each.matches(scheme, host, port) for each in self._hosts)

    def name(self, scheme: str, host: str, port: int) -> bool:
        """Return whether an entry other than `*` allows the host: its addresses may be in the operator's networks."""
        return any(each.pattern != _ANY and each.matches(scheme, host, port) for each in self._hosts)


def _host(entry: str) -> _Host:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise ValueError(f"not a host: {entry}")
    scheme = found[1] or "https"
    return _Host(scheme, int(found[3] or _PORTS[scheme]), found[2].strip("[]"))
